import { PUBLIC } from '../cases/names.ts';
import { roundTrips } from './round-trip.ts';
import type { Way } from './way.ts';

/** The connection alone: the floor of every hand-over that goes through it. */
export const emptyMessage: Way = {
  name: PUBLIC,
  async open({ children }) {
    const receiver = await children.receiver();
    return roundTrips(() => receiver.greet());
  },
};
