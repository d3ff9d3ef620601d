/** Events: creating, recording, waiting and destroying. */
import {
  CU_EVENT_BLOCKING_SYNC,
  CU_EVENT_DISABLE_TIMING,
  CU_EVENT_INTERPROCESS,
  CU_STREAM_LEGACY,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Context, Contexts } from './context.ts';
import { type EventState, LocalEventState } from './event-state.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host-memory.ts';
import type { Capture, CapturePosition, Stream, StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_READY,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
  CUDA_ERROR_STREAM_CAPTURE_MERGE,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
  CUDA_ERROR_CAPTURED_EVENT,
} = CUresult;

const ALL_FLAGS = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
const CU_EVENT_WAIT_EXTERNAL = 1;

export interface Event {
  readonly handle: number;
  readonly context: Context;
  readonly flags: number;
  readonly state: EventState;
  /** The position of its last record, if that was captured. */
  captured: { readonly capture: Capture; readonly place: CapturePosition } | undefined;
}

/** The events of this process, opened ones included. */
export class Events {
  readonly #handles: Handles;
  readonly #all = new Map<number, Event>();

  constructor(contexts: Contexts, handles: Handles) {
    this.#handles = handles;
    contexts.onEnd((context) => {
      for (const event of [...this.#all.values()])
        if (event.context === context) this.destroy(event);
    });
  }

  get count(): number {
    return this.#all.size;
  }

  add(context: Context, flags: number, state: EventState): Event {
    const event: Event = {
      handle: this.#handles.make('CUevent'),
      context,
      flags,
      state,
      captured: undefined,
    };
    this.#all.set(event.handle, event);
    return event;
  }

  get(handle: number): Event | undefined {
    return this.#all.get(handle);
  }

  destroy(event: Event): void {
    this.#all.delete(event.handle);
    this.#handles.release('CUevent', event.handle);
    event.state.close();
  }
}

const isInterprocess = ({ flags }: Event): boolean => (flags & CU_EVENT_INTERPROCESS) !== 0;

/** Invalidates the capture in which an event was recorded. Returns whether there is one. */
function invalidateCaptureOf({ captured }: Event): boolean {
  if (captured) captured.capture.isInvalid = true;
  return captured !== undefined;
}

/** A wait in a capture: forks the capture to the stream, or joins it. */
function waitInCapture(stream: Stream, { captured, state }: Event): Status {
  const own = stream.capture;
  if (!captured) {
    // An event that was never recorded does not block.
    if (!(state instanceof LocalEventState) || state.isRecorded) {
      if (own) own.isInvalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    return CUDA_SUCCESS;
  }
  const { capture, place } = captured;
  if (stream.handle === CU_STREAM_LEGACY) {
    capture.isInvalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (capture.origin.capture !== capture) return CUDA_ERROR_INVALID_VALUE;
  if (own && own !== capture) {
    own.isInvalid = true;
    capture.isInvalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  capture.join(stream, place);
  return CUDA_SUCCESS;
}

export type EventFunctions = Pick<
  Driver,
  | 'cuStreamWaitEvent'
  | 'cuEventCreate'
  | 'cuEventDestroy_v2'
  | 'cuEventRecord'
  | 'cuEventQuery'
  | 'cuEventSynchronize'
  | 'cuEventElapsedTime'
>;

export const eventFunctions = (
  events: Events,
  /** Makes the state of an interprocess event; undefined if there are as many as there can be. */
  createShared: () => EventState | undefined,
  contexts: Contexts,
  queues: StreamQueues,
  host: HostMemory,
): EventFunctions => ({
  cuEventCreate(out, flags) {
    if ((flags & ~ALL_FLAGS) !== 0) return CUDA_ERROR_INVALID_VALUE;
    const isInterprocess = (flags & CU_EVENT_INTERPROCESS) !== 0;
    if (isInterprocess && (flags & CU_EVENT_DISABLE_TIMING) === 0) return CUDA_ERROR_INVALID_VALUE;
    const state = isInterprocess ? createShared() : new LocalEventState();
    if (!state) return CUDA_ERROR_OUT_OF_MEMORY;
    host.setUint64(out, events.add(contexts.current, flags, state).handle);
    return CUDA_SUCCESS;
  },
  cuEventDestroy_v2(handle) {
    const event = events.get(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    events.destroy(event);
    return CUDA_SUCCESS;
  },
  cuEventRecord(handle, streamHandle) {
    const event = events.get(handle);
    const stream = queues.get(streamHandle);
    if (!event || stream?.context !== event.context) return CUDA_ERROR_INVALID_HANDLE;
    const { capture } = stream;
    if (capture && isInterprocess(event) && queues.invalidateCapture(stream))
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    event.captured = capture && { capture, place: capture.positionOf(stream) };
    if (capture) return CUDA_SUCCESS;
    const finish = event.state.record();
    queues.enqueue(stream, () => {
      finish();
      return true;
    });
    return CUDA_SUCCESS;
  },
  cuStreamWaitEvent(streamHandle, handle, flags) {
    const event = events.get(handle);
    const stream = queues.get(streamHandle);
    if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~CU_EVENT_WAIT_EXTERNAL) !== 0) return CUDA_ERROR_INVALID_VALUE;
    if (event.captured || stream.capture) return waitInCapture(stream, event);
    queues.enqueue(stream, event.state.wait());
    return CUDA_SUCCESS;
  },
  cuEventQuery(handle) {
    const event = events.get(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (invalidateCaptureOf(event)) return CUDA_ERROR_CAPTURED_EVENT;
    if (queues.invalidateStrictCaptures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    queues.progress();
    return event.state.isDone() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  },
  cuEventSynchronize(handle) {
    const event = events.get(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (invalidateCaptureOf(event)) return CUDA_ERROR_CAPTURED_EVENT;
    if (queues.invalidateStrictCaptures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    queues.blockUntil(event.state.wait(), () => `the event 0x${handle.toString(16)}`);
    queues.notifySynchronized();
    return CUDA_SUCCESS;
  },
  cuEventElapsedTime(out, startHandle, endHandle) {
    const start = events.get(startHandle);
    const end = events.get(endHandle);
    if (!start || !end || (start.flags | end.flags) & CU_EVENT_DISABLE_TIMING)
      return CUDA_ERROR_INVALID_HANDLE;
    if (start.context !== end.context) return CUDA_ERROR_INVALID_HANDLE;
    const from = start.state as LocalEventState;
    const to = end.state as LocalEventState;
    if (!from.isRecorded || !to.isRecorded) return CUDA_ERROR_INVALID_HANDLE;
    queues.progress();
    if (from.time === undefined || to.time === undefined) return CUDA_ERROR_NOT_READY;
    host.setFloat32(out, to.time - from.time);
    return CUDA_SUCCESS;
  },
});
