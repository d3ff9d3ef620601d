import { inspect, types } from 'node:util';
import { BLOCK, OUT0, OUT1, readHandle, writeStruct } from '../../ffi/arena.ts';
import { CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUgraph, CUgraphExec, CUgraphNode, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { CuffiError } from '../errors.ts';
import {
  assertNotCapturing,
  type CapturedMemory,
  isCapturing,
  runDeferredActions,
  runInCapture,
} from '../graph-capture.ts';
import { counted, type Details, describeObject, placeName } from '../inspect.ts';
import { Resource, releaseOrWarn, runAll } from '../lifetime.ts';
import { noteMemoryUse, orderedMemoryCount } from '../memory/use-order.ts';
import { Stream, type StreamOption, streamOption } from '../stream.ts';
import {
  assertInternal,
  checkInstance,
  checkInteger,
  checkOptions,
  formatValue,
} from '../validate.ts';
import { assertNotCaptured, type TrackedContext } from '../work-tracker.ts';
import { loadBuiltinKernels } from './builtin-kernels.ts';
import { Kernel } from './kernel.ts';
import { type Arguments, forEachBuffer, type Parameter } from './kernel-arguments.ts';
import { type LaunchRecord, recordLaunches } from './launch-config.ts';

/**
 * Work captured from a stream and launched with one call. Many small kernels, copies and fills then
 * cost little more than one.
 *
 * The memory and the modules that the work uses must stay open as long as the graph is launched.
 * Memory that `pool.allocate` returns during the capture belongs to the graph.
 *
 * @example
 * using graph = cuda.Graph.capture(stream, () => {
 *   using scratch = pool.allocate(4096, { stream });
 *   for (const kernel of steps) kernel.launch({ grid, block, stream }, x, scratch);
 * });
 * for (let turn = 0; turn < 100; turn += 1) graph.launch({ stream });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
 */
export class Graph extends Resource {
  readonly context: Context;
  readonly #handle: CUgraphExec;
  /** Whether the graph allocates memory. */
  readonly #hasMemory: boolean;
  /** The captured functions, which keep their modules and memory from garbage collection. */
  #capturedWork: readonly (() => void)[];
  /** The memory that the graph uses. Each launch waits for what must come before that. */
  #memory: ReadonlySet<CapturedMemory>;
  /** The contexts whose memory the graph uses. Releases there wait for each launch. */
  #contexts: readonly TrackedContext[];
  #nodes: readonly KernelNode[];

  private constructor(context: Context, handle: CUgraphExec, captured: CapturedGraph) {
    assertInternal(context, Context, 'Graph', 'Graph.capture');
    const { releases, epoch } = context;
    const { graph } = captured;
    super('Graph', {
      owner: context.resources,
      release: () =>
        releases.enqueue(
          () => {
            if (context.epoch !== epoch) return;
            runAll([
              // The captured graph lives as long, because its nodes identify those of the executable.
              () => destroyGraph(context, graph),
              () => context.run(() => check(cu.cuGraphExecDestroy(handle), 'cuGraphExecDestroy')),
            ]);
          },
          { mayBlock: false },
        ),
    });
    this.context = context;
    this.#handle = handle;
    this.#hasMemory = captured.hasMemory;
    this.#capturedWork = [captured.work];
    this.#contexts = [...new Set([context, ...captured.contexts])];
    this.#memory = captured.memory;
    this.#nodes = captured.nodes;
  }

  /** @internal */
  protected override describe(): Details {
    return [
      counted(this.#nodes.length, 'kernel launch', 'kernel launches'),
      placeName(this.context),
    ];
  }

  /**
   * Calls `work` at once, and captures the work that it queues in `stream` instead of running it.
   * Another stream is captured too, from where it waits for an event of this stream until this
   * stream waits for one of its events. Calls that wait, query, allocate, or use a default stream
   * throw during the capture.
   *
   * `pool.allocate(byteLength, { stream })` returns memory of the graph: each launch allocates it
   * at that point, and frees it where its buffer is closed, at the latest at the end. Only captured
   * work may use the buffer, which is closed when the capture ends.
   *
   * @param stream not a default stream; preferably made with `nonBlocking: true`
   * @param work must be synchronous
   * @throws what `work` throws, and then makes no graph; CudaError, TypeError
   */
  static capture(stream: Stream, work: () => void): Graph {
    const { context } = checkInstance(stream, Stream, 'stream');
    const captured = captureGraph(stream, work);
    try {
      return context.run(() => {
        const call = 'cuGraphInstantiateWithFlags';
        check(cu[call](OUT0, captured.graph, 0), call, () => 'instantiating a graph');
        return new Graph(context, readHandle<CUgraphExec>(OUT0, cu.cuGraphExecDestroy), captured);
      });
    } catch (error) {
      releaseOrWarn(() => destroyGraph(context, captured.graph));
      throw error;
    }
  }

  /**
   * Frees the memory that graphs of a device have allocated and no queued launch uses. The driver
   * keeps such memory for later launches, even after `close()`.
   *
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
   */
  static trimMemory(options?: PlaceOptions): void {
    const context = Context.resolve(
      checkOptions(options, ['context', 'device'], 'Graph.trimMemory'),
    );
    const device = context.device.handle;
    context.run(() => check(cu.cuDeviceGraphMemTrim(device), 'cuDeviceGraphMemTrim'));
  }

  /** The driver's handle, a CUgraphExec. @throws ClosedError */
  get handle(): CUgraphExec {
    if (this.closed) throw this.closedError();
    return this.#handle;
  }

  /**
   * The kernel launches in the graph, in the order of their capture; `update` replaces them. Copies of
   * items with gaps are launches of cuffi's built-in kernels.
   */
  get kernelNodes(): readonly KernelNode[] {
    this.assertOpen();
    return this.#nodes;
  }

  /**
   * Returns the launch of a kernel in the graph, for {@link setArguments}.
   *
   * @param at the index of the launch, if the kernel was launched more than once
   * @throws RangeError if there is no such launch; TypeError, ClosedError
   */
  kernelNode<const P extends readonly Parameter[]>(kernel: Kernel<P>, at?: number): KernelNode<P> {
    checkInstance(kernel, Kernel, 'kernel');
    const nodes = this.kernelNodes.filter((node) => Object.is(node.kernel, kernel));
    const { length } = nodes;
    if (length === 0) throw new RangeError(`the graph has no launch of kernel ${kernel.name}`);
    if (at === undefined && length > 1)
      throw new RangeError(
        `the graph has ${length} launches of kernel ${kernel.name}: pass the index of one, from 0 to ${length - 1}`,
      );
    const place = checkInteger(
      at ?? 0,
      `at, of the ${length === 1 ? 'launch' : `${length} launches`} of kernel ${kernel.name},`,
      0,
      length - 1,
    );
    return nodes[place] as unknown as KernelNode<P>;
  }

  /**
   * Sets the arguments of one kernel launch, for later launches of the graph; queued launches keep
   * theirs. The arguments must stay open, like the captured ones.
   *
   * @throws TypeError, RangeError for arguments that do not fit the parameters, or a launch of
   * another graph; ClosedError, CudaError
   */
  setArguments<const P extends readonly Parameter[]>(
    node: KernelNode<P>,
    ...args: Arguments<P>
  ): void {
    this.assertOpen();
    const { kernel } = this.#checkNode(node);
    const snapshots = args.map(snapshotArgument);
    const contexts = argumentContexts(snapshots);
    kernel.withArguments(snapshots, (kernelParams) => {
      // Read only now: a getter of an argument may have closed or updated the graph.
      const { handle } = this;
      const current = this.#checkNode(node);
      const { grid, block, sharedBytes } = current;
      const params = writeStruct('CUDA_KERNEL_NODE_PARAMS_v2', {
        func: kernel.handle,
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: sharedBytes,
        kernelParams,
      });
      const [status, call] = kernel.context.run(() =>
        firstOf(
          'cuGraphExecKernelNodeSetParams_v2',
          cu.cuGraphExecKernelNodeSetParams_v2(handle, current.handle, params),
          'cuGraphExecKernelNodeSetParams',
          () => cu.cuGraphExecKernelNodeSetParams(handle, current.handle, params),
        ),
      );
      check(status, call, () => `setting the arguments of kernel ${kernel.name} in a graph`);
      current.recentArguments = [...current.recentArguments.slice(-1), args];
      this.#contexts = [...new Set([...this.#contexts, ...contexts])];
      this.#addMemoryOf(args);
    });
  }

  /** @throws TypeError if the value is not a launch of this graph */
  #checkNode(node: unknown): KernelNode {
    const found = this.#nodes.find((each) => Object.is(each, node));
    if (found) return found;
    throw new TypeError(
      node instanceof KernelNode
        ? `${node} is not a launch of this graph, or an update replaced it: get it again with graph.kernelNode`
        : `node must be a KernelNode, not ${formatValue(node)}`,
    );
  }

  /** Queues the graph without waiting. Launches of one graph run one after the other. */
  launch(options?: StreamOption): void {
    const stream = streamOption(options, 'launch');
    const { handle, context } = this;
    noteMemoryUse(stream?.context ?? context, this.#contexts);
    if (orderedMemoryCount > 0) for (const memory of this.#memory) memory.orderUse(stream);
    const queue = stream?.launchHandle;
    if (queue === undefined) {
      this.#launchTracked(stream, handle);
      return;
    }
    if (isCapturing()) assertNotCaptured(queue, LAUNCHING);
    const status = this.#hasMemory
      ? this.#launchInContext(handle, queue)
      : cu.cuGraphLaunch(handle, queue);
    if (status !== 0) check(status, 'cuGraphLaunch', describeLaunch);
  }

  /**
   * Queues the upload of the graph to the device, ahead of its first launch.
   */
  upload(options?: StreamOption): void {
    const stream = streamOption(options, 'upload');
    const { handle } = this;
    assertNotCapturing('uploading a graph');
    const call = (queue: CUstream): void =>
      this.context.run(() => {
        assertNotCaptured(queue, 'uploading a graph');
        check(cu.cuGraphUpload(handle, queue), 'cuGraphUpload');
      });
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }

  /**
   * Captures the same work with other arguments, for later launches; queued launches keep theirs. It
   * is much cheaper than a new graph. For a single kernel, {@link setArguments} is cheaper still.
   *
   * @throws CudaError CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE for other work, which leaves the graph
   * unchanged; CuffiError for work that allocates memory
   */
  update(stream: Stream, work: () => void): void {
    const { context } = this;
    this.assertOpen();
    checkInstance(stream, Stream, 'stream');
    if (this.#hasMemory) throw hasMemoryError();
    const captured = captureGraph(stream, work);
    const { graph, contexts, memory, nodes } = captured;
    try {
      const { handle } = this; // throws if the work has closed the graph
      if (captured.hasMemory) throw hasMemoryError();
      const [status, call] = context.run(() =>
        firstOf(
          'cuGraphExecUpdate_v2',
          cu.cuGraphExecUpdate_v2(handle, graph, BLOCK),
          'cuGraphExecUpdate',
          () => cu.cuGraphExecUpdate(handle, graph, OUT0, OUT1),
        ),
      );
      check(status, call, () => 'updating a graph');
      // Queued launches may still use what the previous function captured.
      this.#capturedWork = [...this.#capturedWork.slice(-1), work];
      this.#contexts = [...new Set([...this.#contexts, ...contexts])];
      this.#memory = new Set([...this.#memory, ...memory]);
      // The driver still identifies nodes by those of the first capture.
      this.#nodes = this.#nodes.flatMap((node, at) => nodes[at]?.replacing(node) ?? []);
    } finally {
      releaseOrWarn(() => destroyGraph(context, graph));
    }
  }

  /** Adds the memory that new arguments are, or lie in. */
  #addMemoryOf(args: readonly unknown[]): void {
    const memory = new Set(this.#memory);
    forEachBuffer(args, (buffer) => memory.add(buffer));
    this.#memory = memory;
  }

  /** Graphs that allocate are launched with their context current: nothing else was tested. */
  #launchInContext(handle: CUgraphExec, queue: CUstream): CUresult {
    return this.context.run(() => cu.cuGraphLaunch(handle, queue));
  }

  #launchTracked(stream: Stream | undefined, handle: CUgraphExec): void {
    const call = (queue: CUstream): void => {
      assertNotCaptured(queue, LAUNCHING);
      check(cu.cuGraphLaunch(handle, queue), 'cuGraphLaunch', describeLaunch);
    };
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }
}

/** The status of a call, or of an older form of it on a driver before CUDA 12.0. */
const firstOf = (
  call: FunctionName,
  status: CUresult,
  olderCall: FunctionName,
  older: () => CUresult,
): readonly [CUresult, FunctionName] =>
  status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER ? [older(), olderCall] : [status, call];

const LAUNCHING = 'launching a graph';
const describeLaunch = (): string => LAUNCHING;

const hasMemoryError = (): CuffiError =>
  new CuffiError(
    'a graph that allocates memory cannot be updated: set the arguments of its launches, or capture another',
  );

/** Copies the properties of a foreign argument, so that its getters run only once. */
function snapshotArgument(arg: unknown): unknown {
  const isForeignObject = typeof arg === 'object' && arg !== null && !(arg instanceof Resource);
  if (!isForeignObject || ArrayBuffer.isView(arg) || types.isAnyArrayBuffer(arg)) return arg;
  const { address, context, buffer, dtype } = arg as Readonly<Record<string, unknown>>;
  return { address, context, buffer, dtype };
}

/** The contexts of arguments in device memory. */
const argumentContexts = (args: readonly unknown[]): Context[] =>
  args.flatMap((each) => {
    const context: unknown = (each as { readonly context?: unknown } | null)?.context;
    return context instanceof Context ? [context] : [];
  });

// ---- Capture ----

/** The result of {@link captureGraph}. */
export interface CapturedGraph {
  readonly graph: CUgraph;
  readonly work: () => void;
  readonly contexts: ReadonlySet<TrackedContext>;
  readonly memory: ReadonlySet<CapturedMemory>;
  /** Whether the graph allocates memory. */
  readonly hasMemory: boolean;
  /** The kernel launches, in the order of their capture. */
  readonly nodes: readonly KernelNode[];
}

/**
 * Calls `work` and captures what it queues in `stream`. The caller must destroy the graph.
 *
 * @throws what `work` throws; CudaError, TypeError
 */
function captureGraph(stream: Stream, work: () => void): CapturedGraph {
  try {
    return captureStream(stream, work);
  } finally {
    runDeferredActions();
  }
}

function captureStream(stream: Stream, work: () => void): CapturedGraph {
  if (typeof work !== 'function')
    throw new TypeError(`work must be a function, not ${formatValue(work)}`);
  assertNotCapturing('capturing a graph');
  const { queryHandle: handle, context } = stream;
  if (handle <= CU_STREAM_PER_THREAD)
    throw new TypeError('a default stream cannot be captured: make one with nonBlocking: true');
  loadBuiltinKernels(context);
  check(
    // In relaxed mode only calls on the stream itself can invalidate the capture.
    cu.cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_RELAXED),
    'cuStreamBeginCapture_v2',
    () => 'beginning to capture a stream',
  );
  let captured: ReturnType<typeof runInCapture<ReturnType<typeof recordLaunches>>>;
  try {
    captured = runInCapture(handle, () => recordLaunches(work));
  } catch (error) {
    // Errors here are ignored, because the first error says more.
    if (cu.cuStreamEndCapture(handle, OUT0) === CUresult.CUDA_SUCCESS)
      releaseOrWarn(() => destroyGraph(context, readHandle<CUgraph>(OUT0)));
    throw error;
  }
  check(cu.cuStreamEndCapture(handle, OUT0), 'cuStreamEndCapture', () => 'capturing a stream');
  const graph = readHandle<CUgraph>(OUT0, cu.cuGraphDestroy);
  const { result, launches } = captured.result;
  if (types.isPromise(result)) {
    destroyGraph(context, graph);
    throw new TypeError('capture takes a synchronous function: later work is not captured');
  }
  const { contexts, memory, hasMemory } = captured;
  const nodes = launches.map(
    (launch) => new KernelNode(launch.kernel as Kernel, launch, launch.handle, [launch.args]),
  );
  return { graph, work, contexts, memory, hasMemory, nodes };
}

function destroyGraph(context: Context, graph: CUgraph): void {
  context.run(() => check(cu.cuGraphDestroy(graph), 'cuGraphDestroy'));
}

// ---- The launches in a graph ----

type Dim3 = readonly [x: number, y: number, z: number];

/**
 * One launch of a kernel in a graph: see `graph.kernelNode(kernel)`.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
 */
export class KernelNode<const P extends readonly Parameter[] = readonly Parameter[]> {
  readonly kernel: Kernel<P>;
  /** The blocks along each axis. */
  readonly grid: Dim3;
  /** The threads of a block along each axis. */
  readonly block: Dim3;
  /** Dynamic shared memory of each block, in bytes. */
  readonly sharedBytes: number;
  /** @internal The node of the captured graph. */
  readonly handle: CUgraphNode;
  /** @internal The last arguments, and those before, which queued launches may still use. */
  recentArguments: readonly (readonly unknown[])[];

  /** @internal */
  constructor(
    kernel: Kernel<P>,
    { grid, block, sharedBytes }: Pick<LaunchRecord, 'grid' | 'block' | 'sharedBytes'>,
    handle: CUgraphNode,
    recentArguments: readonly (readonly unknown[])[],
  ) {
    this.kernel = kernel;
    this.grid = grid;
    this.block = block;
    this.sharedBytes = sharedBytes;
    this.handle = handle;
    this.recentArguments = recentArguments;
  }

  /** @internal This launch with the handle of the one that it replaces in an update. */
  replacing({ handle, recentArguments }: KernelNode): KernelNode<P> {
    return new KernelNode(this.kernel, this, handle, [
      ...recentArguments.slice(-1),
      ...this.recentArguments,
    ]);
  }

  toString(): string {
    return describeObject('KernelNode', () => [
      this.kernel.name,
      `grid ${this.grid.join(' x ')}`,
      `block ${this.block.join(' x ')}`,
    ]);
  }

  [inspect.custom](): string {
    return this.toString();
  }
}
