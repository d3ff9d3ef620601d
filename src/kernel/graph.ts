import { BLOCK, OUT0, OUT3, readHandle } from '../../ffi/arena.ts';
import { CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUgraph, CUgraphExec, CUstream } from '../../ffi/types.ts';
import { checkInstance, checkOptions, shown } from '../arguments.ts';
import { refuseInCapture, whileCapturing } from '../capture.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { NotSupportedError } from '../errors.ts';
import { noteVisits, streamOf } from '../memory/buffer-copies.ts';
import type { StreamOption } from '../memory/buffer-options.ts';
import { Resource } from '../resource.ts';
import { Stream } from '../stream.ts';

/**
 * Work that was captured from a stream, launched as a whole with one call: many small kernels, copies
 * and fills then cost the driver little more than one.
 *
 * It has the addresses of the memory that it works on, and its kernels: these must stay open as long
 * as it is launched.
 *
 * @example
 * using graph = cuda.Graph.capture(stream, () => {
 *   for (const kernel of steps) kernel.launch({ grid, block, stream }, x);
 * });
 * for (let turn = 0; turn < 100; turn += 1) graph.launch({ stream });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
 */
export class Graph extends Resource {
  readonly context: Context;
  readonly #handle: CUgraphExec;
  /** What was captured, so that the modules and the memory that it names are not collected. */
  #captured: readonly (() => void)[];
  /** Whose memory it uses, which must outlive each launch. */
  #contexts: readonly Context[];

  private constructor(context: Context, handle: CUgraphExec, captured: Captured) {
    const { releases, resets } = context;
    super('Graph', {
      owner: context.resources,
      release: () =>
        releases.submit(
          () => {
            if (context.resets === resets)
              context.run(() => check(cu.cuGraphExecDestroy(handle), 'cuGraphExecDestroy'));
          },
          { waits: false },
        ),
    });
    this.context = context;
    this.#handle = handle;
    this.#captured = [captured.work];
    this.#contexts = [...new Set([context, ...captured.contexts])];
  }

  /**
   * Calls `work` at once, and takes what it queues in `stream` into a graph in place of running it;
   * so for other streams, from where they wait for an event of this one until it waits for one of
   * theirs. What would wait, ask, allocate, or work in a default stream is refused meanwhile.
   *
   * @param stream one that was made with `nonBlocking: true`, best; not a default stream
   * @param work must be synchronous
   * @throws what `work` throws, then there is no graph; CudaError, TypeError
   */
  static capture(stream: Stream, work: () => void): Graph {
    const { context } = checkInstance(stream, Stream, 'stream');
    const captured = capture(stream, work);
    try {
      return context.run(() => {
        const call = 'cuGraphInstantiateWithFlags';
        check(cu[call](OUT0, captured.graph, 0), call, () => 'making a graph ready to be launched');
        return new Graph(context, readHandle<CUgraphExec>(OUT0, cu.cuGraphExecDestroy), captured);
      });
    } finally {
      destroyGraph(context, captured.graph);
    }
  }

  /** The driver's handle, a CUgraphExec. @throws ClosedError */
  get handle(): CUgraphExec {
    if (this.closed) throw this.closedError();
    return this.#handle;
  }

  /** Queues all of it; nothing waits. Launches of one graph run one after the other. */
  launch(options?: StreamOption): void {
    const { handle, context } = this;
    const stream = streamOf(checkOptions(options, OPTIONS, 'launch').stream);
    noteVisits(stream?.context ?? context, this.#contexts);
    const queue = stream?.plainHandle;
    if (queue === undefined) {
      this.#launchMarked(stream, handle);
      return;
    }
    const pushed = cu.cuCtxPushCurrent_v2(context.handle);
    if (pushed !== 0) check(pushed, 'cuCtxPushCurrent_v2');
    const status = cu.cuGraphLaunch(handle, queue);
    const popped = cu.cuCtxPopCurrent_v2(OUT3);
    if (status !== 0) check(status, 'cuGraphLaunch', launching);
    if (popped !== 0) check(popped, 'cuCtxPopCurrent_v2');
  }

  /**
   * Brings the graph to the device ahead of its first launch, in a stream; only queues.
   */
  upload(options?: StreamOption): void {
    const { handle } = this;
    const stream = streamOf(checkOptions(options, OPTIONS, 'upload').stream);
    const call = (queue: CUstream): void =>
      this.context.run(() => check(cu.cuGraphUpload(handle, queue), 'cuGraphUpload'));
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }

  /**
   * Captures the same work with other arguments, for later launches; those that are queued go on as
   * they were. Much cheaper than another graph.
   *
   * @throws CudaError CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE for other work, then the graph is as it
   * was; NotSupportedError before CUDA 12.0
   */
  update(stream: Stream, work: () => void): void {
    const { handle, context } = this;
    checkInstance(stream, Stream, 'stream');
    const { graph, contexts } = capture(stream, work);
    try {
      const status = context.run(() => cu.cuGraphExecUpdate_v2(handle, graph, BLOCK));
      if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
        throw new NotSupportedError('updating a graph needs a driver of CUDA 12.0 or later');
      check(status, 'cuGraphExecUpdate_v2', () => 'updating a graph');
      // What is queued may still use what was captured before.
      this.#captured = [...this.#captured.slice(-1), work];
      this.#contexts = [...new Set([...this.#contexts, ...contexts])];
    } finally {
      destroyGraph(context, graph);
    }
  }

  #launchMarked(stream: Stream | undefined, handle: CUgraphExec): void {
    const call = (queue: CUstream): void =>
      check(cu.cuGraphLaunch(handle, queue), 'cuGraphLaunch', launching);
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }
}

const OPTIONS = ['stream'] as const;
const launching = (): string => 'launching a graph';

/** A graph that was captured, what it was captured from, and whose memory it uses. */
interface Captured {
  readonly graph: CUgraph;
  readonly work: () => void;
  readonly contexts: ReadonlySet<Context>;
}

function capture(stream: Stream, work: () => void): Captured {
  if (typeof work !== 'function')
    throw new TypeError(`work must be a function, not ${shown(work)}`);
  refuseInCapture('capturing a graph');
  const { handle, context } = stream;
  if (handle <= CU_STREAM_PER_THREAD)
    throw new TypeError('a default stream cannot be captured: make one with nonBlocking: true');
  check(
    // Relaxed: whatever else the driver is asked cannot end the capture, unless it is of the stream.
    cu.cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_RELAXED),
    'cuStreamBeginCapture_v2',
    () => 'beginning to capture a stream',
  );
  let captured: ReturnType<typeof whileCapturing>;
  try {
    captured = whileCapturing(work);
  } catch (error) {
    if (cu.cuStreamEndCapture(handle, OUT0) === CUresult.CUDA_SUCCESS)
      destroyGraph(context, readHandle<CUgraph>(OUT0));
    throw error;
  }
  check(cu.cuStreamEndCapture(handle, OUT0), 'cuStreamEndCapture', () => 'capturing a stream');
  const graph = readHandle<CUgraph>(OUT0);
  if (captured.result instanceof Promise) {
    destroyGraph(context, graph);
    throw new TypeError('capture takes a synchronous function: what comes later is not captured');
  }
  return { graph, work, contexts: captured.contexts };
}

/** What a graph was made from is needed no more. */
function destroyGraph(context: Context, graph: CUgraph): void {
  context.run(() => check(cu.cuGraphDestroy(graph), 'cuGraphDestroy'));
}
