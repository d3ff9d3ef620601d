/** What a capture makes of work beside it, and of waiting, resetting and destroying meanwhile. */
import type { FunctionName } from '../../../ffi/functions.ts';
import type { Argument } from '../../support/calls.ts';
import { Asked, MANY, NON_BLOCKING, question, questions, text } from './asked.ts';
import { type Made as BesideMade, inStream, others, type Prepare } from './beside.ts';
import type { FactGroup, Note } from './facts.ts';
import { access, location, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

type Call = [FunctionName, ...Argument[]];

const MODES = { global: 0, 'of this thread': 1, relaxed: 2 } as const;
const DISABLE_TIMING = 2;

async function makeIn(asked: Asked) {
  const { k } = await asked.kernels();
  const memory = await asked.memory(MIB);
  const spare = await asked.memory(4 * MIB);
  const event = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
  const other = await asked.stream();
  const second = await asked.stream(0);
  await asked.made('cuEventRecord', event, other);
  await asked.made('cuCtxSynchronize');
  return { asked, k, memory, spare, event, other, second };
}

type Made = Awaited<ReturnType<typeof makeIn>> & { readonly stream: number };

const beside: Readonly<Record<string, (made: Made) => Call>> = {
  'memset in stream 0': ({ memory }) => ['cuMemsetD8Async', memory, 1, 64, 0],
  'a launch in stream 0': ({ asked, k }) => asked.launch(k, 0),
  'copy to the device': ({ memory }) => ['cuMemcpyHtoD_v2', memory, 'BLOCK', 64],
  'copy to the host': ({ memory }) => ['cuMemcpyDtoH_v2', 'BLOCK', memory, 64],
  'a record in stream 0': ({ event }) => ['cuEventRecord', event, 0],
  'a query of stream 0': () => ['cuStreamQuery', 0],
  'a wait for stream 0': () => ['cuStreamSynchronize', 0],
  'a wait for the context': () => ['cuCtxSynchronize'],
  'a query of an event': ({ event }) => ['cuEventQuery', event],
  'a wait for an event': ({ event }) => ['cuEventSynchronize', event],
  'a query of another stream': ({ other }) => ['cuStreamQuery', other],
  'a wait for another stream': ({ other }) => ['cuStreamSynchronize', other],
  'memset in another stream': ({ memory, other }) => ['cuMemsetD8Async', memory, 1, 64, other],
  'memset in another blocking stream': ({ memory, second }) => [
    'cuMemsetD8Async',
    memory,
    1,
    64,
    second,
  ],
  'memory allocated': () => ['cuMemAlloc_v2', 'OUT0', MIB],
  'memory freed': ({ spare }) => ['cuMemFree_v2', spare],
  'pinned memory allocated': () => ['cuMemHostAlloc', 'OUT0', MIB, 3],
  'free memory told': () => ['cuMemGetInfo_v2', 'OUT0', 'OUT1'],
  'an event created': () => ['cuEventCreate', 'OUT0', DISABLE_TIMING],
  'a stream created': () => ['cuStreamCreateWithPriority', 'OUT0', 1, 0],
  'a handle for another process': ({ memory }) => ['cuIpcGetMemHandle', 'BLOCK', memory],
  'the capture told': ({ stream }) => ['cuStreamIsCapturing', stream, 'OUT0'],
};

export const besideCaptureFacts: FactGroup = async (note) => {
  for (const [mode, number] of Object.entries(MODES))
    for (const [kind, flags] of [
      ['blocking', 0],
      ['non-blocking', 1],
    ] as const)
      await question(note, `beside a capture (${mode}) of a ${kind} stream`, async (named) => {
        await using asked = await Asked.start(named);
        for (const [what, call] of Object.entries(beside)) {
          const stream = await asked.stream(flags);
          const made = { ...(await makeIn(asked)), stream };
          await asked.made('cuStreamBeginCapture_v2', stream, number);
          await asked.made('cuMemsetD8Async', made.memory, 1, 64, stream);
          await asked.answers(what, async () => {
            const { status } = await asked.call(...call(made));
            const end = await asked.call('cuStreamEndCapture', stream, 'OUT0');
            return `${status}, and its end ${end.status}`;
          });
        }
      });
};

/** Each ends its process, or its capture: asked in one of its own. */
const within: Readonly<Record<string, (made: Made & { readonly inside: number }) => Call>> = {
  'the stream is waited for': ({ stream }) => ['cuStreamSynchronize', stream],
  'the stream is queried': ({ stream }) => ['cuStreamQuery', stream],
  'the stream is destroyed': ({ stream }) => ['cuStreamDestroy_v2', stream],
  'its capture is begun again': ({ stream }) => ['cuStreamBeginCapture_v2', stream, 2],
  'a capture of another stream is begun': ({ other }) => ['cuStreamBeginCapture_v2', other, 2],
  'another stream’s capture is ended': ({ other }) => ['cuStreamEndCapture', other, 'OUT0'],
  'an event recorded in it is queried': ({ inside }) => ['cuEventQuery', inside],
  'an event recorded in it is waited for': ({ inside }) => ['cuEventSynchronize', inside],
  'an event recorded in it is destroyed': ({ inside }) => ['cuEventDestroy_v2', inside],
  'another stream waits for it': ({ other, inside }) => ['cuStreamWaitEvent', other, inside, 0],
  'stream 0 waits for it': ({ inside }) => ['cuStreamWaitEvent', 0, inside, 0],
  'it waits for an event from before': ({ stream, event }) => [
    'cuStreamWaitEvent',
    stream,
    event,
    0,
  ],
  'memory that it uses is freed': ({ memory }) => ['cuMemFree_v2', memory],
  'the primary context is released': () => ['cuDevicePrimaryCtxRelease_v2', 0],
  'the primary context is reset': () => ['cuDevicePrimaryCtxReset_v2', 0],
  'a host function is called': ({ stream }) => [
    'cuLaunchHostFunc',
    stream,
    { symbol: 'getpid' },
    0,
  ],
  'a value is waited for': ({ stream, memory }) => ['cuStreamWaitValue32_v2', stream, memory, 1, 0],
  'a value is written': ({ stream, memory }) => ['cuStreamWriteValue32_v2', stream, memory, 1, 0],
  'pageable memory is copied to the device': ({ stream, memory }) => [
    'cuMemcpyHtoDAsync_v2',
    memory,
    'BLOCK',
    64,
    stream,
  ],
  'it is copied to pageable memory': ({ stream, memory }) => [
    'cuMemcpyDtoHAsync_v2',
    'BLOCK',
    memory,
    64,
    stream,
  ],
};

export const withinCaptureFacts: FactGroup = async (note) => {
  for (const [mode, number] of Object.entries(MODES).filter(([name]) => name !== 'of this thread'))
    await questions(
      note,
      `in a capture (${mode})`,
      Object.keys(within),
      async (asked, what) => {
        const stream = await asked.stream();
        const made = { ...(await makeIn(asked)), stream };
        const inside = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
        await asked.made('cuStreamBeginCapture_v2', stream, number);
        await asked.made('cuMemsetD8Async', made.memory, 1, 64, stream);
        await asked.made('cuEventRecord', inside, stream);
        await asked.ask(what, ...(within[what] as (typeof within)[string])({ ...made, inside }));
        await asked.ask(`${what}, and it ends`, 'cuStreamEndCapture', stream, 'OUT0');
      },
      MANY,
    );
  await question(note, 'a capture', async (named) => {
    await using asked = await Asked.start(named);
    const stream = await asked.stream();
    for (const mode of [3, 99])
      await asked.ask(`of mode ${mode}`, 'cuStreamBeginCapture_v2', stream, mode);
    for (const [name, handle] of [
      ['stream 0', 0],
      ['the legacy stream', 1],
      ['the per-thread stream', 2],
    ] as const) {
      const begun = await asked.ask(`of ${name}`, 'cuStreamBeginCapture_v2', handle, 2);
      if (begun?.status === 0) await asked.made('cuStreamEndCapture', handle, 'OUT0');
    }
    await asked.ask('that was not begun, ended', 'cuStreamEndCapture', stream, 'OUT0');
  });
};

// ---- Calls that a program makes once, and cuffi at the first use of something ----

const LEGACY = 1;
const RELEASE_THRESHOLD = 4;
const STACK_SIZE = 0;
const POSITIVE = { bytes: Buffer.alloc(8, 1).toString('base64') };
const CAPTURE_STATES: readonly string[] = ['not captured', 'active', 'invalidated'];

const newPool = ({ asked }: BesideMade): Promise<number> =>
  asked.made('cuMemPoolCreate', 'OUT0', poolProperties());

/** What `others` does not have: calls that wait for nothing, and were not asked about beside waits. */
const moreOnce: Readonly<Record<string, Prepare>> = {
  cuDeviceGetAttribute: async () => ['cuDeviceGetAttribute', 'OUT0', 1, 0],
  cuDeviceTotalMem_v2: async () => ['cuDeviceTotalMem_v2', 'OUT0', 0],
  cuDeviceGetName: async () => ['cuDeviceGetName', 'BLOCK', 64, 0],
  cuDevicePrimaryCtxGetState: async () => ['cuDevicePrimaryCtxGetState', 0, 'OUT0', 'OUT1'],
  cuCtxGetCurrent: async () => ['cuCtxGetCurrent', 'OUT0'],
  cuCtxGetDevice: async () => ['cuCtxGetDevice', 'OUT0'],
  cuCtxSetLimit: async () => ['cuCtxSetLimit', STACK_SIZE, 2048],
  cuCtxGetStreamPriorityRange: async () => ['cuCtxGetStreamPriorityRange', 'OUT0', 'OUT1'],
  cuDeviceGetDefaultMemPool: async () => ['cuDeviceGetDefaultMemPool', 'OUT0', 0],
  cuDeviceGetMemPool: async () => ['cuDeviceGetMemPool', 'OUT0', 0],
  cuMemPoolSetAttribute: async (made) => [
    'cuMemPoolSetAttribute',
    await newPool(made),
    RELEASE_THRESHOLD,
    POSITIVE,
  ],
  cuMemPoolGetAttribute: async (made) => [
    'cuMemPoolGetAttribute',
    await newPool(made),
    RELEASE_THRESHOLD,
    'BLOCK',
  ],
  cuMemGetAllocationGranularity: async () => [
    'cuMemGetAllocationGranularity',
    'OUT0',
    physicalProperties(),
    0,
  ],
  cuMemHostGetFlags: async ({ asked }) => [
    'cuMemHostGetFlags',
    'OUT0',
    await asked.made('cuMemHostAlloc', 'OUT0', MIB, 3),
  ],
  cuModuleGetGlobal_v2: async ({ asked }) => [
    'cuModuleGetGlobal_v2',
    'OUT0',
    'OUT1',
    (await asked.kernels()).module,
    text('none'),
  ],
  cuModuleGetFunctionCount: async ({ asked }) => [
    'cuModuleGetFunctionCount',
    'OUT0',
    (await asked.kernels(false)).module,
  ],
  cuModuleEnumerateFunctions: async ({ asked }) => [
    'cuModuleEnumerateFunctions',
    'BLOCK',
    1,
    (await asked.kernels(false)).module,
  ],
  cuFuncGetName: async ({ asked }) => ['cuFuncGetName', 'OUT0', (await asked.kernels()).k],
  cuOccupancyMaxActiveBlocksPerMultiprocessor: async ({ asked }) => [
    'cuOccupancyMaxActiveBlocksPerMultiprocessor',
    'OUT0',
    (await asked.kernels()).k,
    32,
    0,
  ],
  cuLinkCreate_v2: async () => ['cuLinkCreate_v2', 0, 0, 0, 'OUT0'],
  cuMemGetAccess: async (made) => ['cuMemGetAccess', 'OUT0', location(), await mappedUnit(made)],
  'cuStreamIsCapturing of the legacy stream': async () => ['cuStreamIsCapturing', LEGACY, 'OUT0'],
  'cuStreamIsCapturing of another stream': async ({ free }) => [
    'cuStreamIsCapturing',
    free,
    'OUT0',
  ],
};

async function mappedUnit({ asked }: BesideMade): Promise<number> {
  const place = await asked.made('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);
  const physical = await asked.made('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0);
  await asked.made('cuMemMap', place, UNIT, 0, physical, 0);
  await asked.made('cuMemSetAccess', place, UNIT, access(3), 1);
  return place;
}

/** Calls that queue work, in the captured stream and in others. `waiting` is the captured stream here. */
const queued: Readonly<Record<string, Prepare>> = Object.fromEntries(
  Object.entries(inStream).flatMap(([name, prepare]) =>
    (
      [
        ['the captured stream', (made) => made.waiting],
        ['another stream', (made) => made.free],
        ['the legacy stream', () => LEGACY],
      ] satisfies [string, (made: BesideMade) => number][]
    ).map(([where, streamOf]): [string, Prepare] => [
      `${name} in ${where}`,
      (made) => prepare(made, streamOf(made)),
    ]),
  ),
);

const firstLaunch: Readonly<Record<string, Prepare>> = {
  'cuLaunchKernel of a kernel that is not loaded in the captured stream': async ({
    asked,
    waiting,
  }) => asked.launch((await asked.kernels(false)).k, waiting),
};

const onceInCapture = { ...others, ...moreOnce, ...queued, ...firstLaunch };

/** Asks each call in a capture of its own: its status, the capture's state after it, and its end. */
async function askInCaptures(named: Note, mode: number, left: Map<string, Prepare>): Promise<void> {
  await using asked = await Asked.start(named);
  await using other = await Asked.start(named);
  const [free, blocking] = [await asked.stream(NON_BLOCKING), await asked.stream(0)];
  const memory = await asked.memory(MIB);
  for (const [what, prepare] of left) {
    left.delete(what);
    try {
      await asked.answers(what, async () => {
        const captured = await asked.stream(NON_BLOCKING);
        const call = await prepare({ asked, other, waiting: captured, free, blocking });
        await asked.made('cuCtxSynchronize');
        await asked.made('cuStreamBeginCapture_v2', captured, mode);
        await asked.made('cuMemsetD8Async', memory, 1, 64, captured);
        const { status } = await asked.call(...call);
        const { int0 } = await asked.call('cuStreamIsCapturing', captured, 'OUT0');
        const state = CAPTURE_STATES[int0] ?? int0;
        const end = await asked.call('cuStreamEndCapture', captured, 'OUT0');
        return `${status}, the capture is ${state}, and its end ${end.status}`;
      });
      await asked.made('cuCtxSynchronize');
    } catch {
      // The answer is noted. What is left is asked in another process.
      return;
    }
  }
}

const inCaptures =
  (mode: keyof typeof MODES, calls: Readonly<Record<string, Prepare>>): FactGroup =>
  async (note) => {
    const left = new Map(Object.entries(calls));
    while (left.size > 0)
      await question(note, `once in a capture (${mode})`, (named) =>
        askInCaptures(named, MODES[mode], left),
      );
  };

export const onceInGlobalFacts: FactGroup = inCaptures('global', onceInCapture);
export const onceInThreadLocalFacts: FactGroup = inCaptures('of this thread', onceInCapture);
export const onceInRelaxedFacts: FactGroup = inCaptures('relaxed', onceInCapture);

/** The context of device 1, and memory there. That of device 0 stays current. */
async function deviceOne({ asked }: BesideMade): Promise<{ context: number; memory: number }> {
  const context = await asked.enter(1);
  const memory = await asked.memory(MIB);
  await asked.made('cuCtxPopCurrent_v2', 'OUT0');
  return { context, memory };
}

const betweenDevices: Readonly<Record<string, Prepare>> = {
  'cuDevicePrimaryCtxRetain of device 1': async () => ['cuDevicePrimaryCtxRetain', 'OUT0', 1],
  cuDeviceCanAccessPeer: async () => ['cuDeviceCanAccessPeer', 'OUT0', 0, 1],
  cuCtxEnablePeerAccess: async (made) => [
    'cuCtxEnablePeerAccess',
    (await deviceOne(made)).context,
    0,
  ],
  'cuMemcpyPeerAsync in the captured stream': async (made) => {
    const { asked, waiting } = made;
    const { context, memory } = await deviceOne(made);
    const here = await asked.memory(MIB);
    return ['cuMemcpyPeerAsync', memory, context, here, asked.context, 64, waiting];
  },
  'cuMemPoolSetAccess for device 1': async (made) => [
    'cuMemPoolSetAccess',
    await newPool(made),
    access(3, 1),
    1,
  ],
  'cuMemSetAccess for device 1': async (made) => [
    'cuMemSetAccess',
    await mappedUnit(made),
    UNIT,
    access(3, 1),
    1,
  ],
};

/** With two devices. A context keeps peer access: each mode is asked in processes of its own. */
export const onceBetweenDevicesFacts: FactGroup = async (note) => {
  for (const mode of ['global', 'of this thread', 'relaxed'] as const)
    for (const [what, call] of Object.entries(betweenDevices))
      await inCaptures(mode, { [what]: call })(note);
};

/**
 * What `MemoryPool.create`, `pin`, `Module.load`, `PinnedBuffer.allocate` and `VirtualMemory.reserve` ask of
 * the driver: cuffi allows them in a capture, as the driver does in the mode of its captures.
 */
export const allowedInRelaxedFacts: FactGroup = async (note) =>
  inCaptures('relaxed', {
    'cuMemPoolCreate for MemoryPool.create': others['cuMemPoolCreate'] as Prepare,
    'cuMemPoolSetAttribute for MemoryPool.create': moreOnce['cuMemPoolSetAttribute'] as Prepare,
    'cuMemHostRegister_v2 for pin and PinnedBuffer.allocate': others[
      'cuMemHostRegister_v2'
    ] as Prepare,
    'cuModuleLoadDataEx for Module.load': others['cuModuleLoadDataEx'] as Prepare,
    'cuMemAddressReserve for VirtualMemory.reserve': others['cuMemAddressReserve'] as Prepare,
  })(note);

/** What a capture says once a call has broken it: each use of its stream until it is ended. */
export const brokenCaptureFacts: FactGroup = async (note) => {
  const uses: Readonly<Record<string, (made: Made) => Call>> = {
    'memset in it': ({ memory, stream }) => ['cuMemsetD8Async', memory, 1, 64, stream],
    'a launch in it': ({ asked, k, stream }) => asked.launch(k, stream),
    'an event recorded in it': ({ event, stream }) => ['cuEventRecord', event, stream],
    'the stream queried again': ({ stream }) => ['cuStreamQuery', stream],
    'the stream waited for': ({ stream }) => ['cuStreamSynchronize', stream],
    'a capture begun in it': ({ stream }) => ['cuStreamBeginCapture_v2', stream, 2],
    'pool memory allocated in it': ({ stream }) => ['cuMemAllocAsync', 'OUT0', MIB, stream],
    'its flags read': ({ stream }) => ['cuStreamGetFlags', stream, 'OUT0'],
    'its capture told': ({ stream }) => ['cuStreamIsCapturing', stream, 'OUT0'],
    'memset in another stream': ({ memory, other }) => ['cuMemsetD8Async', memory, 1, 64, other],
  };
  for (const [mode, number] of Object.entries(MODES))
    await questions(
      note,
      `a broken capture (${mode})`,
      Object.keys(uses),
      async (asked, what) => {
        const stream = await asked.stream();
        const made = { ...(await makeIn(asked)), stream };
        await asked.made('cuStreamBeginCapture_v2', stream, number);
        await asked.call('cuStreamQuery', stream);
        await asked.ask(what, ...(uses[what] as (typeof uses)[string])(made));
        await asked.ask(`${what}, and it ends`, 'cuStreamEndCapture', stream, 'OUT0');
      },
      MANY,
    );
};
