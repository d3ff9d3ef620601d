/** There and back, with nothing to look at in between. */
import type { OpenWay } from './way.ts';

/** A way that goes there and back again and again; all of it is timed. */
export const roundTrips = (go: () => Promise<unknown>): OpenWay => ({
  async run(calls, untimed) {
    for (let call = 0; call < untimed; call += 1) await go();
    const start = process.hrtime.bigint();
    for (let call = 0; call < calls; call += 1) await go();
    return Number(process.hrtime.bigint() - start);
  },
  close() {},
});
