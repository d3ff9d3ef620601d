/**
 * Which calls wait for a stream that waits for a word of memory: a non-blocking one, the legacy stream,
 * a blocking one. Each call has objects of its own, which are made before.
 */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Argument, type Bytes, struct } from '../../support/calls.ts';
import { Asked, NON_BLOCKING, question, text } from './asked.ts';
import type { FactGroup, Note } from './facts.ts';
import { access, FD, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

type Call = readonly [FunctionName, ...Argument[]];

const BLOCKING = 0;
const LEGACY = 1;
const DISABLE_TIMING = 2;
const INTERPROCESS = 4;
const LAZY_PEER_ACCESS = 1;
const RELAXED = 2;
const GREATER_OR_EQUAL = 0;
const DEVICE = 2;
const GLOBAL = 1;
const STACK_SIZE = 0;
const MAX_DYNAMIC_SHARED = 8;

/** The streams of the process that is asked, and another process that shares objects with it. */
export interface Made {
  readonly asked: Asked;
  readonly other: Asked;
  readonly waiting: number;
  readonly free: number;
  readonly blocking: number;
}

/** Makes what a call needs, and returns the call. */
export type Prepare = (made: Made) => Promise<Call>;

// ---- Objects that calls need ----

const event = ({ asked }: Made, flags = DISABLE_TIMING): Promise<number> =>
  asked.made('cuEventCreate', 'OUT0', flags);

async function recorded(made: Made, stream: number): Promise<number> {
  const one = await event(made);
  await made.asked.made('cuEventRecord', one, stream);
  return one;
}

const pinned = ({ asked }: Made): Promise<number> => asked.made('cuMemHostAlloc', 'OUT0', MIB, 3);
const managed = ({ asked }: Made): Promise<number> =>
  asked.made('cuMemAllocManaged', 'OUT0', UNIT, GLOBAL);

const pool = (asked: Asked, values: object = {}): Promise<number> =>
  asked.made('cuMemPoolCreate', 'OUT0', poolProperties(values));

async function poolMemory(asked: Asked, stream: number, from?: number): Promise<number> {
  const memory = await asked.made(
    'cuMemAllocFromPoolAsync',
    'OUT0',
    MIB,
    from ?? (await pool(asked)),
    stream,
  );
  await asked.made('cuStreamSynchronize', stream);
  return memory;
}

const physical = (asked: Asked): Promise<number> =>
  asked.made('cuMemCreate', 'OUT0', UNIT, physicalProperties({ requestedHandleTypes: FD }), 0);
const reserved = ({ asked }: Made): Promise<number> =>
  asked.made('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);

async function mapped(made: Made): Promise<number> {
  const { asked } = made;
  const [memory, handle] = [await reserved(made), await physical(asked)];
  await asked.made('cuMemMap', memory, UNIT, 0, handle, 0);
  await asked.made('cuMemSetAccess', memory, UNIT, access(3), 1);
  return memory;
}

/** The handle of memory of another process. */
const foreignHandle = async ({ other }: Made): Promise<{ base64: string }> => ({
  base64: (await other.call('cuIpcGetMemHandle', 'BLOCK', await other.memory(4 * MIB))).block,
});
const foreignMemory = async (made: Made): Promise<number> =>
  made.asked.made('cuIpcOpenMemHandle_v2', 'OUT0', await foreignHandle(made), LAZY_PEER_ACCESS);

const foreignEventHandle = async ({ other }: Made): Promise<{ base64: string }> => {
  const flags = INTERPROCESS | DISABLE_TIMING;
  const one = await other.made('cuEventCreate', 'OUT0', flags);
  return { base64: (await other.call('cuIpcGetEventHandle', 'BLOCK', one)).block };
};

async function foreignPool({ asked, other }: Made) {
  const theirs = await pool(other, { handleTypes: FD });
  const memory = await poolMemory(other, await other.stream(), theirs);
  const exported = await other.call('cuMemPoolExportToShareableHandle', 'OUT0', theirs, FD, 0);
  const fd = await other.sendFd(exported.int0, asked);
  const pointer: Bytes = {
    bytes: (await other.call('cuMemPoolExportPointer', 'BLOCK', memory)).block,
  };
  return { fd, pointer };
}

async function importedPool(made: Made) {
  const { fd, pointer } = await foreignPool(made);
  const handle = await made.asked.made('cuMemPoolImportFromShareableHandle', 'OUT0', fd, FD, 0);
  return { handle, pointer };
}

async function importedPointer(made: Made): Promise<number> {
  const { handle, pointer } = await importedPool(made);
  return made.asked.made('cuMemPoolImportPointer', 'OUT0', handle, pointer);
}

async function graph({ asked, free }: Made): Promise<number> {
  const memory = await asked.memory(MIB);
  await asked.made('cuStreamBeginCapture_v2', free, RELAXED);
  await asked.made('cuMemsetD8Async', memory, 1, 64, free);
  return asked.made('cuStreamEndCapture', free, 'OUT0');
}

const executable = async (made: Made): Promise<number> =>
  made.asked.made('cuGraphInstantiateWithFlags', 'OUT0', await graph(made), 0);

const rows = (memory: number): Record<string, number> => ({
  srcMemoryType: DEVICE,
  srcDevice: memory,
  srcPitch: 512,
  dstMemoryType: DEVICE,
  dstDevice: memory + MIB / 2,
  dstPitch: 512,
  WidthInBytes: 64,
  Height: 4,
});
const box = (memory: number): Record<string, number> => ({
  ...rows(memory),
  Depth: 2,
  srcHeight: 4,
  dstHeight: 4,
});

// ---- Calls ----

/** Calls that queue work in a stream, or ask for its work. */
export const inStream: Readonly<Record<string, (made: Made, stream: number) => Promise<Call>>> = {
  cuStreamQuery: async (_, stream) => ['cuStreamQuery', stream],
  cuStreamSynchronize: async (_, stream) => ['cuStreamSynchronize', stream],
  cuStreamGetFlags: async (_, stream) => ['cuStreamGetFlags', stream, 'OUT0'],
  cuEventRecord: async (made, stream) => ['cuEventRecord', await event(made), stream],
  cuStreamWaitEvent: async (made, stream) => [
    'cuStreamWaitEvent',
    stream,
    await recorded(made, made.free),
    0,
  ],
  cuMemsetD8Async: async ({ asked }, stream) => [
    'cuMemsetD8Async',
    await asked.memory(MIB),
    1,
    64,
    stream,
  ],
  cuMemcpyDtoDAsync_v2: async ({ asked }, stream) => {
    const memory = await asked.memory(MIB);
    return ['cuMemcpyDtoDAsync_v2', memory, memory + 4096, 64, stream];
  },
  'cuMemcpyHtoDAsync_v2 of 64 pageable bytes': async ({ asked }, stream) => [
    'cuMemcpyHtoDAsync_v2',
    await asked.memory(MIB),
    'BLOCK',
    64,
    stream,
  ],
  'cuMemcpyHtoDAsync_v2 of 1 MiB of pageable memory': async ({ asked }, stream) => [
    'cuMemcpyHtoDAsync_v2',
    await asked.memory(MIB),
    await asked.map(MIB),
    MIB,
    stream,
  ],
  'cuMemcpyHtoDAsync_v2 of page-locked memory': async (made, stream) => [
    'cuMemcpyHtoDAsync_v2',
    await made.asked.memory(MIB),
    await pinned(made),
    64,
    stream,
  ],
  'cuMemcpyDtoHAsync_v2 of 64 pageable bytes': async ({ asked }, stream) => [
    'cuMemcpyDtoHAsync_v2',
    'BLOCK',
    await asked.memory(MIB),
    64,
    stream,
  ],
  'cuMemcpyDtoHAsync_v2 of page-locked memory': async (made, stream) => [
    'cuMemcpyDtoHAsync_v2',
    await pinned(made),
    await made.asked.memory(MIB),
    64,
    stream,
  ],
  cuMemcpyPeerAsync: async ({ asked }, stream) => {
    const [memory, { context }] = [await asked.memory(MIB), asked];
    return ['cuMemcpyPeerAsync', memory, context, memory + 4096, context, 64, stream];
  },
  cuMemcpy2DAsync_v2: async ({ asked }, stream) => [
    'cuMemcpy2DAsync_v2',
    struct('CUDA_MEMCPY2D', rows(await asked.memory(MIB))),
    stream,
  ],
  cuMemcpy3DAsync_v2: async ({ asked }, stream) => [
    'cuMemcpy3DAsync_v2',
    struct('CUDA_MEMCPY3D', box(await asked.memory(MIB))),
    stream,
  ],
  cuStreamWriteValue32_v2: async ({ asked }, stream) => [
    'cuStreamWriteValue32_v2',
    stream,
    await asked.memory(64),
    1,
    0,
  ],
  'cuStreamWaitValue32_v2 that is satisfied': async ({ asked, free }, stream) => {
    const word = await asked.memory(64);
    await asked.made('cuMemsetD8Async', word, 0, 64, free);
    return ['cuStreamWaitValue32_v2', stream, word, 0, GREATER_OR_EQUAL];
  },
  cuLaunchHostFunc: async (made, stream) => [
    'cuLaunchHostFunc',
    stream,
    { symbol: 'sem_post' },
    await made.asked.map(4096),
  ],
  'cuLaunchKernel of a loaded kernel': async ({ asked }, stream) =>
    asked.launch((await asked.kernels()).k, stream),
  cuMemAllocFromPoolAsync: async ({ asked }, stream) => [
    'cuMemAllocFromPoolAsync',
    'OUT0',
    MIB,
    await pool(asked),
    stream,
  ],
  cuMemFreeAsync: async ({ asked, free }, stream) => [
    'cuMemFreeAsync',
    await poolMemory(asked, free),
    stream,
  ],
  'cuMemFreeAsync of plain memory': async ({ asked }, stream) => [
    'cuMemFreeAsync',
    await asked.memory(4 * MIB),
    stream,
  ],
  'cuMemFreeAsync of pool memory of another process': async (made, stream) => [
    'cuMemFreeAsync',
    await importedPointer(made),
    stream,
  ],
  cuMemPrefetchAsync: async (made, stream) => [
    'cuMemPrefetchAsync',
    await managed(made),
    UNIT,
    0,
    stream,
  ],
  cuGraphLaunch: async (made, stream) => ['cuGraphLaunch', await executable(made), stream],
  cuGraphUpload: async (made, stream) => ['cuGraphUpload', await executable(made), stream],
};

/** Calls on objects that no stream uses. */
export const others: Readonly<Record<string, Prepare>> = {
  cuCtxSynchronize: async () => ['cuCtxSynchronize'],
  cuMemGetInfo_v2: async () => ['cuMemGetInfo_v2', 'OUT0', 'OUT1'],
  cuCtxGetLimit: async () => ['cuCtxGetLimit', 'OUT0', STACK_SIZE],
  cuDevicePrimaryCtxRetain: async () => ['cuDevicePrimaryCtxRetain', 'OUT0', 0],
  'cuDevicePrimaryCtxRelease_v2, which is not the last': async ({ asked }) => {
    await asked.made('cuDevicePrimaryCtxRetain', 'OUT0', 0);
    return ['cuDevicePrimaryCtxRelease_v2', 0];
  },
  // Streams and events.
  'cuStreamCreateWithPriority of a non-blocking stream': async () => [
    'cuStreamCreateWithPriority',
    'OUT0',
    NON_BLOCKING,
    0,
  ],
  'cuStreamCreateWithPriority of a blocking stream': async () => [
    'cuStreamCreateWithPriority',
    'OUT0',
    BLOCKING,
    0,
  ],
  'cuStreamDestroy_v2 of a non-blocking stream': async ({ asked }) => [
    'cuStreamDestroy_v2',
    await asked.stream(NON_BLOCKING),
  ],
  'cuStreamDestroy_v2 of a blocking stream': async ({ asked }) => [
    'cuStreamDestroy_v2',
    await asked.stream(BLOCKING),
  ],
  'cuStreamBeginCapture_v2 of a non-blocking stream': async ({ asked }) => [
    'cuStreamBeginCapture_v2',
    await asked.stream(NON_BLOCKING),
    RELAXED,
  ],
  cuEventCreate: async () => ['cuEventCreate', 'OUT0', DISABLE_TIMING],
  'cuEventCreate of an interprocess event': async () => [
    'cuEventCreate',
    'OUT0',
    INTERPROCESS | DISABLE_TIMING,
  ],
  'cuEventQuery of a recorded event': async (made) => [
    'cuEventQuery',
    await recorded(made, made.free),
  ],
  'cuEventSynchronize of a recorded event': async (made) => [
    'cuEventSynchronize',
    await recorded(made, made.free),
  ],
  cuEventDestroy_v2: async (made) => ['cuEventDestroy_v2', await recorded(made, made.free)],
  'cuEventElapsedTime of recorded events': async (made) => {
    const events = [await event(made, 0), await event(made, 0)] as const;
    for (const one of events) await made.asked.made('cuEventRecord', one, made.free);
    await made.asked.made('cuStreamSynchronize', made.free);
    return ['cuEventElapsedTime', 'OUT0', ...events];
  },
  // Memory.
  'cuMemAlloc_v2 of 4 bytes': async () => ['cuMemAlloc_v2', 'OUT0', 4],
  'cuMemAlloc_v2 of 64 MiB': async () => ['cuMemAlloc_v2', 'OUT0', 64 * MIB],
  cuMemAllocPitch_v2: async () => ['cuMemAllocPitch_v2', 'OUT0', 'OUT1', 4096, 1024, 4],
  'cuMemFree_v2 of 4 bytes': async ({ asked }) => ['cuMemFree_v2', await asked.memory(4)],
  'cuMemFree_v2 of 4 MiB': async ({ asked }) => ['cuMemFree_v2', await asked.memory(4 * MIB)],
  'cuMemFree_v2 of pool memory': async ({ asked, free }) => [
    'cuMemFree_v2',
    await poolMemory(asked, free),
  ],
  'cuMemFree_v2 of pool memory of another process': async (made) => [
    'cuMemFree_v2',
    await importedPointer(made),
  ],
  'cuMemFree_v2 of managed memory': async (made) => ['cuMemFree_v2', await managed(made)],
  cuMemGetAddressRange_v2: async ({ asked }) => [
    'cuMemGetAddressRange_v2',
    'OUT0',
    'OUT1',
    await asked.memory(4),
  ],
  cuPointerGetAttribute: async ({ asked }) => [
    'cuPointerGetAttribute',
    'OUT0',
    DEVICE,
    await asked.memory(4),
  ],
  cuMemHostAlloc: async () => ['cuMemHostAlloc', 'OUT0', MIB, 3],
  cuMemFreeHost: async (made) => ['cuMemFreeHost', await pinned(made)],
  cuMemHostRegister_v2: async ({ asked }) => [
    'cuMemHostRegister_v2',
    await asked.map(4096),
    4096,
    3,
  ],
  cuMemHostUnregister: async ({ asked }) => {
    const address = await asked.map(4096);
    await asked.made('cuMemHostRegister_v2', address, 4096, 3);
    return ['cuMemHostUnregister', address];
  },
  cuMemHostGetDevicePointer_v2: async (made) => [
    'cuMemHostGetDevicePointer_v2',
    'OUT0',
    await pinned(made),
    0,
  ],
  cuMemAllocManaged: async () => ['cuMemAllocManaged', 'OUT0', UNIT, GLOBAL],
  cuMemAdvise: async (made) => ['cuMemAdvise', await managed(made), UNIT, 1, 0],
  // Copies that wait.
  'cuMemcpyHtoD_v2 of 64 bytes': async ({ asked }) => [
    'cuMemcpyHtoD_v2',
    await asked.memory(MIB),
    'BLOCK',
    64,
  ],
  'cuMemcpyDtoH_v2 of 64 bytes': async ({ asked }) => [
    'cuMemcpyDtoH_v2',
    'BLOCK',
    await asked.memory(MIB),
    64,
  ],
  'cuMemcpyHtoD_v2 of page-locked memory': async (made) => [
    'cuMemcpyHtoD_v2',
    await made.asked.memory(MIB),
    await pinned(made),
    64,
  ],
  cuMemcpy2DUnaligned_v2: async ({ asked }) => [
    'cuMemcpy2DUnaligned_v2',
    struct('CUDA_MEMCPY2D', rows(await asked.memory(MIB))),
  ],
  cuMemcpy3D_v2: async ({ asked }) => [
    'cuMemcpy3D_v2',
    struct('CUDA_MEMCPY3D', box(await asked.memory(MIB))),
  ],
  // Pools.
  cuMemPoolCreate: async () => ['cuMemPoolCreate', 'OUT0', poolProperties()],
  cuMemPoolDestroy: async ({ asked }) => ['cuMemPoolDestroy', await pool(asked)],
  'cuMemPoolDestroy of a pool with freed memory': async ({ asked, free }) => {
    const one = await pool(asked);
    await asked.made('cuMemFreeAsync', await poolMemory(asked, free, one), free);
    return ['cuMemPoolDestroy', one];
  },
  cuMemPoolTrimTo: async ({ asked, free }) => {
    const one = await pool(asked);
    await asked.made('cuMemFreeAsync', await poolMemory(asked, free, one), free);
    return ['cuMemPoolTrimTo', one, 0];
  },
  cuMemPoolSetAccess: async ({ asked }) => ['cuMemPoolSetAccess', await pool(asked), access(3), 1],
  cuMemPoolExportToShareableHandle: async ({ asked }) => [
    'cuMemPoolExportToShareableHandle',
    'OUT0',
    await pool(asked, { handleTypes: FD }),
    FD,
    0,
  ],
  cuMemPoolExportPointer: async ({ asked, free }) => [
    'cuMemPoolExportPointer',
    'BLOCK',
    await poolMemory(asked, free, await pool(asked, { handleTypes: FD })),
  ],
  cuMemPoolImportFromShareableHandle: async (made) => [
    'cuMemPoolImportFromShareableHandle',
    'OUT0',
    (await foreignPool(made)).fd,
    FD,
    0,
  ],
  cuMemPoolImportPointer: async (made) => {
    const { handle, pointer } = await importedPool(made);
    return ['cuMemPoolImportPointer', 'OUT0', handle, pointer];
  },
  'cuMemPoolDestroy of an imported pool': async (made) => [
    'cuMemPoolDestroy',
    (await importedPool(made)).handle,
  ],
  // Virtual memory.
  cuMemAddressReserve: async () => ['cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0],
  cuMemCreate: async () => ['cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0],
  cuMemMap: async (made) => [
    'cuMemMap',
    await reserved(made),
    UNIT,
    0,
    await physical(made.asked),
    0,
  ],
  cuMemSetAccess: async (made) => {
    const [memory, handle] = [await reserved(made), await physical(made.asked)];
    await made.asked.made('cuMemMap', memory, UNIT, 0, handle, 0);
    return ['cuMemSetAccess', memory, UNIT, access(3), 1];
  },
  cuMemUnmap: async (made) => ['cuMemUnmap', await mapped(made), UNIT],
  cuMemRelease: async ({ asked }) => ['cuMemRelease', await physical(asked)],
  cuMemAddressFree: async (made) => ['cuMemAddressFree', await reserved(made), UNIT],
  cuMemExportToShareableHandle: async ({ asked }) => [
    'cuMemExportToShareableHandle',
    'OUT0',
    await physical(asked),
    FD,
    0,
  ],
  cuMemImportFromShareableHandle: async ({ asked, other }) => {
    const exported = await other.call(
      'cuMemExportToShareableHandle',
      'OUT0',
      await physical(other),
      FD,
      0,
    );
    const fd = await other.sendFd(exported.int0, asked);
    return ['cuMemImportFromShareableHandle', 'OUT0', fd, FD];
  },
  // Handles of memory and events.
  cuIpcGetMemHandle: async ({ asked }) => ['cuIpcGetMemHandle', 'BLOCK', await asked.memory(4)],
  cuIpcOpenMemHandle_v2: async (made) => [
    'cuIpcOpenMemHandle_v2',
    'OUT0',
    await foreignHandle(made),
    LAZY_PEER_ACCESS,
  ],
  cuIpcCloseMemHandle: async (made) => ['cuIpcCloseMemHandle', await foreignMemory(made)],
  cuIpcGetEventHandle: async (made) => [
    'cuIpcGetEventHandle',
    'BLOCK',
    await event(made, INTERPROCESS | DISABLE_TIMING),
  ],
  cuIpcOpenEventHandle: async (made) => [
    'cuIpcOpenEventHandle',
    'OUT0',
    await foreignEventHandle(made),
  ],
  'cuEventDestroy_v2 of an event of another process': async (made) => [
    'cuEventDestroy_v2',
    await made.asked.made('cuIpcOpenEventHandle', 'OUT0', await foreignEventHandle(made)),
  ],
  // Kernels and graphs.
  cuModuleLoadDataEx: async ({ asked }) => ['cuModuleLoadDataEx', 'OUT0', asked.image, 0, 0, 0],
  cuModuleUnload: async ({ asked }) => ['cuModuleUnload', (await asked.kernels()).module],
  cuModuleGetFunction: async ({ asked }) => [
    'cuModuleGetFunction',
    'OUT0',
    (await asked.kernels()).module,
    text('k'),
  ],
  'cuFuncLoad of a kernel that is not loaded': async ({ asked }) => [
    'cuFuncLoad',
    (await asked.kernels(false)).k,
  ],
  'cuLaunchKernel of a kernel that is not loaded': async ({ asked, free }) =>
    asked.launch((await asked.kernels(false)).k, free),
  'cuLaunchKernel of a kernel whose attributes were read': async ({ asked, free }) => {
    const { k } = await asked.kernels(false);
    await asked.made('cuFuncGetAttribute', 'OUT0', MAX_DYNAMIC_SHARED, k);
    return asked.launch(k, free);
  },
  'cuFuncGetAttribute of a kernel that is not loaded': async ({ asked }) => [
    'cuFuncGetAttribute',
    'OUT0',
    MAX_DYNAMIC_SHARED,
    (await asked.kernels(false)).k,
  ],
  'cuFuncSetAttribute of a kernel that is not loaded': async ({ asked }) => [
    'cuFuncSetAttribute',
    (await asked.kernels(false)).k,
    MAX_DYNAMIC_SHARED,
    1024,
  ],
  'cuFuncGetParamInfo of a kernel that is not loaded': async ({ asked }) => [
    'cuFuncGetParamInfo',
    (await asked.kernels(false)).write,
    0,
    'OUT0',
    'OUT1',
  ],
  cuFuncGetAttribute: async ({ asked }) => [
    'cuFuncGetAttribute',
    'OUT0',
    MAX_DYNAMIC_SHARED,
    (await asked.kernels()).k,
  ],
  cuFuncSetAttribute: async ({ asked }) => [
    'cuFuncSetAttribute',
    (await asked.kernels()).k,
    MAX_DYNAMIC_SHARED,
    1024,
  ],
  cuGraphInstantiateWithFlags: async (made) => [
    'cuGraphInstantiateWithFlags',
    'OUT0',
    await graph(made),
    0,
  ],
  cuGraphExecDestroy: async (made) => ['cuGraphExecDestroy', await executable(made)],
  cuGraphDestroy: async (made) => ['cuGraphDestroy', await graph(made)],
  cuGraphExecUpdate_v2: async (made) => [
    'cuGraphExecUpdate_v2',
    await executable(made),
    await graph(made),
    'BLOCK',
  ],
  cuDeviceGraphMemTrim: async () => ['cuDeviceGraphMemTrim', 0],
};

const calls: Readonly<Record<string, Prepare>> = {
  ...others,
  ...Object.fromEntries(
    Object.entries(inStream).flatMap(([name, prepare]) =>
      (
        [
          ['a non-blocking stream', (made) => made.free],
          ['a blocking stream', (made) => made.blocking],
          ['the legacy stream', () => LEGACY],
          ['the waiting stream', (made) => made.waiting],
        ] satisfies [string, (made: Made) => number][]
      ).map(([where, streamOf]): [string, Prepare] => [
        `${name} in ${where}`,
        (made) => prepare(made, streamOf(made)),
      ]),
    ),
  ),
};

// ---- Questions ----

/** Asks the calls of `left`, and removes them, until one ends the process. */
async function askCalls(
  named: Note,
  left: Map<string, Prepare>,
  makeWaiting: (asked: Asked) => Promise<number>,
): Promise<void> {
  await using asked = await Asked.start(named);
  await using other = await Asked.start(named);
  const waiting = await makeWaiting(asked);
  const [free, blocking] = [await asked.stream(NON_BLOCKING), await asked.stream(BLOCKING)];
  const made = { asked, other, waiting, free, blocking };
  for (const [what, prepare] of left) {
    left.delete(what);
    try {
      await asked.answers(what, async () => {
        const call = await prepare(made);
        await asked.made('cuCtxSynchronize');
        await asked.hold(waiting);
        return asked.waits(...call);
      });
      asked.release();
      await asked.made('cuCtxSynchronize');
    } catch {
      // The answer is noted. What is left is asked in another process.
      return;
    }
  }
}

const beside =
  (name: string, makeWaiting: (asked: Asked) => Promise<number>): FactGroup =>
  async (note) => {
    const left = new Map(Object.entries(calls));
    while (left.size > 0)
      await question(note, `beside ${name} that waits`, (named) =>
        askCalls(named, left, makeWaiting),
      );
  };

export const besideNonBlockingFacts: FactGroup = beside('a non-blocking stream', (asked) =>
  asked.stream(NON_BLOCKING),
);
export const besideLegacyFacts: FactGroup = beside('the legacy stream', async () => LEGACY);
export const besideBlockingFacts: FactGroup = beside('a blocking stream', (asked) =>
  asked.stream(BLOCKING),
);
