/** How soon memory comes back that a receiver had mapped when it was killed. */
import { DeviceBuffer } from 'cuffi';
import { leases } from 'cuffi/ipc';
import type { DriverChoice } from '../driver.ts';
import { Consumer } from '../programs/consumer.ts';
import type { Case, OpenCase } from './case.ts';
import { PUBLIC, requireSuccess } from './names.ts';

const BYTE_LENGTH = 64 << 20;
const DRAIN_MS = 30_000;

export const killedCases: readonly Case[] = [
  {
    name: 'receiver.killed',
    what: 'from the end of a killed process until memory that it had mapped, and that is closed here, is free',
    calls: 1,
    rounds: 5,
    // Each is a process that makes a context.
    passes: 1,
    budgetMs: 10_000,
    peers: [],
    open: openKilled,
  },
];

function openKilled(driver: DriverChoice): OpenCase {
  return {
    contestants: [{ name: PUBLIC, run: () => killReceiver(driver) }],
    verify() {
      const { orphaned } = leases.stats();
      requireSuccess(orphaned.count === 0, 'giving memory back');
    },
    close() {},
  };
}

async function killReceiver(driver: DriverChoice): Promise<number> {
  const consumer = new Consumer(driver);
  const buffer = DeviceBuffer.allocate(BYTE_LENGTH);
  try {
    await consumer.take({ buffers: [buffer], keep: true });
  } finally {
    buffer.close();
    await consumer.end();
  }
  const start = process.hrtime.bigint();
  await leases.drain({ timeoutMs: DRAIN_MS });
  return Number(process.hrtime.bigint() - start);
}
