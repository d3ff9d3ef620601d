/**
 * A word of a buffer is changed, and the buffer goes to another process, which reads that word on
 * the device and answers with it. Three rows that are never mixed: the receiver has it mapped
 * already; it is new, of a pool that the receiver knows; it comes for the first time.
 */
import { Context, DeviceBuffer, MemoryPool, Stream, VirtualMemory } from 'cuffi';
import { getIpcHandle } from 'cuffi/ipc';
import { sizeName } from '../bytes.ts';
import type { DriverChoice } from '../driver.ts';
import type { HandOverChildren } from '../programs/hand-over-children.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { connectionCase } from './connection.ts';
import { PUBLIC } from './names.ts';
import { polledCase } from './polled.ts';
import { handOver, warmUp } from './turns.ts';

const MIB = 1 << 20;
const SIZES = [4 << 10, MIB, 64 * MIB, 1024 * MIB];
/** From here on it takes long, and much memory, without a GPU. */
const LARGE = 1024 * MIB;

const POINTS = 'ready and done points';

interface Opening {
  readonly byteLength: number;
  readonly driver: DriverChoice;
  readonly children: HandOverChildren;
}

interface Row extends Pick<Case, 'name' | 'what' | 'calls' | 'peers' | 'aims'> {
  open(opening: Opening): Promise<OpenCase>;
}

const rows: readonly Row[] = [
  {
    name: 'hand-over.mapped',
    what: 'a buffer that the receiver has mapped, and its acknowledgement',
    calls: 100,
    peers: [
      { peer: 'C', batch: 'handOver.mapped' },
      { peer: 'C', batch: 'handOver.mappedPoints', name: `C, ${POINTS}` },
      ...inPeers('handOver.mapped', 'numba', 'cuda.core', 'torch'),
    ],
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
  connectionCase,
  ...rows.flatMap(({ open, ...row }) =>
    SIZES.map((byteLength) => ({
      ...row,
      variant: sizeName(byteLength),
      byteLength,
      needsGpu: byteLength >= LARGE,
      open: (driver: DriverChoice, children: HandOverChildren) =>
        open({ byteLength, driver, children }),
    })),
  ),
  polledCase,
];

async function openMapped({ byteLength, driver, children }: Opening): Promise<OpenCase> {
  const buffer = DeviceBuffer.allocate(byteLength);
  const stream = Stream.create({ nonBlocking: true });
  // Each has one of its own: what is copied is in memory of its size.
  const { child } = await children.of(`hand-over.mapped, ${byteLength}`, {
    givesUp: 'all but the first',
    byteLength,
  });
  const host = new Uint8Array(byteLength);
  // A second of copying is worth few samples: one a pass.
  const rounds = byteLength >= LARGE ? 5 : byteLength > MIB ? 7 : 31;
  const copying = { buffer: () => buffer, calls: 1, rounds };
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () => buffer,
        give: () => child.give(buffer),
        warmUpMs: warmUp(driver, true),
      }),
      // The change is only queued: the receiver's stream waits for it.
      handOver({
        name: `${PUBLIC}, ${POINTS}`,
        buffer: () => buffer,
        change: (changed, word) =>
          changed.subarray(0, 4).fill(word, { elementByteLength: 4, stream }),
        give: () => child.give(buffer, stream),
        warmUpMs: warmUp(driver, false),
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
      await children.end();
      buffer.close();
      stream.close();
    },
  };
}

async function openPool({ byteLength, driver, children }: Opening): Promise<OpenCase> {
  const pool = MemoryPool.create({ shareable: true });
  const { child, isNew } = await children.of('hand-over.pool');
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () => pool.allocate(byteLength),
        warmUpMs: warmUp(driver, isNew),
        give: (buffer) => child.give(buffer),
        after: (buffer) => buffer.close(),
      }),
    ],
    close() {
      pool.close({ buffers: true });
    },
  };
}

async function openLegacy({ byteLength, driver, children }: Opening): Promise<OpenCase> {
  const buffer = DeviceBuffer.allocate(byteLength);
  const { child, isNew } = await children.of('hand-over.first.legacy');
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () => buffer,
        give: () => child.give(buffer),
        warmUpMs: warmUp(driver, isNew),
      }),
      handOver({
        name: 'cuffi, process.send',
        buffer: () => buffer,
        warmUpMs: warmUp(driver, false),
        give: () => child.tell(getIpcHandle(buffer)),
      }),
    ],
    close() {
      buffer.close();
    },
  };
}

async function openFirstPool({ byteLength, driver, children }: Opening): Promise<OpenCase> {
  const context = Context.primary();
  const { child, isNew } = await children.of('hand-over.first.pool', { givesUp: 'pools too' });
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer: () =>
          MemoryPool.create({ context, shareable: true, releaseThreshold: 0 }).allocate(byteLength),
        warmUpMs: warmUp(driver, isNew),
        give: (buffer) => child.give(buffer),
        after(buffer) {
          (buffer.resource as MemoryPool).close({ buffers: true });
          context.synchronizeSync();
        },
      }),
    ],
    close() {},
  };
}

async function openVirtual({ byteLength, driver, children }: Opening): Promise<OpenCase> {
  const { child, isNew } = await children.of('hand-over.first.virtual');
  let memory: VirtualMemory;
  return {
    contestants: [
      handOver({
        name: PUBLIC,
        buffer() {
          memory = VirtualMemory.reserve(byteLength, { shareable: true });
          return memory.grow(byteLength);
        },
        warmUpMs: warmUp(driver, isNew),
        give: (buffer) => child.give(buffer),
        after: () => memory.close(),
      }),
    ],
    close() {},
  };
}
