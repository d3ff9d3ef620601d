/**
 * Modules and kernels: which calls need a current context, and what wrong code and wrong launches
 * answer.
 */
import type { FunctionName } from '../../../ffi/functions.ts';
import {
  type Argument,
  type Bytes,
  DriverProcess,
  enterContext,
  struct,
} from '../../support/calls.ts';
import type { FactGroup, Note } from './facts.ts';
import { poolProperties } from './kinds.ts';

const RELAXED = 2;
const MAX_DYNAMIC_SHARED = 8;

const text = (value: string): Bytes => ({
  bytes: Buffer.from(`${value}\0`).toString('base64'),
});

/** Two kernels and a global, in as few bytes as may be. */
const code = (version: string, target: string): Bytes =>
  text(
    `.version ${version}\n.target ${target}\n.address_size 64\n.visible .global .u32 g;\n` +
      '.visible .entry k(){ret;}\n.visible .entry p(.param .u32 a, .param .u64 b){ret;}\n',
  );

const launchIn = (hStream: number, shape: Readonly<Record<string, number>> = {}): Bytes =>
  struct('CUlaunchConfig', {
    gridDimX: 1,
    gridDimY: 1,
    gridDimZ: 1,
    blockDimX: 1,
    blockDimY: 1,
    blockDimZ: 1,
    hStream,
    ...shape,
  });

/** Calls in a process: their statuses noted, and their out-values answered. */
class Asked {
  readonly #peer: DriverProcess;
  readonly #note: Note;

  constructor(peer: DriverProcess, note: Note) {
    this.#peer = peer;
    this.#note = note;
  }

  async made(name: FunctionName, ...args: Argument[]): Promise<number> {
    const { status, out0 } = await this.#peer.call(name, ...args);
    if (status !== 0) throw new Error(`${name}: ${status}`);
    return out0;
  }

  async ask(what: string, name: FunctionName, ...args: Argument[]): Promise<number> {
    const { status, out0 } = await this.#peer.call(name, ...args);
    this.#note(`kernel: ${what}`, status);
    return out0;
  }
}

export const kernelFacts: FactGroup = async (note) => {
  await using peer = new DriverProcess();
  const context = await enterContext(peer);
  const { made, ask } = bound(new Asked(peer, note));
  const load = (image: Bytes): readonly Argument[] => ['OUT0', image, 0, 0, 0];
  const module = await made('cuModuleLoadDataEx', ...load(code('7.4', 'sm_70')));
  const kernel = await made('cuModuleGetFunction', 'OUT0', module, text('k'));
  const taking = await made('cuModuleGetFunction', 'OUT0', module, text('p'));
  const stream = await made('cuStreamCreateWithPriority', 'OUT0', 1, 0);

  for (const [what, image] of [
    ['no PTX', text('hello')],
    ['PTX without a version', text('.target sm_70\n.address_size 64\n')],
    ['PTX of a newer version', code('99.0', 'sm_70')],
    ['PTX for a GPU that is not there', code('7.4', 'sm_999')],
    ['PTX that does not parse', text('.version 7.4\n.target sm_70\n.entry k({ret;}')],
  ] as const)
    await ask(`loading ${what}`, 'cuModuleLoadDataEx', ...load(image));
  await ask('a kernel that is not there', 'cuModuleGetFunction', 'OUT0', module, text('q'));
  await ask('a kernel without a name', 'cuModuleGetFunction', 'OUT0', module, text(''));
  await ask(
    'a global that is not there',
    'cuModuleGetGlobal_v2',
    'OUT0',
    'OUT1',
    module,
    text('h'),
  );
  await ask('the second parameter', 'cuFuncGetParamInfo', taking, 1, 'OUT0', 'OUT1');
  note(
    'kernel: the offset of the second parameter',
    (await peer.call('cuFuncGetParamInfo', taking, 1, 'OUT0', 'OUT1')).out0,
  );
  await ask('a parameter beyond the last', 'cuFuncGetParamInfo', taking, 2, 'OUT0', 'OUT1');
  await ask('an attribute that is not there', 'cuFuncGetAttribute', 'OUT0', 99, kernel);
  for (const bytes of [65_536, 1 << 20])
    await ask(
      `${bytes} bytes of shared memory allowed`,
      'cuFuncSetAttribute',
      kernel,
      MAX_DYNAMIC_SHARED,
      bytes,
    );
  for (const [what, shape] of [
    ['a launch', {}],
    ['a launch of no block', { gridDimX: 0 }],
    ['a launch of no thread', { blockDimY: 0 }],
    ['a launch of 1025 threads', { blockDimX: 1025 }],
    ['a launch of 32 x 33 threads', { blockDimX: 32, blockDimY: 33 }],
    ['a launch with too much shared memory', { sharedMemBytes: 65_537 }],
  ] as const)
    await ask(what, 'cuLaunchKernelEx', launchIn(stream, shape), kernel, 0, 0);

  const calls: readonly (readonly [what: string, name: FunctionName, ...args: Argument[]])[] = [
    ['loading a module', 'cuModuleLoadDataEx', ...load(code('7.4', 'sm_70'))],
    ['cuModuleGetFunction', 'cuModuleGetFunction', 'OUT0', module, text('k')],
    ['cuModuleGetGlobal_v2', 'cuModuleGetGlobal_v2', 'OUT0', 'OUT1', module, text('g')],
    ['cuModuleGetFunctionCount', 'cuModuleGetFunctionCount', 'OUT0', module],
    ['cuModuleEnumerateFunctions', 'cuModuleEnumerateFunctions', 'BLOCK', 2, module],
    ['cuFuncGetAttribute', 'cuFuncGetAttribute', 'OUT0', 0, kernel],
    ['cuFuncSetAttribute', 'cuFuncSetAttribute', kernel, MAX_DYNAMIC_SHARED, 49_152],
    ['cuFuncSetCacheConfig', 'cuFuncSetCacheConfig', kernel, 0],
    ['cuFuncGetName', 'cuFuncGetName', 'OUT0', kernel],
    ['cuFuncGetParamInfo', 'cuFuncGetParamInfo', taking, 0, 'OUT0', 'OUT1'],
    ['cuFuncLoad', 'cuFuncLoad', kernel],
  ];
  const launches: typeof calls = (
    [
      ['a stream', stream],
      ['stream 0', 0],
      ['the per-thread stream', 2],
    ] as const
  ).flatMap(([where, handle]) => [
    [`cuLaunchKernelEx in ${where}`, 'cuLaunchKernelEx', launchIn(handle), kernel, 0, 0],
    [`cuLaunchKernel in ${where}`, 'cuLaunchKernel', kernel, 1, 1, 1, 1, 1, 1, 0, handle, 0, 0],
    [`cuStreamIsCapturing of ${where}`, 'cuStreamIsCapturing', handle, 'OUT0'],
  ]);
  const all = [...calls, ...launches];
  const other = await made('cuCtxCreate_v2', 'OUT0', 0, 0);
  for (const [what, ...call] of all) await ask(`with another context: ${what}`, ...call);
  await made('cuCtxDestroy_v2', other);
  await made('cuCtxPopCurrent_v2', 'OUT0');
  for (const [what, ...call] of all) await ask(`without a context: ${what}`, ...call);
  await ask('without a context: cuModuleUnload', 'cuModuleUnload', module);
  await made('cuCtxPushCurrent_v2', context);
  await ask('the stream after all that', 'cuStreamSynchronize', stream);
};

/** Graphs: what ends a capture, and which calls need a current context. */
export const graphFacts: FactGroup = async (note) => {
  await using peer = new DriverProcess();
  const context = await enterContext(peer);
  const { made, ask } = bound(new Asked(peer, note));
  const module = await made('cuModuleLoadDataEx', 'OUT0', code('7.4', 'sm_70'), 0, 0, 0);
  const kernel = await made('cuModuleGetFunction', 'OUT0', module, text('k'));
  const stream = await made('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  await captureFacts({ made, ask }, stream);
  await made('cuCtxPopCurrent_v2', 'OUT0');
  const outside = (name: FunctionName, ...args: Argument[]): Promise<number> =>
    ask(`without a context: ${name}`, name, ...args);
  await outside('cuStreamBeginCapture_v2', stream, RELAXED);
  await ask('a launch that is captured', 'cuLaunchKernelEx', launchIn(stream), kernel, 0, 0);
  const graph = await outside('cuStreamEndCapture', stream, 'OUT0');
  await outside('cuGraphInstantiateWithFlags', 'OUT0', graph, 0);
  await made('cuCtxPushCurrent_v2', context);
  const executable = await made('cuGraphInstantiateWithFlags', 'OUT0', graph, 0);
  await made('cuCtxPopCurrent_v2', 'OUT0');
  await outside('cuGraphUpload', executable, stream);
  await outside('cuGraphLaunch', executable, stream);
  await outside('cuGraphExecUpdate_v2', executable, graph, 'BLOCK');
  await outside('cuGraphDestroy', graph);
  await outside('cuGraphExecDestroy', executable);
  await outside('cuDeviceGraphMemTrim', 0);
};

/** What ends a capture, and what its memory takes. */
async function captureFacts(
  { made, ask }: Pick<ReturnType<typeof bound>, 'made' | 'ask'>,
  stream: number,
): Promise<void> {
  const capture = async (what: string, act: () => Promise<unknown>): Promise<void> => {
    await made('cuStreamBeginCapture_v2', stream, RELAXED);
    await act();
    await ask(`the end of a capture with ${what}`, 'cuStreamEndCapture', stream, 'OUT0');
  };
  const pool = await made('cuMemPoolCreate', 'OUT0', poolProperties());
  const shareable = await made('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: 1 }));
  const plain = await made('cuMemAlloc_v2', 'OUT0', 4096);
  const side = await made('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  const event = await made('cuEventCreate', 'OUT0', 2);
  const alloc = 'cuMemAllocFromPoolAsync';
  await ask('cuStreamGetCaptureInfo_v2 outside', 'cuStreamGetCaptureInfo_v2', ...infoOf(stream));
  await capture('memory', async () => {
    await ask('cuStreamGetCaptureInfo_v2 in it', 'cuStreamGetCaptureInfo_v2', ...infoOf(stream));
    const memory = await ask('memory of a graph', alloc, 'OUT0', 4096, pool, stream);
    await ask('its free elsewhere', 'cuMemFreeAsync', memory, side);
    await ask('its free', 'cuMemFreeAsync', memory, stream);
    await ask('its second free', 'cuMemFreeAsync', memory, stream);
  });
  await capture('a free of other memory', () =>
    ask('a captured free of other memory', 'cuMemFreeAsync', plain, stream),
  );
  await capture('memory of a shareable pool', () =>
    ask('a captured allocation of it', alloc, 'OUT0', 4096, shareable, stream),
  );
  await capture('a query', () => ask('a captured query', 'cuStreamQuery', stream));
  await capture('an event', async () => {
    await ask('a captured record', 'cuEventRecord', event, stream);
    await ask('a query of a captured event', 'cuEventQuery', event);
  });
  await capture('an event from outside', async () => {
    await ask('a record elsewhere', 'cuEventRecord', event, side);
    await ask('a captured wait for an event from outside', 'cuStreamWaitEvent', stream, event, 0);
  });
  await capture('a fork', async () => {
    await ask('a record to fork by', 'cuEventRecord', event, stream);
    await ask('a fork', 'cuStreamWaitEvent', side, event, 0);
    await ask('work in a fork', 'cuMemsetD8Async', plain, 0, 16, side);
  });
  await ask('a wait for an event of an ended capture', 'cuStreamWaitEvent', side, event, 0);
  await ask('the trim of the memory of graphs', 'cuDeviceGraphMemTrim', 0);
}

const infoOf = (stream: number): readonly Argument[] => [
  stream,
  'OUT0',
  'OUT1',
  'OUT2',
  'BLOCK',
  struct('CUmemLocation', {}),
];

const bound = (asked: Asked) => ({
  made: asked.made.bind(asked),
  ask: asked.ask.bind(asked),
});
