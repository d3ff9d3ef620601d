import { CU_STREAM_PER_THREAD } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUevent, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import type { Fence } from '../../fence.ts';
import { InternalEvent } from '../../internal-event.ts';
import { internalStream } from '../../memory/internal-stream.ts';
import { pollInBackground } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { COUNTER_COUNT } from '../protocol.ts';
import { ResetWatch } from '../reset-watch.ts';
import type { TimelinePage } from './page.ts';
import { latest, type TimelinePoint } from './point.ts';
import { writeCounter } from './stream-memory-operations.ts';

/**
 * Signals to another process how far the streams of this process are. Each stream writes its
 * counter behind its work, and no CPU waits. If a device cannot write, the CPU stores the counter
 * when the work is done.
 */
export class Signaler {
  readonly page: TimelinePage;
  readonly #counters: StreamCounters;
  readonly #hostSignaler: HostSignaler;
  /** Whether a device has refused to write to the page. */
  #isDeviceRefused = false;

  constructor(page: TimelinePage) {
    this.page = page;
    this.#counters = new StreamCounters(page);
    this.#hostSignaler = new HostSignaler(page, this.#counters);
  }

  /**
   * Returns a point behind the work of a stream, or none if that work is done. @throws CudaError
   */
  pointsBehindStream(stream: Stream): TimelinePoint[] {
    if (stream.done) return [];
    return this.#signalFromDevice(stream.context, () => this.#signalInStream(stream));
  }

  /**
   * Returns points behind all known work of a context, or none if nothing runs. @throws CudaError
   */
  pointsBehindContext(context: Context): TimelinePoint[] {
    const { streams, events, isComplete } = context.run(() => context.workTracker.runningWork());
    if (!isComplete) return [this.#hostSignaler.pointBehind(context)];
    if (streams.length === 0 && events.length === 0) return [];
    return this.#signalFromDevice(context, () => {
      const joinStream = internalStream(context, 'timeline');
      const others = streams.filter((stream) => stream !== joinStream);
      const points = others.flatMap((stream) => this.#signalInHandle(context, stream));
      if (events.length > 0) points.push(...this.#signalInHandle(context, joinStream, events));
      return latest(points);
    });
  }

  /** Whether a point is not reached yet. */
  get isPending(): boolean {
    return this.#counters.isPending;
  }

  /** Stops creating points. Existing points are still reached. */
  close(): void {
    this.#hostSignaler.whenDone(() => this.page.close(() => this.#counters.end()));
  }

  #signalFromDevice(context: Context, queue: () => TimelinePoint[]): TimelinePoint[] {
    if (!this.#isDeviceRefused) {
      try {
        return queue();
      } catch (error) {
        if (!(error instanceof CudaError) || error.sticky) throw error;
        this.#isDeviceRefused = true;
      }
    }
    return [this.#hostSignaler.pointBehind(context)];
  }

  #signalInStream(stream: Stream): TimelinePoint[] {
    const { context, handle } = stream;
    const isBorrowed = stream.untrackedHandle === undefined && handle > CU_STREAM_PER_THREAD;
    const counter = isBorrowed
      ? this.#counters.ofBorrowed(stream)
      : this.#counters.ofHandle(context, handle);
    if (!counter) return this.#signalInJoinStream(context, handle, (event) => event.record(stream));
    if (!context.workCounters.hasRoom(handle))
      return [this.#hostSignaler.pointBehind(context, handle)];
    const address = this.page.addressIn(context, counter.index);
    const point = StreamCounters.next(counter);
    stream.enqueueUncounted((queue) => writeCounter(context, queue, address, point.count));
    return [point];
  }

  /** @param events what the stream waits for first */
  #signalInHandle(
    context: Context,
    stream: CUstream,
    events: readonly CUevent[] = [],
  ): TimelinePoint[] {
    const counter = this.#counters.ofHandle(context, stream);
    if (!counter)
      return this.#signalInJoinStream(context, stream, (event) => event.recordIn(stream));
    const { workCounters } = context;
    if (events.length > 0 && workCounters.isActive) workCounters.addEventWait(stream);
    if (!workCounters.hasRoom(stream))
      return [this.#hostSignaler.pointBehind(context, events.length > 0 ? undefined : stream)];
    for (const event of events) check(cu.cuStreamWaitEvent(stream, event, 0), 'cuStreamWaitEvent');
    const address = this.page.addressIn(context, counter.index);
    const point = StreamCounters.next(counter);
    const write = (): void => writeCounter(context, stream, address, point.count);
    // The handles of default streams refer to those of the current context.
    if (stream > CU_STREAM_PER_THREAD) write();
    else context.run(write);
    return [point];
  }

  /**
   * Signals for a stream that has no counter. A stream that has one waits for it, or the CPU
   * signals.
   */
  #signalInJoinStream(
    context: Context,
    stream: CUstream,
    record: (event: InternalEvent) => void,
  ): TimelinePoint[] {
    const joinStream = internalStream(context, 'timeline');
    // Behind a wait of other streams, it would make the other process wait for that, too.
    if (!this.#counters.ofHandle(context, joinStream) || context.workCounters.isCounted(joinStream))
      return [this.#hostSignaler.pointBehind(context, stream)];
    using event = new InternalEvent(context);
    context.run(() => record(event));
    event.makeStreamWait(joinStream);
    if (context.workCounters.isCounted(stream)) context.workCounters.addEventWait(joinStream);
    return this.#signalInHandle(context, joinStream);
  }
}

// ---- The counters of a page ----

/** A counter that one stream advances. Only the work of a single stream completes in order. */
export interface StreamCounter {
  readonly index: number;
  /**
   * The context of the stream. Its reset ends the stream's work. Undefined for the CPU's counter.
   */
  readonly context: Context | undefined;
  /** The last count that was given out. */
  count: number;
  /**
   * Whether the stream no longer exists. Another stream then gets the counter once it is reached.
   */
  isStreamGone(): boolean;
}

/** The counters of a page, one for each stream that signals. */
export class StreamCounters {
  readonly #page: TimelinePage;
  /** Counters of cuffi's own streams. Their handles are reused only after their work is done. */
  readonly #byHandle = new Map<Context, Map<CUstream, StreamCounter>>();
  /**
   * Counters of borrowed streams. Others may destroy those, and reuse their handles, with work
   * pending.
   */
  readonly #byBorrowedStream = new WeakMap<Stream, StreamCounter>();
  readonly #all: StreamCounter[] = [];
  readonly #resets = new ResetWatch((context) => this.#onReset(context));

  constructor(page: TimelinePage) {
    this.#page = page;
  }

  /** Stops watching for context resets, as the page is unmapped. */
  end(): void {
    this.#resets.stop();
  }

  /** Whether a stream has not reached its last point yet. */
  get isPending(): boolean {
    return this.#all.some((counter) => !this.#page.isReached(counter));
  }

  /**
   * Returns the counter of one of cuffi's own streams or of a default stream. Undefined if all are
   * taken.
   */
  ofHandle(context: Context, handle: CUstream): StreamCounter | undefined {
    const ofContext = this.#byHandle.get(context) ?? new Map<CUstream, StreamCounter>();
    this.#byHandle.set(context, ofContext);
    const known = ofContext.get(handle);
    if (known) return known;
    const { streams } = context.workTracker;
    const counter = this.allocate(() => {
      if (streams.has(handle)) return false;
      ofContext.delete(handle);
      return true;
    }, context);
    if (counter) ofContext.set(handle, counter);
    return counter;
  }

  /** Returns the counter of a borrowed stream, which keeps it as long as its object lives. */
  ofBorrowed(stream: Stream): StreamCounter | undefined {
    const known = this.#byBorrowedStream.get(stream);
    if (known) return known;
    const weak = new WeakRef(stream);
    const counter = this.allocate(() => weak.deref() === undefined, stream.context);
    if (counter) this.#byBorrowedStream.set(stream, counter);
    return counter;
  }

  /** Allocates a counter for work that completes in order. Undefined if all are taken. */
  allocate(isStreamGone: () => boolean, context?: Context): StreamCounter | undefined {
    if (context) this.#resets.add(context);
    if (this.#all.length < COUNTER_COUNT) {
      const counter = { index: this.#all.length, context, count: 0, isStreamGone };
      this.#all.push(counter);
      return counter;
    }
    const at = this.#all.findIndex(
      (counter) => this.#page.isReached(counter) && counter.isStreamGone(),
    );
    const old = this.#all[at];
    if (!old) return undefined;
    // The count continues from its old value, so waits for lower counts remain satisfied.
    const counter = { index: old.index, context, count: old.count, isStreamGone };
    this.#all[at] = counter;
    return counter;
  }

  /**
   * Advances the counters that nothing will write after a reset, so that the other process does not
   * wait for ever.
   */
  #onReset(context: Context): void {
    for (const counter of this.#all) if (counter.context === context) this.#page.advanceTo(counter);
  }

  /** Returns the next point of a counter. */
  static next(counter: StreamCounter): TimelinePoint {
    counter.count += 1;
    return { index: counter.index, count: counter.count };
  }
}

// ---- Signals from the CPU ----

/**
 * Signals from the CPU, in order, the completion of work for which no stream can write a counter.
 */
export class HostSignaler {
  readonly #page: TimelinePage;
  /** Allocated in the constructor, when a counter is certainly free. */
  readonly #counter: StreamCounter;
  #pending: { readonly fence: Fence; readonly point: TimelinePoint }[] = [];
  /** Tells the background poll, while it runs, that there is more to signal. */
  #pollSooner: (() => void) | undefined;
  #onDone: (() => void) | undefined;

  constructor(page: TimelinePage, counters: StreamCounters) {
    this.#page = page;
    this.#counter = counters.allocate(() => false) as StreamCounter;
  }

  /**
   * Returns a point behind the work of a stream, by default behind all known work of a context,
   * including work of other contexts on its memory.
   */
  pointBehind({ workTracker }: Context, stream?: CUstream): TimelinePoint {
    const point = StreamCounters.next(this.#counter);
    // Other streams may hold a default stream up.
    const isAlone = stream !== undefined && stream > CU_STREAM_PER_THREAD;
    const fence = isAlone ? workTracker.fenceBehind(stream) : workTracker.fence();
    this.#pending.push({ fence, point });
    if (this.#pollSooner) this.#pollSooner();
    else this.#pollSooner = pollInBackground(() => this.#poll());
    return point;
  }

  /** Calls `onDone` once nothing is left to signal, because the other process may wait for it. */
  whenDone(onDone: () => void): void {
    if (this.#pollSooner) this.#onDone = onDone;
    else onDone();
  }

  #poll(): boolean {
    for (let first = this.#pending[0]; first?.fence.isDone(); first = this.#pending[0]) {
      this.#page.advanceTo(first.point);
      this.#pending.shift();
      // The other process waits for each point, so the next is polled as often as the first.
      this.#pollSooner?.();
    }
    if (this.#pending.length > 0) return false;
    this.#pollSooner = undefined;
    this.#onDone?.();
    return true;
  }
}
