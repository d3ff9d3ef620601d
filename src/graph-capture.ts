/**
 * Whether work is being captured into a graph. Meanwhile nothing may be asked, waited for or given
 * back: the driver would end the capture, or the events behind such questions would become a part
 * of the graph. A capture begins and ends within one call, so that is all there is to know.
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
import type { Context } from './context.ts';
import { CuffiError, NotSupportedError } from './errors.ts';

/** What ends with the capture, in the stream that is captured, or nowhere where that failed. */
type CaptureEndHandler = (origin: CUstream | undefined) => void;

let capturing = false;
/** Where the memory is that the captured work uses, as far as it is not of the stream's context. */
let capturedContexts = new Set<Context>();
let endHandlers: CaptureEndHandler[] = [];
/** What is done when the driver has ended it. */
const deferredActions: (() => void)[] = [];
/** What the driver calls the capture; undefined where it cannot tell. */
let captureId: bigint | undefined;

export const isCapturing = (): boolean => capturing;

/**
 * Calls `work` as what is captured of a stream; answers what it returned, and whose memory it uses.
 */
export function runInCapture<T>(
  origin: CUstream,
  work: () => T,
): {
  readonly result: T;
  readonly contexts: ReadonlySet<Context>;
  /** Whether the graph has memory of its own. */
  readonly hasMemory: boolean;
} {
  capturing = true;
  capturedContexts = new Set();
  endHandlers = [];
  captureId = undefined;
  try {
    captureId = captureInfo(origin)?.id;
    const result = work();
    const hasMemory = endHandlers.length > 0;
    for (let end = endHandlers.at(-1); end; end = endHandlers.at(-1)) {
      end(origin);
      endHandlers.pop();
    }
    return { result, contexts: capturedContexts, hasMemory };
  } finally {
    for (const end of endHandlers) end(undefined);
    endHandlers = [];
    capturing = false;
  }
}

/**
 * Remembers memory of the graph: `end` is called when the capture ends, for what came last first.
 * Told nowhere it must not throw.
 */
export function onCaptureEnd(end: CaptureEndHandler): void {
  endHandlers.push(end);
}

/** Does what would become a part of the graph after the capture, or now. It must not throw. */
export function runOutsideCapture(act: () => void): void {
  if (capturing) deferredActions.push(act);
  else act();
}

/** Does what was left until the driver had ended the capture. */
export function runDeferredActions(): void {
  for (const act of deferredActions.splice(0)) act();
}

/** Remembers whose memory the captured work uses, where there is any. */
export function addCapturedContexts(contexts: readonly Context[]): void {
  if (capturing) for (const context of contexts) capturedContexts.add(context);
}

/** @throws CuffiError while work is being captured */
export function assertNotCapturing(doing: string): void {
  if (capturing)
    throw new CuffiError(
      `${doing} while a graph is captured: a capture only takes up what is queued in its stream. ` +
        'Do it before or after.',
    );
}

/**
 * Whether work in a stream becomes a part of the graph that is captured.
 *
 * @throws NotSupportedError where the driver does not tell
 */
export function belongsToCapture(stream: CUstream): boolean {
  if (captureId === undefined)
    throw new NotSupportedError('memory of graphs needs a driver of CUDA 11.4 or later');
  return captureInfo(stream)?.id === captureId;
}

/** What was captured last in a stream of the capture; undefined where the driver does not tell. */
export function lastCapturedNode(stream: CUstream): CUgraphNode | undefined {
  const capture = captureInfo(stream);
  if (captureId === undefined || capture?.id !== captureId || capture.nodeCount !== 1)
    return undefined;
  const [node] = new BigUint64Array(viewMemory(capture.nodes, 8));
  return Number(node) as CUgraphNode;
}

interface CaptureInfo {
  readonly id: bigint;
  /** What later work of the stream comes right after. */
  readonly nodes: Address;
  readonly nodeCount: number;
}

/** The capture that a stream is in; undefined where it is in none, or the driver does not tell. */
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
