/**
 * Launches of kernels that do nothing, beside the driver's call alone with everything written
 * before. Never more than 500 between two waits: a full queue would be measured instead.
 */
import { readFileSync } from 'node:fs';
import { Context, DeviceBuffer, Graph, type Kernel, Module, Stream } from 'cuffi';
import { type Address, addressOf, cu, registerKernel, structs } from 'cuffi/ffi';
import { inProcess } from '../measure.ts';
import { type Aim, type Case, inPeers, type OpenCase } from './case.ts';
import { PUBLIC, RAW, requireSuccess } from './names.ts';

const ptx = readFileSync(new URL('../peers/kernels.ptx', import.meta.url), 'utf8');
const CALLS = 500;
const GRAPH_KERNELS = 100;
const LOADS = 20;
/** Batches are so short that V8 would interpret them for long; no program launches so few. */
const WARM_UP_MS = 800;
const ints = Array.from({ length: 15 }, () => 'uint32' as const);
const FOUR = ['float32', 'pointer', 'pointer', 'uint32'] as const;

// For the emulated driver, whose times say nothing.
registerKernel('none', { params: [], run() {} });
registerKernel('four', { params: FOUR, run() {} });
registerKernel('sixteen', { params: ['pointer', ...ints], run() {} });

const aims: readonly Aim[] = [
  { versus: RAW, max: 1.05 },
  { versus: 'C', max: 1.15 },
  { versus: 'cupy RawKernel', max: 1 },
  { versus: 'cuda.core', max: 1 },
];

/** What a launch of each needs. */
interface Objects {
  readonly module: Module;
  readonly stream: Stream;
  readonly buffer: DeviceBuffer;
}

type Loop = (calls: number) => void;

const loops: Readonly<Record<string, (objects: Objects) => readonly [Kernel, Loop]>> = {
  none({ module, stream }) {
    const kernel = module.kernel('none', []);
    return [
      kernel,
      (calls) => {
        for (let call = 0; call < calls; call += 1) kernel.launch({ grid: 1, block: 32, stream });
      },
    ];
  },
  four({ module, stream, buffer }) {
    const kernel = module.kernel('four', FOUR);
    return [
      kernel,
      (calls) => {
        for (let call = 0; call < calls; call += 1)
          kernel.launch({ grid: 1, block: 32, stream }, 2.5, buffer, buffer, call);
      },
    ];
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
    return [
      kernel,
      (calls) => {
        for (let call = 0; call < calls; call += 1)
          kernel.launch(config, buffer, call, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      },
    ];
  },
};

/** The driver's call with all that it reads written before: configuration and arguments. */
class RawLaunch {
  readonly #config = new Uint8Array(new ArrayBuffer(structs.CUlaunchConfig.byteLength));
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
}

function openLaunch(name: string): OpenCase {
  const module = Module.load(ptx);
  const stream = Stream.create({ nonBlocking: true });
  const buffer = DeviceBuffer.allocate(64);
  const [kernel, loop] = (loops[name] as (typeof loops)[string])({ module, stream, buffer });
  const raw = new RawLaunch(stream);
  const { handle } = kernel;
  const nothing = 0 as Address;
  const settle = (): void => stream.synchronizeSync();
  return {
    contestants: [
      inProcess(PUBLIC, loop, settle, WARM_UP_MS),
      inProcess(
        RAW,
        (calls) =>
          kernel.context.run(() => {
            const { config, arguments: args } = raw;
            let status = 0;
            for (let call = 0; call < calls; call += 1)
              status |= cu.cuLaunchKernelEx(config, handle, args, nothing);
            requireSuccess(status === 0, 'cuLaunchKernelEx');
          }),
        settle,
      ),
    ],
    close() {
      buffer.close();
      stream.close();
      module.close();
    },
  };
}

function openGraph(): OpenCase {
  const module = Module.load(ptx);
  const stream = Stream.create({ nonBlocking: true });
  const buffer = DeviceBuffer.allocate(64);
  const kernel = module.kernel('four', FOUR);
  const launchAll = (): void => {
    for (let at = 0; at < GRAPH_KERNELS; at += 1)
      kernel.launch({ grid: 1, block: 32, stream }, 2.5, buffer, buffer, at);
  };
  const graph = Graph.capture(stream, launchAll);
  // Each call is one kernel: a launch of the graph is a hundred.
  const launches = (calls: number): number => Math.max(1, Math.floor(calls / GRAPH_KERNELS));
  const settle = (): void => stream.synchronizeSync();
  const loop: Loop = (calls) => {
    for (let call = 0; call < launches(calls); call += 1) graph.launch({ stream });
  };
  return {
    contestants: [
      inProcess(PUBLIC, loop, settle, WARM_UP_MS),
      inProcess(
        `${PUBLIC}, without a graph`,
        (calls) => {
          for (let call = 0; call < launches(calls); call += 1) launchAll();
        },
        settle,
      ),
    ],
    close() {
      graph.close();
      buffer.close();
      stream.close();
      module.close();
    },
  };
}

function openLoad(): OpenCase {
  const context = Context.primary();
  const settle = (): void => context.synchronizeSync();
  const loop: Loop = (calls) => {
    for (let call = 0; call < calls; call += 1) Module.load(ptx).close();
  };
  return {
    contestants: [inProcess(PUBLIC, loop, settle, WARM_UP_MS)],
    close() {},
  };
}

const launchCase = (name: string, count: number): Case => ({
  name: 'kernel.launch',
  variant: `${count} arguments`,
  what: `launches a kernel of ${count} arguments that does nothing: cuLaunchKernelEx`,
  calls: CALLS,
  peers: [
    ...inPeers(`launch.${name}`, 'C', 'cuda.core'),
    { peer: 'cupy', batch: `launch.${name}`, name: 'cupy RawKernel' },
    // PyTorch launches its own kernels alone: one of as many arguments.
    ...(name === 'four' ? [{ peer: 'torch', batch: 'add', name: 'torch.add_' } as const] : []),
  ],
  aims,
  open: () => openLaunch(name),
});

export const kernelCases: readonly Case[] = [
  launchCase('none', 0),
  launchCase('four', 4),
  launchCase('sixteen', 16),
  {
    name: 'graph.launch',
    variant: `${GRAPH_KERNELS} kernels`,
    what: `launches a graph of ${GRAPH_KERNELS} kernels of 4 arguments; the time of one kernel`,
    calls: CALLS,
    needsGpu: true,
    peers: inPeers('graph.launch', 'C', 'cupy'),
    aims: [{ versus: 'C', max: 1.15 }],
    open: openGraph,
  },
  {
    name: 'Module.load',
    what: 'loads three kernels of PTX that the driver has compiled before, and unloads them',
    calls: LOADS,
    peers: inPeers('module.load', 'C'),
    aims: [{ versus: 'C', max: 1.5 }],
    open: openLoad,
  },
];
