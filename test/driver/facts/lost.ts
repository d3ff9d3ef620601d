/** What is left of a context that a kernel has ended, and of what was destroyed. */
import {
  Asked,
  type CallOf,
  inTurn,
  MANY,
  NON_BLOCKING,
  question,
  questions,
  text,
} from './asked.ts';
import type { FactGroup } from './facts.ts';
import { access, FD, firstByte, MIB, physicalProperties, poolProperties, UNIT } from './kinds.ts';

/** An address that no memory is at. */
const NOWHERE = 2 ** 46 + 4096;
const DISABLE_TIMING = 2;

/** One of everything, in the context of a process. */
async function makeAll(asked: Asked) {
  const stream = await asked.stream();
  const other = await asked.stream();
  const recorded = await asked.made('cuEventCreate', 'OUT0', 0);
  const unrecorded = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
  await asked.made('cuEventRecord', recorded, stream);
  const memory = await asked.memory(MIB);
  const managed = await asked.made('cuMemAllocManaged', 'OUT0', MIB, 1);
  const pinned = await asked.made('cuMemHostAlloc', 'OUT0', MIB, 3);
  const registered = await asked.map(4096);
  await asked.made('cuMemHostRegister_v2', registered, 4096, 3);
  const pool = await asked.made('cuMemPoolCreate', 'OUT0', poolProperties());
  const pooled = await asked.made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
  const reserved = await asked.made('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);
  const physical = await asked.made('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0);
  await asked.made('cuMemMap', reserved, UNIT, 0, physical, 0);
  await asked.made('cuMemSetAccess', reserved, UNIT, access(3), 1);
  const kernels = await asked.kernels();
  await asked.made('cuCtxSynchronize');
  return {
    asked,
    context: asked.context,
    stream,
    other,
    recorded,
    unrecorded,
    memory,
    managed,
    pinned,
    registered,
    pool,
    pooled,
    reserved,
    physical,
    ...kernels,
  };
}

type All = Awaited<ReturnType<typeof makeAll>>;

/** In the order in which a program that ends would ask. */
const afterTheLoss: Readonly<Record<string, CallOf<All>>> = {
  'the stream is queried': ({ stream }) => ['cuStreamQuery', stream],
  'another stream is queried': ({ other }) => ['cuStreamQuery', other],
  'stream 0 is queried': () => ['cuStreamQuery', 0],
  'an event recorded before is queried': ({ recorded }) => ['cuEventQuery', recorded],
  'an event never recorded is queried': ({ unrecorded }) => ['cuEventQuery', unrecorded],
  'an event is waited for': ({ recorded }) => ['cuEventSynchronize', recorded],
  'an event is recorded': ({ recorded, other }) => ['cuEventRecord', recorded, other],
  'an event is created': () => ['cuEventCreate', 'OUT0', DISABLE_TIMING],
  'a stream is created': () => ['cuStreamCreateWithPriority', 'OUT0', NON_BLOCKING, 0],
  'the other stream is waited for': ({ other }) => ['cuStreamSynchronize', other],
  'the context is waited for': () => ['cuCtxSynchronize'],
  'a kernel is launched': ({ asked, k, other }) => asked.launch(k, other),
  'memory is set': ({ memory, other }) => ['cuMemsetD8Async', memory, 1, 64, other],
  'memory is copied to the host': ({ memory }) => ['cuMemcpyDtoH_v2', 'BLOCK', memory, 64],
  'memory is allocated': () => ['cuMemAlloc_v2', 'OUT0', MIB],
  'pinned memory is allocated': () => ['cuMemHostAlloc', 'OUT0', MIB, 3],
  'memory of a pool is allocated': ({ pool, other }) => [
    'cuMemAllocFromPoolAsync',
    'OUT0',
    MIB,
    pool,
    other,
  ],
  'a pool is created': () => ['cuMemPoolCreate', 'OUT0', poolProperties()],
  'physical memory is created': () => ['cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0],
  'free memory is queried': () => ['cuMemGetInfo_v2', 'OUT0', 'OUT1'],
  'an attribute of a pointer is queried': ({ memory }) => [
    'cuPointerGetAttribute',
    'OUT0',
    2,
    memory,
  ],
  'a range is queried': ({ memory }) => ['cuMemGetAddressRange_v2', 'OUT0', 'OUT1', memory],
  'a handle for another process is made': ({ memory }) => ['cuIpcGetMemHandle', 'BLOCK', memory],
  'the devices are counted': () => ['cuDeviceGetCount', 'OUT0'],
  'an attribute of the device is queried': () => ['cuDeviceGetAttribute', 'OUT0', 1, 0],
  'the current context is queried': () => ['cuCtxGetCurrent', 'OUT0'],
  'the state of the primary context is queried': () => [
    'cuDevicePrimaryCtxGetState',
    0,
    'OUT0',
    'OUT1',
  ],
  'memory of the pool is freed in a stream': ({ pooled, stream }) => [
    'cuMemFreeAsync',
    pooled,
    stream,
  ],
  'the pool is destroyed': ({ pool }) => ['cuMemPoolDestroy', pool],
  'memory is freed': ({ memory }) => ['cuMemFree_v2', memory],
  'managed memory is freed': ({ managed }) => ['cuMemFree_v2', managed],
  'pinned memory is freed': ({ pinned }) => ['cuMemFreeHost', pinned],
  'host memory is unregistered': ({ registered }) => ['cuMemHostUnregister', registered],
  'virtual memory is unmapped': ({ reserved }) => ['cuMemUnmap', reserved, UNIT],
  'physical memory is released': ({ physical }) => ['cuMemRelease', physical],
  'addresses are freed': ({ reserved }) => ['cuMemAddressFree', reserved, UNIT],
  'the module is unloaded': ({ module }) => ['cuModuleUnload', module],
  'an event is destroyed': ({ recorded }) => ['cuEventDestroy_v2', recorded],
  'the stream is destroyed': ({ stream }) => ['cuStreamDestroy_v2', stream],
  'the other stream is destroyed': ({ other }) => ['cuStreamDestroy_v2', other],
  'the context is popped': () => ['cuCtxPopCurrent_v2', 'OUT0'],
  'another context is created': () => ['cuCtxCreate_v2', 'OUT0', 0, 0],
  'the primary context is released': () => ['cuDevicePrimaryCtxRelease_v2', 0],
  'the primary context is reset': () => ['cuDevicePrimaryCtxReset_v2', 0],
  'the primary context is retained again': () => ['cuDevicePrimaryCtxRetain', 'OUT0', 0],
  'and made current': ({ context }) => ['cuCtxPushCurrent_v2', context],
  'and allocates': () => ['cuMemAlloc_v2', 'OUT0', MIB],
};

const ways = {
  'after a trap': ({ asked, trap, stream }: All) => asked.launch(trap, stream),
  'after a stray write': ({ asked, write, stream }: All) => asked.launch(write, stream, NOWHERE),
};

export const lostFacts: FactGroup = async (note) => {
  for (const [name, launch] of Object.entries(ways)) {
    await inTurn(
      note,
      name,
      async (asked) => {
        const all = await makeAll(asked);
        await asked.made(...launch(all));
        return all;
      },
      {
        'the stream is waited for': ({ stream }) => ['cuStreamSynchronize', stream],
        ...afterTheLoss,
      },
    );
    // A program that asks for nothing but a reset.
    await inTurn(
      note,
      `${name}, at once`,
      async (asked) => {
        const all = await makeAll(asked);
        await asked.made(...launch(all));
        await asked.call('cuStreamSynchronize', all.stream);
        return all;
      },
      {
        'the primary context is reset': () => ['cuDevicePrimaryCtxReset_v2', 0],
        'and allocates': () => ['cuMemAlloc_v2', 'OUT0', MIB],
        'the device is counted': () => ['cuDeviceGetCount', 'OUT0'],
      },
    );
  }
  await question(note, 'memory of a process that has lost its context', async (named) => {
    await using a = await Asked.start(named);
    await using b = await Asked.start(named);
    const all = await makeAll(a);
    await a.made('cuMemsetD8Async', all.memory, 42, 64, 0);
    await a.made('cuCtxSynchronize');
    const { block } = await a.call('cuIpcGetMemHandle', 'BLOCK', all.memory);
    const shared = await a.made('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: FD }));
    const pooled = await a.made('cuMemAllocFromPoolAsync', 'OUT0', MIB, shared, all.stream);
    await a.made('cuMemsetD8Async', pooled, 43, 64, all.stream);
    await a.made('cuStreamSynchronize', all.stream);
    const exported = await a.call('cuMemPoolExportToShareableHandle', 'OUT0', shared, FD, 0);
    const pointer = { bytes: (await a.call('cuMemPoolExportPointer', 'BLOCK', pooled)).block };
    const fd = await a.sendFd(exported.int0, b);
    const pool = await b.made('cuMemPoolImportFromShareableHandle', 'OUT0', fd, FD, 0);
    const of = {
      legacy: await b.made('cuIpcOpenMemHandle_v2', 'OUT0', { base64: block }, 1),
      pool: await b.made('cuMemPoolImportPointer', 'OUT0', pool, pointer),
    };
    const askOthers = async (when: string): Promise<void> => {
      for (const [kind, memory] of Object.entries(of)) {
        const answer = await b.ask(
          `${kind} memory read by another ${when}`,
          'cuMemcpyDtoH_v2',
          'BLOCK',
          memory,
          64,
        );
        if (answer?.status === 0) named(`${kind} memory there ${when}`, firstByte(answer));
        await b.ask(
          `${kind} memory written by another ${when}`,
          'cuMemsetD8Async',
          memory + 64,
          1,
          64,
          0,
        );
        await b.ask(`the wait of the other ${when}, ${kind}`, 'cuStreamSynchronize', 0);
      }
    };
    await a.made(...a.launch(all.trap, all.stream));
    await a.call('cuStreamSynchronize', all.stream);
    await askOthers('after the loss');
    await a.kill();
    await askOthers('after its end');
    await b.ask('closed by another', 'cuIpcCloseMemHandle', of.legacy);
  });
};

/** Calls with a handle that was destroyed, each asked in a process of its own. */
const destroyed: Readonly<
  Record<
    string,
    {
      readonly make: (all: All) => Promise<number>;
      readonly destroy: CallOf<number>;
      readonly calls: Readonly<
        Record<string, (handle: number, all: All) => ReturnType<CallOf<All>>>
      >;
    }
  >
> = {
  stream: {
    make: async ({ stream }) => stream,
    destroy: (stream) => ['cuStreamDestroy_v2', stream],
    calls: {
      queried: (stream) => ['cuStreamQuery', stream],
      'waited for': (stream) => ['cuStreamSynchronize', stream],
      'its flags told': (stream) => ['cuStreamGetFlags', stream, 'OUT0'],
      'set memory in': (stream, { memory }) => ['cuMemsetD8Async', memory, 1, 64, stream],
      'launched in': (stream, { asked, k }) => asked.launch(k, stream),
      'recorded in': (stream, { recorded }) => ['cuEventRecord', recorded, stream],
      'made to wait for an event': (stream, { recorded }) => [
        'cuStreamWaitEvent',
        stream,
        recorded,
        0,
      ],
      'made to write a value': (stream, { memory }) => [
        'cuStreamWriteValue32_v2',
        stream,
        memory,
        1,
        0,
      ],
      'allocated from a pool in': (stream, { pool }) => [
        'cuMemAllocFromPoolAsync',
        'OUT0',
        MIB,
        pool,
        stream,
      ],
      captured: (stream) => ['cuStreamBeginCapture_v2', stream, 2],
      'destroyed again': (stream) => ['cuStreamDestroy_v2', stream],
    },
  },
  event: {
    make: async ({ recorded }) => recorded,
    destroy: (event) => ['cuEventDestroy_v2', event],
    calls: {
      queried: (event) => ['cuEventQuery', event],
      'waited for': (event) => ['cuEventSynchronize', event],
      recorded: (event, { stream }) => ['cuEventRecord', event, stream],
      'waited for by a stream': (event, { stream }) => ['cuStreamWaitEvent', stream, event, 0],
      timed: (event) => ['cuEventElapsedTime', 'OUT0', event, event],
      'destroyed again': (event) => ['cuEventDestroy_v2', event],
    },
  },
  context: {
    make: async ({ asked }) => asked.made('cuCtxCreate_v2', 'OUT0', 0, 0),
    destroy: (context) => ['cuCtxDestroy_v2', context],
    calls: {
      'made current': (context) => ['cuCtxPushCurrent_v2', context],
      'copied to': (context, { memory }) => [
        'cuMemcpyPeerAsync',
        memory,
        context,
        memory + 4096,
        context,
        64,
        0,
      ],
      'destroyed again': (context) => ['cuCtxDestroy_v2', context],
    },
  },
  'stream of a destroyed context': {
    make: ({ asked }) => withOther(asked, () => asked.stream()),
    destroy: () => ['cuCtxDestroy_v2', 0],
    calls: {
      queried: (stream) => ['cuStreamQuery', stream],
      'waited for': (stream) => ['cuStreamSynchronize', stream],
      'set memory in': (stream, { memory }) => ['cuMemsetD8Async', memory, 1, 64, stream],
      destroyed: (stream) => ['cuStreamDestroy_v2', stream],
    },
  },
  'event of a destroyed context': {
    make: ({ asked }) => withOther(asked, () => asked.made('cuEventCreate', 'OUT0', 0)),
    destroy: () => ['cuCtxDestroy_v2', 0],
    calls: {
      queried: (event) => ['cuEventQuery', event],
      destroyed: (event) => ['cuEventDestroy_v2', event],
    },
  },
  'memory of a destroyed context': {
    make: ({ asked }) => withOther(asked, () => asked.memory(MIB)),
    destroy: () => ['cuCtxDestroy_v2', 0],
    calls: {
      read: (memory) => ['cuMemcpyDtoH_v2', 'BLOCK', memory, 64],
      freed: (memory) => ['cuMemFree_v2', memory],
      'asked for an attribute': (memory) => ['cuPointerGetAttribute', 'OUT0', 2, memory],
    },
  },
  module: {
    make: async ({ module }) => module,
    destroy: (module) => ['cuModuleUnload', module],
    calls: {
      'asked for a kernel': (module) => ['cuModuleGetFunction', 'OUT0', module, text('k')],
      'its kernel launched': (_, { asked, k, stream }) => asked.launch(k, stream),
      'its kernel asked for an attribute': (_, { k }) => ['cuFuncGetAttribute', 'OUT0', 0, k],
      'unloaded again': (module) => ['cuModuleUnload', module],
    },
  },
  pool: {
    make: ({ asked }) => asked.made('cuMemPoolCreate', 'OUT0', poolProperties()),
    destroy: (pool) => ['cuMemPoolDestroy', pool],
    calls: {
      'allocated from': (pool, { stream }) => [
        'cuMemAllocFromPoolAsync',
        'OUT0',
        MIB,
        pool,
        stream,
      ],
      trimmed: (pool) => ['cuMemPoolTrimTo', pool, 0],
      'asked for an attribute': (pool) => ['cuMemPoolGetAttribute', pool, 7, 'OUT0'],
      'destroyed again': (pool) => ['cuMemPoolDestroy', pool],
    },
  },
  graph: {
    make: async ({ asked, stream, k }) => {
      const graph = await captured(asked, stream, k);
      const executable = await asked.made('cuGraphInstantiateWithFlags', 'OUT0', graph, 0);
      await asked.made('cuGraphDestroy', graph);
      return executable;
    },
    destroy: (executable) => ['cuGraphExecDestroy', executable],
    calls: {
      launched: (executable, { stream }) => ['cuGraphLaunch', executable, stream],
      'destroyed again': (executable) => ['cuGraphExecDestroy', executable],
    },
  },
};

/** A graph of one kernel. */
async function captured(asked: Asked, stream: number, kernel: number): Promise<number> {
  await asked.made('cuStreamBeginCapture_v2', stream, 2);
  await asked.made(...asked.launch(kernel, stream));
  return asked.made('cuStreamEndCapture', stream, 'OUT0');
}

/** Makes something in a context that is destroyed then. */
async function withOther(asked: Asked, make: () => Promise<number>): Promise<number> {
  const context = await asked.made('cuCtxCreate_v2', 'OUT0', 0, 0);
  const made = await make();
  await asked.made('cuCtxDestroy_v2', context);
  return made;
}

export const destroyedFacts: FactGroup = async (note) => {
  for (const [kind, { make, destroy, calls }] of Object.entries(destroyed))
    await questions(
      note,
      `a destroyed ${kind}`,
      Object.keys(calls),
      async (asked, what) => {
        const all = await makeAll(asked);
        const handle = await make(all);
        const call = destroy(handle);
        if (call[1] !== 0) await asked.made(...call);
        await asked.ask(what, ...(calls[what] as (typeof calls)[string])(handle, all));
        await asked.ask(`${what}, and the context is waited for`, 'cuCtxSynchronize');
      },
      MANY,
    );
};

/** What is made, and how it is destroyed. */
const handles: Readonly<
  Record<string, readonly [CallOf<All>, (handle: number, all: All) => ReturnType<CallOf<All>>]>
> = {
  stream: [
    () => ['cuStreamCreateWithPriority', 'OUT0', NON_BLOCKING, 0],
    (stream) => ['cuStreamDestroy_v2', stream],
  ],
  event: [() => ['cuEventCreate', 'OUT0', 0], (event) => ['cuEventDestroy_v2', event]],
  'interprocess event': [
    () => ['cuEventCreate', 'OUT0', 6],
    (event) => ['cuEventDestroy_v2', event],
  ],
  pool: [() => ['cuMemPoolCreate', 'OUT0', poolProperties()], (pool) => ['cuMemPoolDestroy', pool]],
  context: [() => ['cuCtxCreate_v2', 'OUT0', 0, 0], (context) => ['cuCtxDestroy_v2', context]],
  memory: [() => ['cuMemAlloc_v2', 'OUT0', 4 * MIB], (memory) => ['cuMemFree_v2', memory]],
  'small memory': [() => ['cuMemAlloc_v2', 'OUT0', 512], (memory) => ['cuMemFree_v2', memory]],
  'memory of a pool': [
    ({ pool, stream }) => ['cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream],
    (memory, { stream }) => ['cuMemFreeAsync', memory, stream],
  ],
  'pinned memory': [
    () => ['cuMemHostAlloc', 'OUT0', MIB, 3],
    (memory) => ['cuMemFreeHost', memory],
  ],
  'physical memory': [
    () => ['cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0],
    (physical) => ['cuMemRelease', physical],
  ],
  addresses: [
    () => ['cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0],
    (reserved) => ['cuMemAddressFree', reserved, UNIT],
  ],
};

export const reuseFacts: FactGroup = async (note) => {
  await questions(
    note,
    'a handle given out again',
    Object.keys(handles),
    async (asked, kind, named) => {
      const all = await makeAll(asked);
      const [make, destroy] = handles[kind] as (typeof handles)[string];
      const first = await asked.made(...make(all));
      const second = await asked.made(...make(all));
      const third = await asked.made(...make(all));
      for (const handle of [second, first]) await asked.made(...destroy(handle, all));
      const places = new Map([
        [first, 'destroyed last'],
        [second, 'destroyed first'],
        [third, 'still there'],
      ]);
      for (const n of ['next', 'one after']) {
        const again = await asked.made(...make(all));
        named(`${kind}, the ${n}`, places.get(again) ?? 'another');
      }
    },
  );
  await question(note, 'a handle given out again', async (named) => {
    await using asked = await Asked.start(named);
    const { k } = await asked.kernels();
    const stream = await asked.stream();
    await asked.hold(stream);
    await asked.made(...asked.launch(k, stream));
    const event = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
    await asked.made('cuEventRecord', event, stream);
    await asked.made('cuEventDestroy_v2', event);
    const again = await asked.made('cuEventCreate', 'OUT0', DISABLE_TIMING);
    named('event destroyed behind held work', again === event ? 'the same' : 'another');
    await asked.ask('event in its place, queried', 'cuEventQuery', again);
    await asked.made('cuStreamDestroy_v2', stream);
    const next = await asked.stream();
    named('stream destroyed with held work', next === stream ? 'the same' : 'another');
    await asked.ask('stream in its place, queried', 'cuStreamQuery', next);
  });
};
