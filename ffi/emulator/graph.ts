/** Graphs: stream capture, and executable graphs, whose nodes run one after the other. */
import {
  CU_STREAM_CAPTURE_MODE_RELAXED,
  CU_STREAM_CAPTURE_STATUS_ACTIVE,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED,
  CU_STREAM_CAPTURE_STATUS_NONE,
  CU_STREAM_LEGACY,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { allocatePermanent } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Address, CUgraph, CUgraphExec, CUgraphNode } from '../types.ts';
import type { Context } from './context.ts';
import { freesAllMemory, type GraphMemory, takeGraphMemory } from './graph-memory.ts';
import type { Handles } from './handles.ts';
import type { LaunchFactory } from './kernels.ts';
import type { Modules } from './modules.ts';
import type { EmulatorParts } from './pools.ts';
import { Capture, type GraphNode, type Work } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_ILLEGAL_STATE,
  CUDA_ERROR_NOT_SUPPORTED,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
  CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
} = CUresult;

/** The most dependencies that cuStreamGetCaptureInfo reports. */
const MAX_DEPENDENCIES = 64;

export type GraphFunctions = Pick<
  Driver,
  | 'cuStreamBeginCapture_v2'
  | 'cuStreamEndCapture'
  | 'cuStreamIsCapturing'
  | 'cuStreamGetCaptureInfo_v2'
  | 'cuGraphDestroy'
  | 'cuGraphInstantiateWithFlags'
  | 'cuGraphExecDestroy'
  | 'cuGraphExecUpdate'
  | 'cuGraphExecUpdate_v2'
  | 'cuGraphExecKernelNodeSetParams'
  | 'cuGraphExecKernelNodeSetParams_v2'
  | 'cuGraphLaunch'
  | 'cuGraphUpload'
  | 'cuDeviceGraphMemTrim'
>;

/** A graph that can be instantiated. */
interface Graph {
  readonly capture: Capture;
  readonly memory: GraphMemory;
}

/** The graphs of this process, by handle. */
export class Graphs {
  readonly templates: Map<number, Graph> = new Map<number, Graph>();
  readonly executables: Map<number, ExecutableGraph> = new Map<number, ExecutableGraph>();
}

export function graphFunctions(
  parts: EmulatorParts,
  { templates: graphs, executables }: Graphs,
  modules: Modules,
  handles: Handles,
  createLaunch: LaunchFactory,
): GraphFunctions {
  const { queues, host, contexts, pools } = parts;
  let dependencyHandles: Address | undefined;

  const forget = (type: 'CUgraph' | 'CUgraphExec', handle: number): void => {
    (type === 'CUgraph' ? graphs : executables).delete(handle);
    handles.release(type, handle);
  };

  contexts.onEnd((ended) => {
    for (const [handle, { capture, memory }] of graphs)
      if (capture.origin.context === ended) {
        forget('CUgraph', handle);
        memory.free();
      }
    for (const [handle, { context, memory }] of executables)
      if (context === ended) {
        forget('CUgraphExec', handle);
        memory.free();
      }
  });

  const captureStatusOf = ({ capture }: { capture: Capture | undefined }): number => {
    if (!capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return capture.isInvalid
      ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  };

  const update = (handle: CUgraphExec, graphHandle: CUgraph): Status => {
    const executable = executables.get(handle);
    const graph = graphs.get(graphHandle);
    if (!executable || !graph) return CUDA_ERROR_INVALID_VALUE;
    return executable.update(graph.capture) ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  };
  const setParams = (handle: CUgraphExec, node: CUgraphNode, address: Address): Status => {
    const executable = executables.get(handle);
    const given = host.readStruct('CUDA_KERNEL_NODE_PARAMS_v2', address);
    const kernel = given && modules.kernel(given.func);
    if (executable?.node(node)?.kind !== 'kernel' || !kernel) return CUDA_ERROR_INVALID_VALUE;
    const shape = {
      grid: [given.gridDimX, given.gridDimY, given.gridDimZ],
      block: [given.blockDimX, given.blockDimY, given.blockDimZ],
      sharedBytes: given.sharedMemBytes,
    } as const;
    const work = createLaunch(kernel, shape, given.kernelParams);
    if (typeof work === 'number') return work;
    executable.replace(node, () => work);
    return CUDA_SUCCESS;
  };
  return {
    cuStreamBeginCapture_v2(handle, mode) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      if (stream.handle === CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
      if (stream.capture) return CUDA_ERROR_ILLEGAL_STATE;
      const isRelaxed = mode === CU_STREAM_CAPTURE_MODE_RELAXED;
      queues.captures.add(new Capture(handles.make('CUgraph'), stream, isRelaxed));
      return CUDA_SUCCESS;
    },
    cuStreamEndCapture(handle, out) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      const { capture } = stream;
      if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
      if (capture.origin !== stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
      const isJoined = capture.end();
      queues.captures.delete(capture);
      const memory = takeGraphMemory(parts, capture);
      memory.addReference();
      host.setUint64(out, 0);
      if (!isJoined || capture.isInvalid) {
        memory.removeReference();
        handles.release('CUgraph', capture.id);
      }
      if (capture.isInvalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      if (!isJoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      graphs.set(capture.id, { capture, memory });
      host.setUint64(out, capture.id);
      return CUDA_SUCCESS;
    },
    cuStreamIsCapturing(handle, out) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      host.setInt32(out, captureStatusOf(stream));
      return CUDA_SUCCESS;
    },
    cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      const { capture } = stream;
      host.setInt32(status, captureStatusOf(stream));
      if (!capture) return CUDA_SUCCESS;
      if (id !== 0) host.setUint64(id, capture.id);
      if (graph !== 0) host.setUint64(graph, capture.id);
      const tails = [...capture.positionOf(stream).dependencies].slice(0, MAX_DEPENDENCIES);
      dependencyHandles ??= allocatePermanent(8 * MAX_DEPENDENCIES);
      for (const [at, node] of tails.entries())
        host.setUint64(dependencyHandles + 8 * at, node.handle);
      if (nodes !== 0) host.setUint64(nodes, dependencyHandles);
      if (count !== 0) host.setUint64(count, tails.length);
      return CUDA_SUCCESS;
    },
    cuGraphDestroy(handle) {
      const graph = graphs.get(handle);
      if (!graph) return CUDA_ERROR_INVALID_VALUE;
      forget('CUgraph', handle);
      graph.memory.removeReference();
      return CUDA_SUCCESS;
    },
    cuGraphInstantiateWithFlags(out, handle, flags) {
      const graph = graphs.get(handle);
      if (!graph) return CUDA_ERROR_INVALID_VALUE;
      // Memory that outlives a launch is not emulated.
      if (flags !== 0 || !freesAllMemory(graph.capture)) return CUDA_ERROR_NOT_SUPPORTED;
      const executable = handles.make('CUgraphExec');
      executables.set(executable, new ExecutableGraph(graph.capture, graph.memory));
      host.setUint64(out, executable);
      return CUDA_SUCCESS;
    },
    cuGraphExecDestroy(handle) {
      const executable = executables.get(handle);
      if (!executable) return CUDA_ERROR_INVALID_VALUE;
      forget('CUgraphExec', handle);
      executable.destroy();
      return CUDA_SUCCESS;
    },
    cuGraphExecUpdate: update,
    cuGraphExecUpdate_v2: update,
    cuGraphExecKernelNodeSetParams: setParams,
    cuGraphExecKernelNodeSetParams_v2: setParams,
    cuGraphLaunch(handle, streamHandle) {
      const executable = executables.get(handle);
      const stream = queues.get(streamHandle);
      if (!executable || !stream) return CUDA_ERROR_INVALID_VALUE;
      queues.enqueueRepeatable(stream, () => executable.launch(), 'graph');
      return CUDA_SUCCESS;
    },
    cuGraphUpload: (handle, stream) =>
      executables.has(handle) && queues.get(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
    cuDeviceGraphMemTrim(device) {
      if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
      pools.forGraphs(device)?.trim(0);
      return CUDA_SUCCESS;
    },
  };
}

/** An executable graph (CUgraphExec). */
class ExecutableGraph {
  readonly #nodes: GraphNode[];
  /** The nodes of the original graph, by which later calls identify its nodes. */
  readonly #handles: readonly number[];
  readonly memory: GraphMemory;
  readonly context: Context;
  /** The queued launches, oldest first. Each runs after those before it. */
  readonly #launches: object[] = [];

  constructor(graph: Capture, memory: GraphMemory) {
    this.context = graph.origin.context;
    this.#nodes = [...graph.nodes];
    this.#handles = graph.nodes.map(({ handle }) => handle);
    this.memory = memory;
    memory.addReference();
  }

  /** Creates the work of one launch, with the current nodes. */
  launch(): Work {
    const launch = {};
    const works = this.#nodes.map(({ work }) => work());
    this.#launches.push(launch);
    this.memory.addReference();
    let done = 0;
    return () => {
      if (this.#launches[0] !== launch) return false;
      for (; done < works.length; done += 1) if (!(works[done] as Work)()) return false;
      this.#launches.shift();
      this.memory.removeReference();
      return true;
    };
  }

  node(handle: number): GraphNode | undefined {
    return this.#nodes[this.#handles.indexOf(handle)];
  }

  /** Replaces the work of a node in later launches. */
  replace(handle: number, work: () => Work): void {
    const at = this.#handles.indexOf(handle);
    this.#nodes[at] = { ...(this.#nodes[at] as GraphNode), work };
  }

  /** Takes over the work of another graph. Returns false, without effect, if the kinds differ. */
  update({ nodes }: Capture): boolean {
    const isSame =
      nodes.length === this.#nodes.length &&
      nodes.every(({ kind }, at) => kind === this.#nodes[at]?.kind && isUpdatable(kind));
    if (isSame) this.#nodes.splice(0, nodes.length, ...nodes);
    return isSame;
  }

  destroy(): void {
    this.memory.removeReference();
  }
}

const isUpdatable = (kind: GraphNode['kind']): boolean => kind !== 'allocate' && kind !== 'free';
