/**
 * How late the event loop is while 1 GiB is copied, awaited: what another request of the same
 * server would feel.
 *
 * By timers of our own, not perf_hooks.monitorEventLoopDelay: its figures contain the millisecond
 * between two of its samples, and a second that is blocked is one sample of many to it. Here each
 * sample is how much later than its millisecond a timer came, and where several were due in one
 * delay, each of them counts.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { DeviceBuffer, PinnedBuffer } from 'cuffi';
import { requirePattern, writePattern } from './bytes.ts';
import type { DriverChoice } from './driver.ts';
import type { DelayResult } from './result-schema.ts';
import { quantile } from './statistics.ts';

const PERIOD_MS = 1;
const COPIES = 10;
const MIB = 1 << 20;
const IDLE_MS = 500;

/** Measures the idle loop, then each way of copying, both directions. */
export async function measureDelays(driver: DriverChoice): Promise<DelayResult[]> {
  // The emulated driver copies on the main thread, whoever awaits it.
  const byteLength = driver.emulated ? 16 * MIB : 1024 * MIB;
  using buffer = DeviceBuffer.allocate(byteLength);
  using pinned = PinnedBuffer.allocate(byteLength);
  const sources: readonly (readonly [string, Uint8Array])[] = [
    ['an ordinary typed array', new Uint8Array(byteLength)],
    ['a PinnedBuffer', new Uint8Array(pinned.buffer)],
  ];
  const idle = await lateness(() => sleep(IDLE_MS));
  const results = [summarize({ name: 'nothing is copied', byteLength: 0, copies: 0 }, idle)];
  for (const [name, host] of sources) {
    const what = { byteLength, copies: COPIES };
    writePattern(host);
    const up = await lateness(() => repeat(() => buffer.copyFrom(host)));
    host.fill(0);
    const down = await lateness(() => repeat(() => buffer.copyToHost(host)));
    requirePattern(host, name);
    results.push(
      summarize({ ...what, name: `copyFrom, ${name}` }, up),
      summarize({ ...what, name: `copyToHost, ${name}` }, down),
    );
  }
  return results;
}

async function repeat(copy: () => Promise<unknown>): Promise<void> {
  for (let count = 0; count < COPIES; count += 1) await copy();
}

/** How late each timer came that was due while `work` went on. */
async function lateness(work: () => Promise<unknown>): Promise<number[]> {
  const periodNs = PERIOD_MS * 1e6;
  const samples: number[] = [];
  let last = process.hrtime.bigint();
  const sample = (): void => {
    const now = process.hrtime.bigint();
    const delay = Math.max(0, Number(now - last) - periodNs);
    for (let late = delay; late >= 0; late -= periodNs) samples.push(late);
    last = now;
  };
  const timer = setInterval(sample, PERIOD_MS);
  try {
    await work();
  } finally {
    clearInterval(timer);
    // What was due when the work ended, and did not come any more.
    sample();
  }
  return samples;
}

function summarize(
  what: Pick<DelayResult, 'name' | 'byteLength' | 'copies'>,
  samples: readonly number[],
): DelayResult {
  const sorted = [...samples].sort((a, b) => a - b);
  return {
    ...what,
    samples: sorted.length,
    median: quantile(sorted, 0.5),
    p99: quantile(sorted, 0.99),
    max: quantile(sorted, 1),
  };
}
