/**
 * Kernels that do nothing: launching, loading and graphs. A kernel whose last argument has its highest
 * bit set stores its arguments, so that a case can check them. A batch has at most 500 launches,
 * because a full queue would make the driver wait.
 */
import { readFileSync } from 'node:fs';
import { Context, DeviceBuffer, Graph, type Kernel, Module, Stream } from 'cuffi';
import {
  type Address,
  addressOf,
  type CUmodule,
  cu,
  readHandle,
  registerKernel,
  structs,
  withAddress,
  writeUint64,
} from 'cuffi/ffi';
import { inProcess } from '../measure.ts';
import { type Case, inPeers, type OpenCase, PUBLIC, RAW, requireSuccess } from './case.ts';
import { GpuTimer } from './gpu-timer.ts';

const LAUNCH_CALLS = 500;
const LOADS = 20;
/** A batch is short: V8 would interpret it for many rounds. */
const LAUNCH_WARM_UP_MS = 800;

type Loop = (calls: number) => void;

const nothing = 0 as Address;
/** Eight bytes that the driver writes a handle to. */
const out = writeUint64(0);

function openLaunch(name: string): OpenCase {
  const module = Module.load(ptx);
  const stream = Stream.create({ nonBlocking: true });
  const buffer = DeviceBuffer.allocate(64);
  const open = idleLaunches[name] as (typeof idleLaunches)[string];
  const { kernel, loop, ask, asked, written }: IdleLaunch = open({ module, stream, buffer });
  const raw = new RawLaunch(stream);
  const { handle } = kernel;
  const settle = (): void => stream.synchronizeSync();
  const loopRaw: Loop = (calls) =>
    kernel.context.run(() => {
      const { config, arguments: args } = raw;
      let status = 0;
      for (let call = 0; call < calls; call += 1)
        status |= cu.cuLaunchKernelEx(config, handle, args, nothing);
      requireSuccess(status === 0, 'cuLaunchKernelEx');
    });
  return {
    contestants: [
      inProcess(PUBLIC, loop, settle, LAUNCH_WARM_UP_MS),
      inProcess(RAW, loopRaw, settle),
    ],
    verify() {
      requireWritten({ stream, buffer }, ask, written, PUBLIC);
      raw.pass(asked);
      requireWritten({ stream, buffer }, () => loopRaw(1), written, RAW);
    },
    close() {
      buffer.close();
      stream.close();
      module.close();
    },
  };
}

function openLoad(): OpenCase {
  const context = Context.primary();
  const settle = (): void => context.synchronizeSync();
  const text = Buffer.from(`${ptx}\0`);
  const bytes = new Uint8Array(new ArrayBuffer(text.byteLength));
  bytes.set(text);
  const loop: Loop = (calls) => {
    for (let call = 0; call < calls; call += 1) Module.load(ptx).close();
  };
  return {
    contestants: [
      inProcess(PUBLIC, loop, settle, LAUNCH_WARM_UP_MS),
      inProcess(
        RAW,
        (calls) =>
          context.run(() =>
            withAddress(bytes, (image) => {
              let status = 0;
              for (let call = 0; call < calls; call += 1) {
                status |= cu.cuModuleLoadDataEx(out, image, 0, nothing, nothing);
                status |= cu.cuModuleUnload(readHandle<CUmodule>(out));
              }
              requireSuccess(status === 0, 'cuModuleLoadDataEx');
            }),
          ),
        settle,
      ),
    ],
    close() {},
  };
}

const launchCase = (name: string, count: number): Case => ({
  name: 'kernel.launch',
  variant: `${count} arguments`,
  what: `launches a kernel of ${count} arguments that does nothing: cuLaunchKernelEx`,
  calls: LAUNCH_CALLS,
  peers: [
    ...inPeers(`launch.${name}`, 'C', 'cuda.core'),
    { peer: 'cupy', batch: `launch.${name}`, name: 'cupy RawKernel' },
    // PyTorch launches its own kernels alone: one of as many arguments.
    ...(name === 'four' ? [{ peer: 'torch', batch: 'add', name: 'torch.add_' } as const] : []),
  ],
  open: () => openLaunch(name),
});

const KERNELS = 100;

const graphCases: readonly Case[] = [
  {
    name: 'graph.launch',
    variant: `${KERNELS} kernels`,
    what: `launches a graph of ${KERNELS} kernels of 4 arguments; the time of one kernel`,
    calls: LAUNCH_CALLS,
    needsGpu: true,
    peers: inPeers('graph.launch', 'C', 'cupy'),
    open: openGraphLaunch,
  },
  {
    name: 'graph.run',
    variant: `${KERNELS} kernels`,
    what: `runs a graph of ${KERNELS} kernels of 4 arguments; the time of one kernel`,
    calls: LAUNCH_CALLS,
    rounds: 15,
    budgetMs: 400,
    isOnce: true,
    clock: 'gpu',
    needsGpu: true,
    peers: inPeers('gpu.graph', 'C', 'cupy'),
    open: openGraphRun,
  },
];

const launchCases: readonly Case[] = [
  launchCase('none', 0),
  launchCase('four', 4),
  launchCase('sixteen', 16),
  {
    name: 'Module.load',
    what: 'loads three kernels of PTX that the driver has compiled before, and unloads them',
    calls: LOADS,
    peers: inPeers('module.load', 'C'),
    open: openLoad,
  },
];

function openGraphLaunch(): OpenCase {
  const stream = Stream.create({ nonBlocking: true });
  const { graph, launch, launchAll, verify, close } = makeGraph(stream);
  const settle = (): void => stream.synchronizeSync();
  const [graphHandle, streamHandle] = [graph.handle, stream.handle];
  return {
    contestants: [
      inProcess(PUBLIC, launch, settle, LAUNCH_WARM_UP_MS),
      inProcess(
        RAW,
        (calls) => {
          let status = 0;
          for (let call = 0; call < launchesOf(calls); call += 1)
            status |= cu.cuGraphLaunch(graphHandle, streamHandle);
          requireSuccess(status === 0, 'cuGraphLaunch');
        },
        settle,
      ),
      inProcess(WITHOUT, launchAll, settle),
    ],
    verify,
    close() {
      close();
      stream.close();
    },
  };
}

function openGraphRun(): OpenCase {
  const timer = new GpuTimer();
  const { launch, launchAll, verify, close } = makeGraph(timer.stream);
  return {
    contestants: [timer.contestant(PUBLIC, launch), timer.contestant(WITHOUT, launchAll)],
    verify,
    close() {
      close();
      timer.close();
    },
  };
}

/** How often a graph is launched for so many kernels. */
const launchesOf = (calls: number): number => Math.max(1, Math.floor(calls / KERNELS));

const WITHOUT = `${PUBLIC}, without a graph`;

/** The graph, and the same launches without it; `calls` counts kernels. */
function makeGraph(stream: Stream) {
  const module = Module.load(ptx);
  const buffer = DeviceBuffer.allocate(64);
  const kernel = module.kernel('four', FOUR);
  // The last kernel stores its arguments.
  const numberOf = (at: number): number => (at === KERNELS - 1 ? ASKED + at : at);
  const launchEach = (): void => {
    for (let at = 0; at < KERNELS; at += 1)
      kernel.launch({ grid: 1, block: 32, stream }, 2.5, buffer, buffer, numberOf(at));
  };
  const graph = Graph.capture(stream, launchEach);
  const launch = (calls: number): void => {
    for (let call = 0; call < launchesOf(calls); call += 1) graph.launch({ stream });
  };
  return {
    graph,
    launch,
    launchAll(calls: number) {
      for (let call = 0; call < launchesOf(calls); call += 1) launchEach();
    },
    verify() {
      const written = writtenByFour(buffer, numberOf(KERNELS - 1));
      requireWritten({ stream, buffer }, () => launch(1), written, PUBLIC);
    },
    close() {
      for (const resource of [graph, buffer, module]) resource.close();
    },
  };
}

const ptx: string = readFileSync(new URL('../peers/kernels.ptx', import.meta.url), 'utf8');

/** Makes a kernel store its arguments. */
const ASKED = 0x8000_0000;
const FACTOR = 2.5;
const FACTOR_BITS = 0x4020_0000;

const FOUR = ['float32', 'pointer', 'pointer', 'uint32'] as const;
const ints = Array.from({ length: 15 }, () => 'uint32' as const);

// For the emulated driver.
registerKernel('none', { params: [], run() {} });
registerKernel('four', {
  params: FOUR,
  run({ view }, [a, x, y, n]) {
    if (n < ASKED) return;
    view(x, Float32Array, 1)[0] = a;
    view(x + 4, Uint32Array, 1)[0] = n;
    view(x + 8, BigUint64Array, 1)[0] = BigInt(y);
  },
});
registerKernel('sixteen', {
  params: ['pointer', ...ints],
  run({ view }, [to, ...numbers]) {
    if ((numbers.at(-1) as number) >= ASKED) view(to, Uint32Array, numbers.length).set(numbers);
  },
});

interface LaunchObjects {
  readonly module: Module;
  readonly stream: Stream;
  readonly buffer: DeviceBuffer;
}

/** A kernel and its launches through the public API. */
interface IdleLaunch {
  readonly kernel: Kernel;
  /** Each kernel has its own loop, so that V8 compiles each separately. */
  readonly loop: (calls: number) => void;
  /** The same launch with arguments that are stored, if there are any. */
  readonly ask: () => void;
  /** The arguments of that launch as words, and what the kernel stores. */
  readonly asked: readonly bigint[];
  readonly written: readonly number[];
}

/** The words that the kernel `four` stores. */
const writtenByFour = ({ address }: DeviceBuffer, last: number): number[] => [
  FACTOR_BITS,
  last,
  address % 2 ** 32,
  Math.floor(address / 2 ** 32),
];

const idleLaunches: Readonly<Record<string, (objects: LaunchObjects) => IdleLaunch>> = {
  none({ module, stream }) {
    const kernel = module.kernel('none', []);
    return {
      kernel,
      loop(calls) {
        for (let call = 0; call < calls; call += 1) kernel.launch({ grid: 1, block: 32, stream });
      },
      ask() {},
      asked: [],
      written: [],
    };
  },
  four({ module, stream, buffer }) {
    const kernel = module.kernel('four', FOUR);
    const last = ASKED + 7;
    const address = BigInt(buffer.address);
    return {
      kernel,
      loop(calls) {
        for (let call = 0; call < calls; call += 1)
          kernel.launch({ grid: 1, block: 32, stream }, FACTOR, buffer, buffer, call);
      },
      ask: () => kernel.launch({ grid: 1, block: 32, stream }, FACTOR, buffer, buffer, last),
      asked: [BigInt(FACTOR_BITS), address, address, BigInt(last)],
      written: writtenByFour(buffer, last),
    };
  },
  sixteen({ module, stream, buffer }) {
    const kernel = module.kernel('sixteen', [
      'pointer',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
    ]);
    const config = { grid: 1, block: 32, stream };
    const last = ASKED + 15;
    const written = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, last];
    return {
      kernel,
      loop(calls) {
        for (let call = 0; call < calls; call += 1)
          kernel.launch(config, buffer, call, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      },
      ask: () => kernel.launch(config, buffer, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, last),
      asked: [BigInt(buffer.address), ...written.map(BigInt)],
      written,
    };
  },
};

/** Clears the memory, launches, and compares. @throws Error if the kernel stored anything else */
function requireWritten(
  { stream, buffer }: Omit<LaunchObjects, 'module'>,
  launch: () => void,
  written: readonly number[],
  what: string,
): void {
  buffer.fill(0);
  buffer.context.synchronizeSync();
  launch();
  stream.synchronizeSync();
  const seen = buffer.copyToHostSync(new Uint32Array(buffer.byteLength / 4));
  requireSuccess(
    written.every((word, at) => word === seen[at]),
    `${what}, whose arguments did not arrive,`,
  );
}

/** The memory that the driver reads at a launch, written once: configuration and arguments. */
class RawLaunch {
  readonly #config = new Uint8Array(new ArrayBuffer(structs.CUlaunchConfig.byteLength));
  /** The address of each argument, then the arguments. */
  readonly #arguments = new BigUint64Array(new ArrayBuffer(16 * 8 * 2));
  readonly config: Address;
  readonly arguments: Address;

  constructor(stream: Stream) {
    const { fields } = structs.CUlaunchConfig;
    const view = new DataView(this.#config.buffer);
    for (const size of ['gridDimX', 'gridDimY', 'gridDimZ', 'blockDimY', 'blockDimZ'] as const)
      view.setUint32(fields[size][0], 1, true);
    view.setUint32(fields.blockDimX[0], 32, true);
    view.setBigUint64(fields.hStream[0], BigInt(stream.handle), true);
    this.config = addressOf(this.#config);
    this.arguments = addressOf(this.#arguments);
    for (let at = 0; at < 16; at += 1) this.#arguments[at] = BigInt(this.arguments + 8 * (16 + at));
  }

  /** Replaces the arguments, which are zeros at first. */
  pass(words: readonly bigint[]): void {
    this.#arguments.set(words, 16);
  }
}

export const kernelCases: readonly Case[] = [...launchCases, ...graphCases];
