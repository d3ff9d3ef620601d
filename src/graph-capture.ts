/**
 * The state of a graph capture. While work is captured, cuffi must not query, wait or release: the driver
 * would end the capture, or the events of a query would become a part of the graph. A capture begins
 * and ends within one call, so one state for the process is enough.
 */
import {
  BLOCK,
  OUT0,
  OUT1,
  OUT2,
  readHandle,
  readInt32,
  readSize,
  readUint64,
} from '../ffi/arena.ts';
import { CU_STREAM_CAPTURE_STATUS_ACTIVE } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { viewMemory } from '../ffi/native.ts';
import { CUresult } from '../ffi/results.ts';
import type { Address, CUgraphNode, CUstream } from '../ffi/types.ts';
import { check } from './check.ts';
import { CuffiError, NotSupportedError } from './errors.ts';
import type { TrackedContext } from './work-tracker.ts';

/** Memory that captured work uses. */
export interface CapturedMemory {
  /** Call it before a stream runs the captured work. Default: the legacy default stream. */
  orderUse(stream: unknown): void;
}

/** Called at the end of a capture with its stream; with undefined if the capture failed. */
type CaptureEndHandler = (origin: CUstream | undefined) => void;

let capturing = false;
/** The contexts whose memory the captured work uses, besides the stream's own. */
let capturedContexts = new Set<TrackedContext>();
/** The memory that the captured work uses. */
let capturedMemory = new Set<CapturedMemory>();
let endHandlers: CaptureEndHandler[] = [];
/** What runs when the driver has ended the capture. */
const deferredActions: (() => void)[] = [];
/** The driver's id of the capture; undefined if the driver cannot return it. */
let captureId: bigint | undefined;

export const isCapturing = (): boolean => capturing;

/**
 * Calls `work` while a stream is captured. Returns its result, and the contexts whose memory it uses.
 */
export function runInCapture<T>(
  origin: CUstream,
  work: () => T,
): {
  readonly result: T;
  readonly contexts: ReadonlySet<TrackedContext>;
  readonly memory: ReadonlySet<CapturedMemory>;
  /** Whether the graph allocates memory of its own. */
  readonly hasMemory: boolean;
} {
  capturing = true;
  captureId = undefined;
  try {
    captureId = captureInfo(origin)?.id;
    const result = work();
    const hasMemory = endHandlers.length > 0;
    for (let end = endHandlers.at(-1); end; end = endHandlers.at(-1)) {
      end(origin);
      endHandlers.pop();
    }
    return { result, contexts: capturedContexts, memory: capturedMemory, hasMemory };
  } finally {
    for (const end of endHandlers) end(undefined);
    endHandlers = [];
    capturedContexts = new Set();
    capturedMemory = new Set();
    capturing = false;
  }
}

/**
 * Registers memory of the graph: `end` is called when the capture ends, in reverse order of
 * registration. It must not throw if it is called without a stream.
 */
export function onCaptureEnd(end: CaptureEndHandler): void {
  endHandlers.push(end);
}

/** Runs `act` after the capture, whose part it would become; without a capture, now. It must not throw. */
export function runOutsideCapture(act: () => void): void {
  if (capturing) deferredActions.push(act);
  else act();
}

/** Runs what was deferred until the driver had ended the capture. */
export function runDeferredActions(): void {
  for (const act of deferredActions.splice(0)) act();
}

/** During a capture, adds the contexts whose memory the captured work uses. */
export function addCapturedContexts(contexts: readonly TrackedContext[]): void {
  if (capturing) for (const context of contexts) capturedContexts.add(context);
}

/**
 * During a capture, adds memory that work in a stream uses. Returns false if the work of that stream is
 * not captured.
 */
export function addCapturedMemory(stream: CUstream, memory: CapturedMemory): boolean {
  if (captureId !== undefined && captureInfo(stream)?.id !== captureId) return false;
  capturedMemory.add(memory);
  return true;
}

/** @throws CuffiError while a graph is captured */
export function assertNotCapturing(doing: string): void {
  if (capturing)
    throw new CuffiError(
      `${doing} is not possible while a graph is captured: a capture only records work that is ` +
        'queued in its stream. Do it before or after the capture.',
    );
}

/**
 * Whether work in a stream becomes a part of the graph that is captured.
 *
 * @throws NotSupportedError if the driver is too old to say so
 */
export function belongsToCapture(stream: CUstream): boolean {
  if (captureId === undefined)
    throw new NotSupportedError(
      'memory allocation in a graph needs a driver of CUDA 11.4 or later',
    );
  return captureInfo(stream)?.id === captureId;
}

/** The node that was captured last in a stream; undefined if the driver does not name exactly one. */
export function lastCapturedNode(stream: CUstream): CUgraphNode | undefined {
  const capture = captureInfo(stream);
  if (captureId === undefined || capture?.id !== captureId || capture.nodeCount !== 1)
    return undefined;
  const [node] = new BigUint64Array(viewMemory(capture.nodes, 8));
  return Number(node) as CUgraphNode;
}

interface CaptureInfo {
  readonly id: bigint;
  /** The nodes that the next work of the stream will follow. */
  readonly nodes: Address;
  readonly nodeCount: number;
}

/** The capture of a stream; undefined if it is not captured, or the driver is too old. */
function captureInfo(stream: CUstream): CaptureInfo | undefined {
  const count = (BLOCK + 8) as Address;
  const call = 'cuStreamGetCaptureInfo_v2';
  const status = cu[call](stream, OUT0, OUT1, OUT2, BLOCK, count);
  if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER) return undefined;
  check(status, call);
  if (readInt32(OUT0) !== CU_STREAM_CAPTURE_STATUS_ACTIVE) return undefined;
  return {
    id: readUint64(OUT1),
    nodes: readHandle<Address>(BLOCK),
    nodeCount: readSize(count),
  };
}
