/** A graph of kernels that do nothing: what its launch costs, and what the GPU takes for it. */
import { DeviceBuffer, Graph, Module, Stream } from 'cuffi';
import { GpuTimer } from '../gpu-time.ts';
import { inProcess } from '../measure.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { ASKED, FOUR, ptx, requireWritten, writtenByFour } from './idle-kernels.ts';
import { LAUNCH_CALLS, LAUNCH_WARM_UP_MS } from './kernels.ts';
import { PUBLIC } from './names.ts';

const KERNELS = 100;

export const graphCases: readonly Case[] = [
  {
    name: 'graph.launch',
    variant: `${KERNELS} kernels`,
    what: `launches a graph of ${KERNELS} kernels of 4 arguments; the time of one kernel`,
    calls: LAUNCH_CALLS,
    needsGpu: true,
    peers: inPeers('graph.launch', 'C', 'cupy'),
    aims: [{ versus: 'C', max: 1.15 }],
    open: openLaunch,
  },
  {
    name: 'graph.run',
    variant: `${KERNELS} kernels`,
    what: `runs a graph of ${KERNELS} kernels of 4 arguments; the time of one kernel`,
    calls: LAUNCH_CALLS,
    rounds: 15,
    passes: 2,
    budgetMs: 500,
    clock: 'gpu',
    needsGpu: true,
    peers: inPeers('gpu.graph', 'C', 'cupy'),
    open: openRun,
  },
];

function openLaunch(): OpenCase {
  const stream = Stream.create({ nonBlocking: true });
  const { launch, launchAll, verify, close } = makeGraph(stream);
  const settle = (): void => stream.synchronizeSync();
  return {
    contestants: [
      inProcess(PUBLIC, launch, settle, LAUNCH_WARM_UP_MS),
      inProcess(WITHOUT, launchAll, settle),
    ],
    verify,
    close() {
      close();
      stream.close();
    },
  };
}

function openRun(): OpenCase {
  const timer = GpuTimer.create();
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

const WITHOUT = `${PUBLIC}, without a graph`;

/** The graph, and the same launches without it; `calls` are kernels. */
function makeGraph(stream: Stream) {
  const module = Module.load(ptx);
  const buffer = DeviceBuffer.allocate(64);
  const kernel = module.kernel('four', FOUR);
  // The last one writes its arguments down.
  const numberOf = (at: number): number => (at === KERNELS - 1 ? ASKED + at : at);
  const launchEach = (): void => {
    for (let at = 0; at < KERNELS; at += 1)
      kernel.launch({ grid: 1, block: 32, stream }, 2.5, buffer, buffer, numberOf(at));
  };
  const graph = Graph.capture(stream, launchEach);
  const launches = (calls: number): number => Math.max(1, Math.floor(calls / KERNELS));
  const launch = (calls: number): void => {
    for (let call = 0; call < launches(calls); call += 1) graph.launch({ stream });
  };
  return {
    launch,
    launchAll(calls: number) {
      for (let call = 0; call < launches(calls); call += 1) launchEach();
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
