/**
 * Every kind of memory, allocated and freed many times, and refused in between: nothing is left of
 * it, neither on the device nor in the process.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { cu, selectDriver } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import {
  Context,
  Device,
  DeviceBuffer,
  DeviceMemory,
  deviceArray,
  float32,
  ManagedMemory,
  MappedMemory,
  MemoryPool,
  PinnedBuffer,
  pin,
  Stream,
  uint8,
  VirtualMemory,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { keepingBooks, withFaults } from '../support/faults.ts';
import { iterations } from '../support/iterations.ts';
import {
  collectUntil,
  type ProcessState,
  processState,
  watchMappings,
} from '../support/process-state.ts';

const MIB = 1 << 20;
/** After so many cycles the GPU is waited for, so that what waits to be freed stays little. */
const BETWEEN_FLUSHES = 50;

/** A kind of memory. */
interface Kind {
  /** Why this kind is unavailable here. */
  readonly skip?: string | false;
  /** Allocates, uses and frees. */
  readonly cycle: (round: number) => void;
  /** How many allocations a cycle makes. Default 1. */
  readonly allocations?: number;
  /** The driver's calls in a cycle that may find no room, and which of them. */
  readonly refusals: readonly (readonly [name: FunctionName, nth: number])[];
  /** Asks for more than there is. */
  readonly tooMuch?: () => unknown;
}

// One for the whole file: what was made with another driver is useless.
const books = keepingBooks({ ...cu });
const faults = withFaults(books.driver, [
  'cuMemAlloc_v2',
  'cuMemPoolCreate',
  'cuMemAllocFromPoolAsync',
  'cuMemHostRegister_v2',
  'cuMemHostAlloc',
  'cuMemAllocManaged',
  'cuMemAddressReserve',
  'cuMemCreate',
]);
selectDriver(faults.driver);

const device = Device.get();
const context = Context.primary();
const stream = Stream.create({ nonBlocking: true });
const lacks = (what: Parameters<Device['attribute']>[0]): string | false =>
  device.attribute(what) === 0 && `the device lacks ${what}`;

const sizeOf = (round: number): number => [1, 1000, MIB, 5 * MIB][round % 4] as number;
/** Some are looked at: their memory goes when the view was collected. */
const isViewed = (round: number): boolean => round % 20 === 0;

/** Typed arrays that share no page, and device memory of their size. */
const apart = new ArrayBuffer(3 * MIB);
const arrays = [new Uint8Array(apart, 0, 5000), new Uint8Array(apart, MIB, 5000)] as const;

const kinds: Readonly<Record<string, Kind>> = {
  'device memory': {
    cycle(round) {
      const buffer = DeviceBuffer.allocate(sizeOf(round));
      buffer.fill(1);
      buffer.close();
    },
    refusals: [['cuMemAlloc_v2', 1]],
    tooMuch: () => DeviceBuffer.allocate(2 * device.totalMemory),
  },
  'private device memory': {
    cycle(round) {
      const buffer = DeviceMemory.create({ private: true }).allocate(sizeOf(round));
      buffer.copyToHostSync(new Uint8Array(1));
      buffer.close();
    },
    refusals: [['cuMemAlloc_v2', 1]],
    tooMuch: () => DeviceMemory.create({ private: true }).allocate(2 * device.totalMemory),
  },
  'arrays, and what their copies take': {
    allocations: 3,
    cycle() {
      using array = deviceArray([200, 200], float32);
      const column = array.slice('...', 1);
      column.fill(1);
      column.copyFromSync(column.copyToHostSync());
    },
    refusals: [
      ['cuMemAlloc_v2', 1],
      ['cuMemAlloc_v2', 2],
    ],
    tooMuch: () => deviceArray([2, device.totalMemory], uint8),
  },
  'memory of a pool': {
    skip: !MemoryPool.supported() && 'the device has no memory pools',
    allocations: 20,
    cycle() {
      const pool = MemoryPool.create({ maxSize: 64 * MIB });
      try {
        for (let round = 0; round < 20; round += 1) {
          const buffer = pool.allocate(sizeOf(round), { stream });
          buffer.fill(1, { stream });
          buffer.close();
        }
      } finally {
        pool.close({ buffers: true });
      }
    },
    refusals: [
      ['cuMemPoolCreate', 1],
      ['cuMemAllocFromPoolAsync', 3],
    ],
    tooMuch() {
      using pool = MemoryPool.create({ maxSize: 64 * MIB });
      pool.allocate(65 * MIB, { stream });
    },
  },
  'page-locked memory': {
    skip: lacks('hostRegisterSupported'),
    cycle(round) {
      using pinned = PinnedBuffer.allocate(100_000, { mapped: round % 2 === 0 });
      if (isViewed(round)) new Uint8Array(pinned.buffer)[0] = 1;
    },
    refusals: [['cuMemHostRegister_v2', 1]],
    // More than any process has addresses for.
    tooMuch: () => PinnedBuffer.allocate(2 ** 50),
  },
  'write-combined memory': {
    cycle(round) {
      using pinned = PinnedBuffer.allocate(100_000, { writeCombined: true });
      if (isViewed(round)) new Uint8Array(pinned.buffer)[0] = 1;
    },
    refusals: [['cuMemHostAlloc', 1]],
  },
  'pinned arrays': {
    skip: lacks('hostRegisterSupported'),
    allocations: 2,
    cycle: () => pin(...arrays).close(),
    refusals: [
      ['cuMemHostRegister_v2', 1],
      ['cuMemHostRegister_v2', 2],
    ],
    tooMuch: () => pin(...arrays, apart),
  },
  'mapped memory': {
    skip: lacks('hostRegisterSupported') || lacks('canMapHostMemory'),
    cycle(round) {
      const buffer = MappedMemory.create().allocate(100_000);
      if (isViewed(round)) new Uint8Array(buffer.buffer)[0] = 1;
      else buffer.fill(1);
      buffer.close();
    },
    refusals: [['cuMemHostRegister_v2', 1]],
    tooMuch: () => MappedMemory.create().allocate(2 ** 50),
  },
  'managed memory': {
    skip: lacks('managedMemory'),
    cycle(round) {
      const memory = ManagedMemory.create();
      const buffer = memory.allocate(sizeOf(round));
      buffer.fill(1);
      if (isViewed(round) && memory.hostAccessible) {
        context.synchronizeSync();
        new Uint8Array(buffer.buffer)[0] = 1;
      }
      buffer.close();
    },
    refusals: [['cuMemAllocManaged', 1]],
    tooMuch: () => ManagedMemory.create().allocate(device.totalMemory + 1),
  },
  'virtual memory': {
    skip: !VirtualMemory.supported(device) && 'the device has no virtual memory management',
    allocations: 2,
    cycle() {
      using memory = VirtualMemory.reserve(16 * MIB);
      memory.grow(1);
      memory.grow(5 * MIB).fill(1);
    },
    refusals: [
      ['cuMemAddressReserve', 1],
      ['cuMemCreate', 1],
      ['cuMemCreate', 2],
    ],
    tooMuch() {
      using memory = VirtualMemory.reserve(2 * device.totalMemory);
      memory.grow(memory.reservedByteLength);
    },
  },
};

/** What the process holds, with what the driver gave out and what is mapped. */
interface State extends ProcessState {
  /** Memory alone: a context keeps streams and events of its own for later use. */
  readonly open: readonly string[];
  readonly mapped: number;
}

/** Everything done and freed, also what waits for a view to be collected, as far as it goes. */
async function settled(read: () => State, isEnough: (state: State) => boolean): Promise<State> {
  await context.synchronize();
  await context.flush();
  if (!isEnough(read())) await collectUntil(() => isEnough(read()));
  return read();
}

/** Whether nothing is lost; more free memory than before is what the driver gave back late. */
const isAsBefore = (state: State, before: State): boolean =>
  isDeepStrictEqual({ ...state, free: before.free }, before) &&
  (emulated ? state.free === before.free : state.free >= before.free);

/** The driver takes memory for itself now and then, once; what leaks is lost in every round. */
const ROUNDS = emulated ? 1 : 3;

async function repeat(cycle: Kind['cycle'], cycles: number): Promise<void> {
  for (let round = 0; round < cycles; round += 1) {
    cycle(round);
    if (round % BETWEEN_FLUSHES === 0) await context.flush();
  }
}

describe('allocations', () => {
  for (const [name, kind] of Object.entries(kinds)) {
    const { skip = false, cycle, allocations = 1, refusals, tooMuch } = kind;

    test(`${name}: many allocations leave nothing behind, nor does one that fails`, {
      skip,
    }, async () => {
      using mappings = watchMappings();
      const read = (): State => ({
        ...processState(context),
        open: [...books.open].filter((what) => what.startsWith('cuMem')).sort(),
        mapped: mappings.open.size,
      });
      // The first ones also make what the driver and V8 keep.
      const { open } = read();
      await repeat(cycle, 12);
      const rest = (): Promise<State> =>
        settled(read, (state) => state.mapped === 0 && isDeepStrictEqual(state.open, open));
      let before = await rest();
      const requireAsBefore = async (): Promise<void> => {
        const state = await settled(read, (now) => isAsBefore(now, before));
        if (!isAsBefore(state, before)) assert.deepEqual(state, before);
      };

      for (let round = 1; ; round += 1) {
        await repeat(cycle, iterations(32, 10_000) / allocations);
        const after = await settled(read, (state) => isAsBefore(state, before));
        if (isAsBefore(after, before) || round === ROUNDS) break;
        before = after;
      }
      await requireAsBefore();
      for (let round = 0; round < iterations(1, 100); round += 1) {
        for (const [call, nth] of refusals) {
          faults.fail(call, nth, CUresult.CUDA_ERROR_OUT_OF_MEMORY);
          assert.throws(() => cycle(round), { call, code: 'CUDA_ERROR_OUT_OF_MEMORY' });
          await requireAsBefore();
        }
        if (!tooMuch) continue;
        assert.throws(tooMuch, { name: /^(Cuda|Range)Error$/, message: /memory|bytes|page/ });
        await requireAsBefore();
      }
      await repeat(cycle, 8);
      await requireAsBefore();
    });
  }
});
