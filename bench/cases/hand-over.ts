/**
 * A word of a buffer is changed, and the buffer goes to another process, which reads that word on
 * the device and answers with it. Three rows that are never mixed: the receiver has it mapped
 * already; it is new, of a pool that the receiver knows; it comes for the first time.
 */
import { Context, DeviceBuffer, MemoryPool, Stream, VirtualMemory } from 'cuffi';
import { getIpcHandle } from 'cuffi/ipc';
import { sizeName } from '../bytes.ts';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import { HandOverChild } from '../programs/hand-over.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { PUBLIC } from './names.ts';
import { handOver } from './turns.ts';

const MIB = 1 << 20;
const SIZES = [4 << 10, MIB, 64 * MIB, 1024 * MIB];
/** From here on it takes long, and much memory, without a GPU. */
const LARGE = 1024 * MIB;

interface Row extends Pick<Case, 'name' | 'what' | 'calls' | 'peers' | 'aims'> {
  open(driver: DriverChoice, byteLength: number): Promise<OpenCase>;
}

const rows: readonly Row[] = [
  {
    name: 'hand-over.mapped',
    what: 'a buffer that the receiver has mapped, and its acknowledgement',
    calls: 100,
    peers: inPeers('handOver.mapped', 'C', 'numba', 'cuda.core', 'torch'),
    aims: [],
    open: openMapped,
  },
  {
    name: 'hand-over.pool',
    what: 'a new buffer of a pool that the receiver knows, and its acknowledgement',
    calls: 20,
    peers: inPeers('handOver.pool', 'C', 'cuda.core'),
    aims: [],
    open: openPool,
  },
  {
    name: 'hand-over.first.legacy',
    what: 'a buffer that the receiver opens by its legacy handle, and closes',
    calls: 10,
    peers: inPeers('handOver.legacy', 'C', 'numba', 'torch'),
    aims: [{ versus: 'C', max: 1.5 }],
    open: openLegacy,
  },
  {
    name: 'hand-over.first.pool',
    what: 'a buffer of a new pool: the receiver imports both, and closes them',
    calls: 5,
    peers: inPeers('handOver.firstPool', 'C', 'cuda.core'),
    aims: [{ versus: 'C', max: 1.5 }],
    open: openFirstPool,
  },
  {
    name: 'hand-over.first.virtual',
    what: 'new virtual memory: the receiver maps it by file descriptor, and unmaps it',
    calls: 5,
    peers: inPeers('handOver.virtual', 'C'),
    aims: [{ versus: 'C', max: 1.5 }],
    open: openVirtual,
  },
];

export const handOverCases: readonly Case[] = [
  {
    name: 'connection',
    what: 'an empty message to another process and back; node:net: a byte through a Unix socket',
    calls: 500,
    peers: [],
    aims: [{ versus: 'node:net', max: 1.5 }],
    open: openConnection,
  },
  ...rows.flatMap(({ open, ...row }) =>
    SIZES.map((byteLength) => ({
      ...row,
      variant: sizeName(byteLength),
      byteLength,
      needsGpu: byteLength >= LARGE,
      open: (driver: DriverChoice) => open(driver, byteLength),
    })),
  ),
];

/** The emulated driver's times say nothing: it need not be warm. */
const warmUp = ({ emulated }: DriverChoice, turns: number): number => (emulated ? 0 : turns);

async function openConnection(driver: DriverChoice): Promise<OpenCase> {
  const child = await HandOverChild.start(driver);
  const byte = new Uint8Array(1);
  const around = (name: string, go: () => Promise<unknown>): Contestant => ({
    name,
    async run(calls) {
      for (let call = 0; call < calls / 10; call += 1) await go();
      const start = process.hrtime.bigint();
      for (let call = 0; call < calls; call += 1) await go();
      return Number(process.hrtime.bigint() - start);
    },
  });
  return {
    contestants: [around(PUBLIC, () => child.greet()), around('node:net', () => child.echo(byte))],
    close: () => child.end(),
  };
}

async function openMapped(driver: DriverChoice, byteLength: number): Promise<OpenCase> {
  const buffer = DeviceBuffer.allocate(byteLength);
  const stream = Stream.create({ nonBlocking: true });
  // Last: an error before it would leave a process behind.
  const child = await HandOverChild.start(driver, {
    givesUp: 'all but the first',
    byteLength,
  });
  const host = new Uint8Array(byteLength);
  // A second of copying is worth few samples.
  const rounds = byteLength >= LARGE ? 2 : byteLength > MIB ? 7 : 31;
  const copying = { buffer: () => buffer, calls: 1, rounds };
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () => buffer,
        give: () => child.give(buffer),
        warmUp: warmUp(driver, 8000),
      }),
      // The change is only queued: the receiver's stream waits for it.
      handOver({
        name: `${PUBLIC}, ready and done points`,
        buffer: () => buffer,
        change: (changed, word) =>
          changed.subarray(0, 4).fill(word, { elementByteLength: 4, stream }),
        give: () => child.give(buffer, stream),
        warmUp: warmUp(driver, 8000),
      }),
      handOver({
        name: 'copying, socket',
        give: () => child.copy(buffer.copyToHostSync(host)),
        ...copying,
      }),
      handOver({
        name: 'copying, shared memory',
        give: () => child.share(buffer, { pinned: false }),
        ...copying,
      }),
      handOver({
        name: 'copying, page-locked shared memory',
        give: () => child.share(buffer, { pinned: true }),
        ...copying,
      }),
    ],
    async close() {
      await child.end();
      buffer.close();
      stream.close();
    },
  };
}

async function openPool(driver: DriverChoice, byteLength: number): Promise<OpenCase> {
  const pool = MemoryPool.create({ shareable: true });
  const child = await HandOverChild.start(driver);
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () => pool.allocate(byteLength),
        warmUp: warmUp(driver, 2000),
        give: (buffer) => child.give(buffer),
        after: (buffer) => buffer.close(),
      }),
    ],
    async close() {
      await child.end();
      pool.close({ buffers: true });
    },
  };
}

async function openLegacy(driver: DriverChoice, byteLength: number): Promise<OpenCase> {
  const buffer = DeviceBuffer.allocate(byteLength);
  const child = await HandOverChild.start(driver);
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () => buffer,
        give: () => child.give(buffer),
        warmUp: warmUp(driver, 3000),
      }),
      handOver({
        name: 'cuffi, process.send',
        buffer: () => buffer,
        warmUp: warmUp(driver, 3000),
        give: () => child.tell(getIpcHandle(buffer)),
      }),
    ],
    async close() {
      await child.end();
      buffer.close();
    },
  };
}

async function openFirstPool(driver: DriverChoice, byteLength: number): Promise<OpenCase> {
  const context = Context.primary();
  const child = await HandOverChild.start(driver, { givesUp: 'pools too' });
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () =>
          MemoryPool.create({ context, shareable: true, releaseThreshold: 0 }).allocate(byteLength),
        warmUp: warmUp(driver, 400),
        give: (buffer) => child.give(buffer),
        after(buffer) {
          (buffer.resource as MemoryPool).close({ buffers: true });
          context.synchronizeSync();
        },
      }),
    ],
    close: () => child.end(),
  };
}

async function openVirtual(driver: DriverChoice, byteLength: number): Promise<OpenCase> {
  const child = await HandOverChild.start(driver);
  let memory: VirtualMemory;
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer() {
          memory = VirtualMemory.reserve(byteLength, { shareable: true });
          return memory.grow(byteLength);
        },
        warmUp: warmUp(driver, 400),
        give: (buffer) => child.give(buffer),
        after: () => memory.close(),
      }),
    ],
    close: () => child.end(),
  };
}
