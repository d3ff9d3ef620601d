import { PUBLIC } from '../cases/names.ts';
import { PolledHandOver } from '../programs/polled.ts';
import type { Way } from './way.ts';

/** Nobody sleeps: the stream of one process waits for that of another, whose CPU looks until it has answered. */
export const polled: Way = {
  name: PUBLIC,
  async open({ driver }) {
    const processes = await PolledHandOver.start(driver);
    return {
      run: (calls, untimed) => processes.run({ calls, untimed }),
      close: () => processes.end(),
    };
  },
};
