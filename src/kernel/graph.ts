import { types } from 'node:util';
import { BLOCK, OUT0, readHandle, writeStruct } from '../../ffi/arena.ts';
import { CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUgraph, CUgraphExec, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { CuffiError, NotSupportedError } from '../errors.ts';
import { assertNotCapturing, runDeferredActions, runInCapture } from '../graph-capture.ts';
import { Resource, releaseOrWarn, runAll } from '../lifetime.ts';
import { noteMemoryUse } from '../memory/buffer-copy.ts';
import { Stream, type StreamOption, streamOption } from '../stream.ts';
import {
  assertInternal,
  checkInstance,
  checkInteger,
  checkOptions,
  formatValue,
} from '../validate.ts';
import type { TrackedContext } from '../work-tracker.ts';
import { Kernel } from './kernel.ts';
import { KernelNode, recordLaunches } from './kernel-node.ts';
import type { Arguments, Parameter } from './parameters.ts';

/**
 * Work that was captured from a stream, launched as a whole with one call: many small kernels, copies
 * and fills then cost the driver little more than one.
 *
 * It has the addresses of the memory that it works on, and its kernels: these must stay open as long
 * as it is launched. Memory that `pool.allocate` gives out in the capture is the graph's own.
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
  /** Whether it has memory of its own. */
  readonly #hasMemory: boolean;
  /** What was captured, so that the modules and the memory that it names are not collected. */
  #capturedWork: readonly (() => void)[];
  /** Whose memory it uses, which must outlive each launch. */
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
              // Its nodes are named by those of what was captured, which lives as long.
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
    this.#nodes = captured.nodes;
  }

  /**
   * Calls `work` at once, and takes what it queues in `stream` into a graph in place of running it;
   * so for other streams, from where they wait for an event of this one until it waits for one of
   * theirs. What would wait, ask, allocate, or work in a default stream is refused meanwhile.
   *
   * `pool.allocate(byteLength, { stream })` gives memory of the graph: each launch allocates it
   * there, and frees it where its buffer is closed, at the latest at the end. The buffer is for what
   * is captured, and closed when the capture ends.
   *
   * @param stream one that was made with `nonBlocking: true`, best; not a default stream
   * @param work must be synchronous
   * @throws what `work` throws, then there is no graph; CudaError, TypeError
   */
  static capture(stream: Stream, work: () => void): Graph {
    const { context } = checkInstance(stream, Stream, 'stream');
    const captured = captureGraph(stream, work);
    try {
      return context.run(() => {
        const call = 'cuGraphInstantiateWithFlags';
        check(cu[call](OUT0, captured.graph, 0), call, () => 'making a graph ready to be launched');
        return new Graph(context, readHandle<CUgraphExec>(OUT0, cu.cuGraphExecDestroy), captured);
      });
    } catch (error) {
      releaseOrWarn(() => destroyGraph(context, captured.graph));
      throw error;
    }
  }

  /**
   * Gives back what the graphs of a device had as memory of their own, as far as no launch of them
   * is queued: the driver keeps it for later launches, after `close()`, too.
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
   * Its launches of kernels, in the order in which they were captured; others after `update`. Copies of
   * items with gaps are such, too: of kernels of cuffi's own.
   */
  get kernelNodes(): readonly KernelNode[] {
    this.assertOpen();
    return this.#nodes;
  }

  /**
   * A launch of a kernel in it, for {@link setArguments}.
   *
   * @param at which one in their order, where the kernel was launched more than once
   * @throws RangeError where there is none; TypeError, ClosedError
   */
  kernelNode<const P extends readonly Parameter[]>(kernel: Kernel<P>, at?: number): KernelNode<P> {
    checkInstance(kernel, Kernel, 'kernel');
    const nodes = this.kernelNodes.filter((node) => Object.is(node.kernel, kernel));
    const { length } = nodes;
    if (length === 0) throw new RangeError(`the graph has no launch of kernel ${kernel.name}`);
    if (at === undefined && length > 1)
      throw new RangeError(
        `the graph has ${length} launches of kernel ${kernel.name}: say which, from 0 to ${length - 1}`,
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
   * Sets the arguments of one launch in it, for later launches of the graph; those that are queued
   * go on as they were. What it is given must stay open, as what was captured.
   *
   * @throws TypeError, RangeError for arguments that do not fit the parameters, or a launch that is
   * none of this graph; ClosedError, CudaError; NotSupportedError before CUDA 12.0
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
      // Only now: a getter of an argument may have closed or updated the graph, or closed the module.
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
      const call = 'cuGraphExecKernelNodeSetParams_v2';
      const status = kernel.context.run(() => cu[call](handle, current.handle, params));
      if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER) throw driverTooOldError();
      check(status, call, () => `setting the arguments of kernel ${kernel.name} in a graph`);
      current.recentArguments = [...current.recentArguments.slice(-1), args];
      this.#contexts = [...new Set([...this.#contexts, ...contexts])];
    });
  }

  /** A launch of this graph. @throws TypeError for anything else */
  #checkNode(node: unknown): KernelNode {
    const found = this.#nodes.find((each) => Object.is(each, node));
    if (found) return found;
    throw new TypeError(
      node instanceof KernelNode
        ? `${node} is no launch of this graph, or was before an update: ask graph.kernelNode again`
        : `node must be a KernelNode, not ${formatValue(node)}`,
    );
  }

  /** Queues all of it; nothing waits. Launches of one graph run one after the other. */
  launch(options?: StreamOption): void {
    const stream = streamOption(options, 'launch');
    const { handle, context } = this;
    noteMemoryUse(stream?.context ?? context, this.#contexts);
    const queue = stream?.untrackedHandle;
    if (queue === undefined) {
      this.#launchTracked(stream, handle);
      return;
    }
    const status = this.#hasMemory
      ? this.#launchInContext(handle, queue)
      : cu.cuGraphLaunch(handle, queue);
    if (status !== 0) check(status, 'cuGraphLaunch', describeLaunch);
  }

  /**
   * Brings the graph to the device ahead of its first launch, in a stream; only queues.
   */
  upload(options?: StreamOption): void {
    const stream = streamOption(options, 'upload');
    const { handle } = this;
    assertNotCapturing('uploading a graph');
    const call = (queue: CUstream): void =>
      this.context.run(() => check(cu.cuGraphUpload(handle, queue), 'cuGraphUpload'));
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }

  /**
   * Captures the same work with other arguments, for later launches; those that are queued go on as
   * they were. Much cheaper than another graph; {@link setArguments} is cheaper still, for one launch.
   *
   * @throws CudaError CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE for other work, then the graph is as it
   * was; CuffiError for work with memory of its own; NotSupportedError before CUDA 12.0
   */
  update(stream: Stream, work: () => void): void {
    const { context } = this;
    this.assertOpen();
    checkInstance(stream, Stream, 'stream');
    if (this.#hasMemory) throw hasMemoryError();
    const captured = captureGraph(stream, work);
    const { graph, contexts, nodes } = captured;
    try {
      const { handle } = this; // the work may have closed it
      if (captured.hasMemory) throw hasMemoryError();
      const status = context.run(() => cu.cuGraphExecUpdate_v2(handle, graph, BLOCK));
      if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER) throw driverTooOldError();
      check(status, 'cuGraphExecUpdate_v2', () => 'updating a graph');
      // What is queued may still use what was captured before.
      this.#capturedWork = [...this.#capturedWork.slice(-1), work];
      this.#contexts = [...new Set([...this.#contexts, ...contexts])];
      // The driver goes on to name nodes by what was captured first.
      this.#nodes = this.#nodes.flatMap((node, at) => nodes[at]?.replacing(node) ?? []);
    } finally {
      releaseOrWarn(() => destroyGraph(context, graph));
    }
  }

  /** Memory of its own is memory of the context: that a launch finds it without was never tried. */
  #launchInContext(handle: CUgraphExec, queue: CUstream): CUresult {
    return this.context.run(() => cu.cuGraphLaunch(handle, queue));
  }

  #launchTracked(stream: Stream | undefined, handle: CUgraphExec): void {
    const call = (queue: CUstream): void =>
      check(cu.cuGraphLaunch(handle, queue), 'cuGraphLaunch', describeLaunch);
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }
}

const describeLaunch = (): string => 'launching a graph';

const driverTooOldError = (): NotSupportedError =>
  new NotSupportedError('updating a graph needs a driver of CUDA 12.0 or later');

const hasMemoryError = (): CuffiError =>
  new CuffiError(
    'a graph with memory of its own cannot be updated: set the arguments of its launches, or capture another',
  );

/** An argument, of which nothing is read a second time where it is not of cuffi. */
function snapshotArgument(arg: unknown): unknown {
  const isForeignObject = typeof arg === 'object' && arg !== null && !(arg instanceof Resource);
  if (!isForeignObject || ArrayBuffer.isView(arg) || types.isAnyArrayBuffer(arg)) return arg;
  const { address, context, buffer, dtype } = arg as Readonly<Record<string, unknown>>;
  return { address, context, buffer, dtype };
}

/** Whose memory arguments are. */
const argumentContexts = (args: readonly unknown[]): Context[] =>
  args.flatMap((each) => {
    const context: unknown = (each as { readonly context?: unknown } | null)?.context;
    return context instanceof Context ? [context] : [];
  });

/** Work of a stream taken into a graph in place of being done. */

/** What {@link captureGraph} answers: a graph, what it was captured from, and whose memory it uses. */
export interface CapturedGraph {
  readonly graph: CUgraph;
  readonly work: () => void;
  readonly contexts: ReadonlySet<TrackedContext>;
  /** Whether it has memory of its own. */
  readonly hasMemory: boolean;
  /** Its launches of kernels, in the order in which they were captured. */
  readonly nodes: readonly KernelNode[];
}

/**
 * Calls `work`, and takes what it queues in `stream` into a graph, for {@link destroyGraph}.
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
  const { handle, context } = stream;
  if (handle <= CU_STREAM_PER_THREAD)
    throw new TypeError('a default stream cannot be captured: make one with nonBlocking: true');
  check(
    // Relaxed: whatever else the driver is asked cannot end the capture, unless it is of the stream.
    cu.cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_RELAXED),
    'cuStreamBeginCapture_v2',
    () => 'beginning to capture a stream',
  );
  let captured: ReturnType<typeof runInCapture<ReturnType<typeof recordLaunches>>>;
  try {
    captured = runInCapture(handle, () => recordLaunches(work));
  } catch (error) {
    // Quietly, as the error that there is says more.
    if (cu.cuStreamEndCapture(handle, OUT0) === CUresult.CUDA_SUCCESS)
      releaseOrWarn(() => destroyGraph(context, readHandle<CUgraph>(OUT0)));
    throw error;
  }
  check(cu.cuStreamEndCapture(handle, OUT0), 'cuStreamEndCapture', () => 'capturing a stream');
  const graph = readHandle<CUgraph>(OUT0, cu.cuGraphDestroy);
  const { result, nodes } = captured.result;
  if (result instanceof Promise) {
    destroyGraph(context, graph);
    throw new TypeError('capture takes a synchronous function: what comes later is not captured');
  }
  const { contexts, hasMemory } = captured;
  return { graph, work, contexts, hasMemory, nodes };
}

/** What a graph was made from is needed no more. */
function destroyGraph(context: Context, graph: CUgraph): void {
  context.run(() => check(cu.cuGraphDestroy(graph), 'cuGraphDestroy'));
}
