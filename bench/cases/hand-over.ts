/**
 * A buffer goes to another process, which reads 16 bytes of it on the GPU's side and acknowledges:
 * through a connection, where it is mapped already; by its IPC handle over `process.send`; and
 * copied through the host.
 */
import { Context, DeviceBuffer, Stream } from 'cuffi';
import { getIpcHandle } from 'cuffi/ipc';
import { sizeName } from '../bytes.ts';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import { HandOverChild } from '../programs/hand-over.ts';
import { HandOverPeer } from '../programs/hand-over-peer.ts';
import type { Case, OpenCase } from './case.ts';

// Many at a time where each is quick: what a program that runs for a while sees.
const SIZES = [
  [4 << 10, 100],
  [1 << 20, 10],
  [64 << 20, 1],
] as const;

export const handOverCases: readonly Case[] = SIZES.map(([byteLength, calls]) => ({
  name: 'hand-over',
  variant: sizeName(byteLength),
  what: 'to a warm child process and its acknowledgement',
  calls,
  byteLength,
  peers: [],
  aims: [],
  open: (driver) => open(driver, byteLength),
}));

async function open(driver: DriverChoice, byteLength: number): Promise<OpenCase> {
  const context = Context.primary();
  const stream = Stream.create({ context, nonBlocking: true });
  const buffer = DeviceBuffer.allocate(byteLength, { context });
  // Last: an error before it would leave a process behind.
  const child = await HandOverChild.start(driver, byteLength);
  const peer = await HandOverPeer.start(driver, buffer).catch(async (error: unknown) => {
    await child.end();
    throw error;
  });
  // Made once: the copying way is measured at its best.
  const host = new Uint8Array(byteLength);
  let turns = 0;

  const handOver = (name: string, way: () => Promise<readonly number[]>): Contestant => ({
    name,
    async run(calls) {
      let ns = 0n;
      for (let call = 0; call < calls; call += 1) {
        turns += 1;
        const value = turns % 256;
        buffer.fill(value, { stream });
        stream.synchronizeSync();
        const start = process.hrtime.bigint();
        const seen = await way();
        ns += process.hrtime.bigint() - start;
        // Every turn has another value, so that nothing left over from the last one passes.
        if (seen.length === 0 || seen.some((byte) => byte !== value))
          throw new Error(`the child read ${seen.join(', ')} where ${value} was written`);
      }
      return Number(ns);
    },
  });

  return {
    contestants: [
      handOver('connection, mapped', () => peer.share()),
      handOver('IPC handle', () => child.share(getIpcHandle(buffer))),
      handOver('copying', () => child.receive(buffer.copyToHostSync(host))),
    ],
    async close() {
      await peer.end();
      await child.end();
      buffer.close();
      stream.close();
    },
  };
}
