/** Work of a stream taken into a graph in place of being done. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUgraph } from '../../ffi/types.ts';
import { shown } from '../arguments.ts';
import { catchUp, refuseInCapture, whileCapturing } from '../capture.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { releaseQuietly } from '../resource.ts';
import type { Stream } from '../stream.ts';
import { type KernelNode, notingLaunches } from './kernel-node.ts';

/** What {@link captureGraph} answers: a graph, what it was captured from, and whose memory it uses. */
export interface Captured {
  readonly graph: CUgraph;
  readonly work: () => void;
  readonly contexts: ReadonlySet<Context>;
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
export function captureGraph(stream: Stream, work: () => void): Captured {
  try {
    return capture(stream, work);
  } finally {
    catchUp();
  }
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
  let captured: ReturnType<typeof whileCapturing<ReturnType<typeof notingLaunches>>>;
  try {
    captured = whileCapturing(handle, () => notingLaunches(work));
  } catch (error) {
    // Quietly, as the error that there is says more.
    if (cu.cuStreamEndCapture(handle, OUT0) === CUresult.CUDA_SUCCESS)
      releaseQuietly(() => destroyGraph(context, readHandle<CUgraph>(OUT0)));
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
export function destroyGraph(context: Context, graph: CUgraph): void {
  context.run(() => check(cu.cuGraphDestroy(graph), 'cuGraphDestroy'));
}
