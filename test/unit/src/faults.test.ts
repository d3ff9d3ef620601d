/**
 * Every driver call that an operation makes fails once, in a run of its own: the operation tells,
 * leaves nothing behind and nothing else current, and works when it is tried again.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { type FunctionName, functionNames } from '../../../ffi/functions.ts';
import { duplicateFd } from '../../../ffi/linux/libc.ts';
import { CUresult } from '../../../ffi/results.ts';
import { CudaError, CuffiError, IpcError } from '../../../src/errors.ts';
import {
  allocatePitched,
  Context,
  CudaEvent,
  copyPitched,
  copyPitchedSync,
  cudaArrayInterface,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  dlpack,
  fillPitched,
  float64,
  fromBuffer,
  fromCudaArrayInterface,
  fromDLPack,
  ManagedMemory,
  MappedMemory,
  MemoryPool,
  PinnedBuffer,
  pin,
  Stream,
  toDevice,
  VirtualMemory,
} from '../../../src/index.ts';
import type { IpcDescriptor } from '../../../src/ipc/descriptor.ts';
import {
  exportIpc,
  getIpcHandle,
  openIpcArray,
  openIpcBuffer,
  openIpcEvent,
} from '../../../src/ipc/index.ts';
import { withChecksum } from '../../../src/ipc/sharing/descriptor-codec.ts';
import { internalStream } from '../../../src/memory/internal-stream.ts';
import { nextLoopIteration } from '../../../src/poller.ts';
import { failing, keepingBooks, opening, withFaults } from '../../support/faults.ts';
import { iterations } from '../../support/iterations.ts';
import { Latch } from '../../support/latch.ts';
import { leaves } from '../../support/left-open.ts';
import { descriptorNumbers, openedSince, watchMappings } from '../../support/process-state.ts';
import { emulate, ForeignContext } from './emulate.ts';
import { OtherProcess } from './ipc/peer/support.ts';

interface Room {
  readonly context: Context;
  readonly stream: Stream;
  readonly event: CudaEvent;
  readonly shared: CudaEvent;
  readonly buffer: DeviceBuffer;
  readonly latch: Latch;
}

/** What a program may ask for, each made and closed again. */
const operations: Readonly<Record<string, (room: Room) => unknown>> = {
  'allocating a buffer': ({ context }) => DeviceBuffer.allocate(4096, { context }).close(),
  'using a memory pool': ({ context, stream }) => {
    const pool = MemoryPool.create({ context, maxSize: 32 << 20 });
    try {
      pool.allocate(4096, { stream }).close();
      pool.allocate(4096).close();
      return [pool.used, pool.reservedHigh, pool.reuse, pool.releaseThreshold, pool.access(0)];
    } finally {
      pool.close({ buffers: true });
    }
  },
  'growing virtual memory': ({ context }) => {
    using memory = VirtualMemory.reserve(8 << 20, { context });
    memory.grow(1000);
    memory.grow(5 << 20);
  },
  'giving memory back behind held work': ({ context, stream, latch }) =>
    whileHeld(latch, stream, () => {
      using buffer = DeviceBuffer.allocate(64, { context });
      buffer.fill(1, { stream });
      // So many that they wait behind a fence of their own.
      for (let n = 0; n < 12; n += 1) DeviceBuffer.allocate(64, { context }).close();
    }),
  'giving memory of a pool back behind held work': ({ context, stream, latch }) =>
    whileHeld(latch, stream, () => {
      using pool = MemoryPool.create({ context, maxSize: 32 << 20 });
      using buffer = pool.allocate(4096, { stream });
      buffer.fill(1, { stream });
    }),
  'creating a stream': ({ context }) => Stream.create({ context }).close(),
  'creating an event': ({ context }) => CudaEvent.create({ context }).close(),
  'creating an interprocess event': ({ context }) =>
    CudaEvent.create({ context, interprocess: true }).close(),
  'asking for memory': ({ context }) => context.memoryInfo(),
  'asking for priorities': ({ context }) => context.streamPriorityRange(),
  'setting a limit': ({ context }) => context.setLimit('stackSize', 2048),
  'finding the current context': () => Context.current(),
  'synchronising a context': ({ context }) => context.synchronizeSync(),
  'asking for the traits of a stream': ({ stream }) => [
    stream.priority,
    stream.nonBlocking,
    stream.done,
  ],
  'borrowing a stream': ({ stream }) => Stream.fromHandle(stream.handle).close(),
  'waiting for an event': ({ stream, event }) => stream.wait(event),
  'awaiting a stream': ({ stream }) => stream.synchronize(),
  'blocking on a stream': ({ stream }) => stream.synchronizeSync(),
  'blocking on the default stream': ({ context }) =>
    Stream.legacyDefault({ context }).synchronizeSync(),
  'recording an event': ({ event, stream }) => event.record(stream),
  'recording an event by default': ({ event }) => event.record(),
  'awaiting an event': ({ event }) => event.synchronize(),
  'blocking on an event': ({ event }) => event.synchronizeSync(),
  'filling by default': ({ buffer }) => buffer.fill(1),
  'filling in a stream': ({ buffer, stream }) => buffer.fill(1, { stream }),
  'copying on the device': ({ buffer }) => buffer.copyTo(buffer),
  'copying to the device': ({ buffer }) => buffer.copyFrom(new Uint8Array(64)),
  'copying to the device in a stream': ({ buffer, stream }) =>
    buffer.copyFrom(new Uint8Array(64), { stream }),
  'copying to the device, blocking': ({ buffer }) => buffer.copyFromSync(new Uint8Array(64)),
  'copying a large array to the device': ({ context }) =>
    withLarge(context, (buffer) => buffer.copyFrom(new Uint8Array(buffer.byteLength))),
  'copying a large array to the host': ({ context }) =>
    withLarge(context, (buffer) => buffer.copyToHost()),
  'allocating rows': ({ context }) => allocatePitched(100, 10, { context }).buffer.close(),
  'filling rows': ({ buffer, stream }) =>
    fillPitched({ memory: buffer, rowPitch: 100 }, 1, { width: 9, height: 3 }, { stream }),
  'copying rows on the device': ({ buffer, stream }) =>
    copyPitched(
      { memory: buffer, rowPitch: 100 },
      { memory: buffer, rowPitch: 100, byteOffset: 50 },
      { width: 9, height: 3 },
      { stream },
    ),
  'copying rows to the device': ({ buffer }) =>
    copyPitched(
      { memory: buffer, rowPitch: 100 },
      { memory: new Uint8Array(300), rowPitch: 100 },
      { width: 9, height: 3 },
    ),
  'copying rows to the host, blocking': ({ buffer }) =>
    copyPitchedSync(
      { memory: new Uint8Array(300), rowPitch: 100 },
      { memory: buffer, rowPitch: 100 },
      { width: 9, height: 3 },
    ),
  'copying to the host': ({ buffer }) => buffer.copyToHost(),
  'copying to the host, blocking': ({ buffer, stream }) =>
    buffer.copyToHostSync(undefined, { stream }),
  'making an array of nested arrays': async ({ context, stream }) =>
    (await toDevice([[1, 2]], { context, stream })).close(),
  'making an array of another': ({ context }) =>
    withMatrix(context, async (matrix) => {
      const corner = matrix.slice({ stop: 3 }, { stop: 2 });
      (await toDevice(corner.T)).close();
      corner.copy({ order: 'F' }).close();
    }),
  'copying a column of an array': ({ context }) =>
    withMatrix(context, async (matrix) => {
      const column = matrix.slice('...', 3);
      await column.copyFrom(await column.copyToHost());
    }),
  'copying a column of an array, blocking': ({ context, stream }) =>
    withMatrix(context, (matrix) => {
      const column = matrix.slice('...', 3).withStream(stream);
      column.copyFromSync(column.copyToHostSync());
    }),
  'copying an array over itself': ({ context }) =>
    withMatrix(context, (matrix) => {
      const row = matrix.slice(0, { stop: 3 });
      row.slice({ step: -1 }).copyTo(row);
    }),
  'giving an array away and taking it back': ({ buffer, context, stream }) => {
    const array = fromBuffer(buffer, [8, 8], float64);
    fromCudaArrayInterface({ ...cudaArrayInterface(array) }, { stream, context }).close();
    fromDLPack(dlpack(array, { stream }), { stream }).close();
  },
  'setting items of an array': ({ context }) =>
    withMatrix(context, (matrix) => matrix.set([{ step: 2 }], 0.5)),
  'allocating pinned memory': ({ context }) => PinnedBuffer.allocate(4096, { context }).close(),
  'allocating pinned, mapped memory': ({ context }) =>
    PinnedBuffer.allocate(4096, { context, mapped: true }).close(),
  'allocating write-combined memory': ({ context }) =>
    PinnedBuffer.allocate(4096, { context, mapped: true, writeCombined: true }).close(),
  'allocating mapped memory': ({ context }) =>
    MappedMemory.create({ context }).allocate(4096).close(),
  'allocating managed memory': ({ context }) =>
    ManagedMemory.create({ context }).allocate(4096).close(),
  'prefetching and advising': ({ context }) => {
    const memory = ManagedMemory.create({ context });
    using buffer = memory.allocate(4096);
    memory.prefetch(buffer, context.device);
    memory.advise(buffer, 'accessedBy', context.device);
  },
  'pinning arrays': ({ context }) => {
    const apart = new ArrayBuffer(1 << 18);
    pin(new Uint8Array(apart, 0, 4096), new Uint8Array(apart, 1 << 17, 4096), { context }).close();
  },
  'exporting a buffer': ({ buffer }) => getIpcHandle(buffer),
  'exporting an event': ({ shared }) => getIpcHandle(shared),
  'opening a buffer': ({ buffer }) => openIpcBuffer(ofAnother(getIpcHandle(buffer))).close(),
  'sharing a pool, and opening its memory': async ({ context, stream }) => {
    const openOne = (): void => {
      using pool = MemoryPool.create({ context, maxSize: 1 << 20, shareable: true });
      using buffer = pool.allocate(4096, { stream });
      openShared(buffer);
    };
    await thenFlush(context, openOne);
  },
  'sharing virtual memory, and opening it': async ({ context }) => {
    const openOne = (): void => {
      using memory = VirtualMemory.reserve(4 << 20, { context, shareable: true });
      memory.grow(100);
      openShared(memory.grow(3 << 20));
    };
    await thenFlush(context, openOne);
  },
  'opening an array by its handle': ({ context }) =>
    thenFlush(context, () => {
      const handle = new Uint8Array(64);
      openIpcArray({ handle, shape: [8], dtype: float64 }, { context }).close();
    }),
  'opening an event': ({ shared }) => openIpcEvent(ofAnother(getIpcHandle(shared))).close(),
  'lending to a peer behind held work': ({ context, stream, shared, latch }) =>
    withPeer(context, async (other) => {
      using pool = MemoryPool.create({ context, maxSize: 1 << 20, shareable: true });
      using buffer = DeviceBuffer.allocate(4096, { context });
      using pooled = pool.allocate(4096, { stream });
      const all = [buffer, pooled, shared];
      await whileHeld(latch, stream, async () => {
        buffer.fill(1, { stream });
        await other.peer.send(all, { stream });
      });
      await other.peer.send(buffer);
      other.closeTaken();
      await someTurns();
    }),
  'borrowing from a peer behind held work': ({ context, stream, buffer, shared, latch }) =>
    withPeer(context, async (other) => {
      using pool = MemoryPool.create({ context, maxSize: 1 << 20, shareable: true });
      using pooled = pool.allocate(4096, { stream });
      const all = [buffer, pooled, shared];
      other.lend(
        all.map((object) => {
          const { descriptor, fds } = exportIpc(object);
          return { descriptor: ofAnother(descriptor) as IpcDescriptor, fds };
        }),
      );
      const receiving = other.peer.receive({ stream }) as Promise<DeviceBuffer[]>;
      receiving.catch(() => {});
      await someTurns();
      other.finish();
      const received = await receiving;
      const close = (): void => {
        for (const each of received) each.close();
      };
      try {
        await whileHeld(latch, stream, () => {
          received[0]?.fill(1, { stream });
          close();
        });
      } finally {
        close();
      }
    }),
};

/** So that what was sent comes while the work before it goes on. */
async function someTurns(): Promise<void> {
  for (let turns = 0; turns < 4; turns += 1) await nextLoopIteration();
}

/** A connection to another process, where nothing is left of what either has lent. */
const withPeer = (context: Context, use: (other: OtherProcess) => Promise<void>): Promise<void> =>
  thenFlush(context, async () => {
    const other = new OtherProcess();
    try {
      await use(other);
    } finally {
      await other.end();
    }
  });

/** So wide that a column passes through memory of its own on the device. */
async function withMatrix(
  context: Context,
  use: (matrix: DeviceArray<typeof float64>) => unknown,
): Promise<void> {
  using matrix = deviceArray([100, 100], float64, { context });
  await use(matrix);
}

/** Opens a buffer as another process would. */
function openShared(buffer: DeviceBuffer): void {
  const { descriptor, fds } = exportIpc(buffer);
  openIpcBuffer(ofAnother(descriptor), {
    context: buffer.context,
    fds: fds.map(duplicateFd),
  }).close();
}

/** What is queued behind a held stream, and given back when that goes on. */
async function whileHeld(latch: Latch, stream: Stream, use: () => unknown): Promise<void> {
  latch.word.shut();
  // Made when it is first needed, and kept: a failing call may be what it is needed for.
  internalStream(latch.context, 'frees');
  try {
    latch.hold(stream);
    await use();
  } finally {
    latch.open();
    await latch.context.flush();
  }
}

/** What is given back when the work before it is done. */
async function thenFlush(context: Context, use: () => unknown): Promise<void> {
  try {
    await use();
  } finally {
    await context.flush();
  }
}

/** What passes through staging memory, which is given back at the end. */
async function withLarge(
  context: Context,
  use: (buffer: DeviceBuffer) => Promise<unknown>,
): Promise<void> {
  using buffer = DeviceBuffer.allocate(2 ** 20 + 1, { context });
  try {
    await use(buffer);
  } finally {
    await context.flush();
  }
}

const ofAnother = (descriptor: object): unknown =>
  withChecksum({ ...descriptor, pid: 2 ** 30, pidNamespace: 1 } as never);

/** A driver that also opens the handles of its own process, in a room that is used already. */
function furnish() {
  const emulated = emulate();
  const { driver: booked, open } = keepingBooks({
    ...emulated,
    cuIpcOpenMemHandle_v2: (out) => emulated.cuMemAlloc_v2(out, 4096),
    cuIpcCloseMemHandle: (address) => emulated.cuMemFree_v2(address),
    cuIpcOpenEventHandle: (out) => emulated.cuEventCreate(out, 2),
  });
  // One driver throughout: another one that is selected has contexts of its own.
  const { driver, fail, mend } = withFaults(booked, functionNames);
  selectDriver(driver);
  const room = (): Room => ({
    context: Context.primary(),
    stream: Stream.create(),
    event: CudaEvent.create(),
    shared: CudaEvent.create({ interprocess: true }),
    buffer: DeviceBuffer.allocate(4096),
    latch: new Latch(),
  });
  return { open, fail, mend, room };
}

function leave({ stream, event, shared, buffer, latch }: Room): void {
  latch[Symbol.dispose]();
  for (const resource of [buffer, shared, event, stream]) resource.close();
}

/** The calls that an operation makes, in order. */
async function callsOf(operation: (room: Room) => unknown): Promise<FunctionName[]> {
  const { room: make } = furnish();
  const room = make();
  await operation(room);
  const recorder = recordCalls();
  await operation(room);
  recorder.stop();
  leave(room);
  return recorder.calls.map((call) => call.name as FunctionName);
}

/** What nobody can make up for: what the driver does not take back stays. */
const irreparable: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuMemFree_v2',
  'cuMemFreeAsync',
  'cuMemPoolDestroy',
  'cuMemUnmap',
  'cuMemRelease',
  'cuMemAddressFree',
  'cuStreamDestroy_v2',
  'cuEventDestroy_v2',
  'cuIpcCloseMemHandle',
  'cuMemHostUnregister',
  'cuMemFreeHost',
]);

const { CUDA_ERROR_OUT_OF_MEMORY: OUT_OF_MEMORY } = CUresult;

/** What any function may return in place of success, of a context that is lost apart. */
const anywhere: readonly CUresult[] = [
  CUresult.CUDA_ERROR_INVALID_VALUE,
  CUresult.CUDA_ERROR_INVALID_CONTEXT,
  CUresult.CUDA_ERROR_INVALID_HANDLE,
  CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
  CUresult.CUDA_ERROR_NOT_SUPPORTED,
  CUresult.CUDA_ERROR_UNKNOWN,
];

/** The statuses of a context that no longer exists. */
const gone: ReadonlySet<CUresult> = new Set([
  CUresult.CUDA_ERROR_INVALID_CONTEXT,
  CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
]);

/** What allocates, maps, or makes something that has memory: there may be no room for it. */
const needsRoom = (name: FunctionName): boolean =>
  opening.has(name) || /Alloc|Create|Open|Import|Export|Register|Map(?!ped)|Retain/.test(name);

/** The statuses with which a call fails: all in the soak, else one or two, by the call's number. */
function statusesOf(name: FunctionName, at: number, hasHeldWork: boolean): readonly CUresult[] {
  const possible = needsRoom(name) ? [OUT_OF_MEMORY, ...anywhere] : anywhere;
  // The work in a context that is gone is over: where work is held up, no driver says so.
  const isEntry = hasHeldWork && name === 'cuCtxPushCurrent_v2';
  const plausible = isEntry ? possible.filter((status) => !gone.has(status)) : possible;
  const first = plausible[at % plausible.length] as CUresult;
  // What is made is most often refused for lack of room.
  const some = needsRoom(name) ? [...new Set([OUT_OF_MEMORY, first])] : [first];
  return iterations(0, 1) === 1 ? plausible : some;
}

/** Whether a call is one of those that fail: all in the soak, else the first and last of a name. */
function isTried(calls: readonly FunctionName[], at: number): boolean {
  const name = calls[at];
  const count = (part: readonly FunctionName[]): number =>
    part.filter((each) => each === name).length;
  const rank = Math.min(count(calls.slice(0, at)), count(calls.slice(at + 1)));
  return rank < iterations(1, calls.length);
}

const withoutEvents = (open: ReadonlySet<string>): string[] =>
  [...open].filter((entry) => !entry.startsWith('cuEventCreate')).sort();

const MOST_TURNS = 2000;

const countTimers = (): number =>
  process.getActiveResourcesInfo().filter((kind) => /Timeout|Immediate/.test(kind)).length;

/** Has the `at`-th call of an operation fail, and looks at what is left then. */
async function failAt(
  operation: (room: Room) => unknown,
  calls: readonly FunctionName[],
  at: number,
  status: CUresult,
): Promise<void> {
  const name = calls[at] as FunctionName;
  const step = `${name}, call ${at + 1} of ${calls.length}, status ${status}`;
  using mappings = watchMappings();
  const { open, fail, mend, room: make } = furnish();
  const room = make();
  await operation(room);
  using foreign = new ForeignContext();
  const before = new Set(open);
  const descriptors = descriptorNumbers();
  const [mapped, timers] = [mappings.open.size, countTimers()];
  const { free } = room.context.memoryInfo();
  const resources = room.context.resources.size;

  const nth = calls.slice(0, at + 1).filter((call) => call === name).length;
  const attempt = async (): Promise<unknown> => {
    fail(name, nth, status);
    try {
      await operation(room);
      return undefined;
    } catch (error) {
      return error;
    } finally {
      mend();
      // What was freed in a stream's order is free when the stream got there.
      await room.context.synchronize();
      // A flush may be what has failed.
      await room.context.releases.flush();
    }
  };
  const error = await attempt();
  if (error !== undefined) {
    assert.ok(error instanceof CuffiError, `${step}: ${error}`);
    let cause: unknown = error;
    while (cause instanceof IpcError) cause = cause.cause;
    assert.ok(cause instanceof CudaError, `${step}: ${error}`);
    assert.deepEqual([cause.call, cause.status], [name, status], step);
  }
  assert.ok(foreign.isCurrent, `${step}: another context is current`);
  assert.equal(room.context.resources.size, resources, `${step}: objects stay registered`);
  const next = calls[at + 1];
  const isGivingBack =
    irreparable.has(name) ||
    (name === 'cuCtxPushCurrent_v2' && next !== undefined && irreparable.has(next));
  if (!isGivingBack) {
    assert.deepEqual(withoutEvents(open), withoutEvents(before), `${step}: left open`);
    assert.deepEqual(openedSince(descriptors), [], `${step}: descriptors left open`);
    assert.equal(mappings.open.size, mapped, `${step}: left mapped`);
    // What is under way may take some turns of the loop.
    for (let turns = 0; turns < MOST_TURNS && countTimers() > timers; turns += 1)
      await new Promise((resolve) => setTimeout(resolve, 1));
    assert.ok(countTimers() <= timers, `${step}: timers left`);
    assert.equal(room.context.memoryInfo().free, free, `${step}: left allocated`);
  }

  await operation(room);
  await room.context.synchronize();
  assert.ok(foreign.isCurrent, `${step}: another context is current after the second try`);
  if (!isGivingBack && !isDeepStrictEqual(new Set(open), before)) {
    // A few events more may be kept for the next time. They are used then, and none is made.
    assert.deepEqual(withoutEvents(open), withoutEvents(before), `${step}: left by the second try`);
    let [kept, isMore] = [open.size, true];
    for (let tries = 0; isMore && tries < 5; tries += 1) {
      await attempt();
      await operation(room);
      await room.context.synchronize();
      isMore = open.size > kept;
      kept = open.size;
    }
    assert.ok(!isMore, `${step}: more are left by each try: ${[...open]}`);
  }
  leave(room);
  // So many drivers are made here that what is left of them would use up the descriptors.
  await room.context.reset().catch(() => {});
}

describe('calls of which one fails', () => {
  for (const [what, operation] of Object.entries(operations)) {
    test(`${what}: whichever call fails, nothing leaks and it works again`, async () => {
      // Each fault has a driver of its own.
      leaves(
        'descriptor of cuffi.virtual',
        'one is kept for each driver',
        Number.POSITIVE_INFINITY,
      );
      leaves(/ (failedUnlocks|sharedPools)$/, 'the release was made to fail');
      const calls = await callsOf(operation);
      assert.ok(calls.length > 0 || what === 'exporting an event');
      for (const [at, name] of calls.entries()) {
        // A context that cannot be left is beyond repair, and happens to no program.
        if (name === 'cuCtxPopCurrent_v2' || !isTried(calls, at)) continue;
        for (const status of statusesOf(name, at, what.endsWith('behind held work')))
          await failAt(operation, calls, at, status);
      }
    });
  }

  test('a context that cannot be opened is asked for again, by the next use', () => {
    for (const name of ['cuDevicePrimaryCtxRetain', 'cuDeviceGetCount', 'cuDeviceGet'] as const) {
      selectDriver(failing(emulate(), name, 1, 999));
      assert.throws(() => DeviceBuffer.allocate(16), { name: 'CudaError', call: name });
      DeviceBuffer.allocate(16).close();
    }
  });

  test('a reset that fails throws, and the context works again', () => {
    for (const name of ['cuDevicePrimaryCtxRelease_v2', 'cuDevicePrimaryCtxReset_v2'] as const) {
      selectDriver(failing(emulate(), name, 1, 999));
      const context = Context.primary();
      const buffer = DeviceBuffer.allocate(16);
      assert.throws(() => context.resetSync(), { name: 'CudaError', call: name });
      assert.equal(buffer.closed, true);
      DeviceBuffer.allocate(16).close();
    }
  });
});
