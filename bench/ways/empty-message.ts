import { BUSY_POLLING, PUBLIC } from '../cases/names.ts';
import type { HandOverChild } from '../programs/hand-over.ts';
import { roundTrips } from './round-trip.ts';
import type { Opening, Way } from './way.ts';

/** The connection alone: the floor of every hand-over that goes through it. */
const by = (name: string, receiverOf: (opening: Opening) => Promise<HandOverChild>): Way => ({
  name,
  async open(opening) {
    const receiver = await receiverOf(opening);
    return roundTrips(() => receiver.greet());
  },
});

export const emptyMessage: Way = by(PUBLIC, ({ children }) => children.receiver());
/** Both ends look at the connection before they sleep. */
export const emptyMessageBusyPolling: Way = by(BUSY_POLLING, ({ children }) =>
  children.pollingReceiver(),
);
