/** The connection alone: the floor of every hand-over that goes through it. */
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { HandOverChildren } from '../programs/hand-over-children.ts';
import type { Case, OpenCase } from './case.ts';
import { PUBLIC } from './names.ts';
import { warmUp } from './turns.ts';

export const connectionCase: Case = {
  name: 'connection',
  what: 'an empty message to another process and back; node:net: a byte through a Unix socket',
  calls: 500,
  peers: [],
  aims: [{ versus: 'node:net', max: 1.5 }],
  open: openConnection,
};

async function openConnection(driver: DriverChoice, children: HandOverChildren): Promise<OpenCase> {
  const { child } = await children.of('connection');
  const byte = new Uint8Array(1);
  const around = (name: string, go: () => Promise<unknown>): Contestant => ({
    name,
    warmUpMs: warmUp(driver, false),
    async run(calls) {
      for (let call = 0; call < calls / 10; call += 1) await go();
      const start = process.hrtime.bigint();
      for (let call = 0; call < calls; call += 1) await go();
      return Number(process.hrtime.bigint() - start);
    },
  });
  return {
    contestants: [around(PUBLIC, () => child.greet()), around('node:net', () => child.echo(byte))],
    close() {},
  };
}
