import { CU_STREAM_PER_THREAD } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUevent, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import type { Fence } from '../../fence.ts';
import { InternalEvent } from '../../memory/internal-event.ts';
import { internalStream } from '../../memory/internal-stream.ts';
import { pollInBackground } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { ResetWatch } from '../reset-watch.ts';
import type { TimelinePage } from './page.ts';
import { COUNTER_COUNT, latest, type TimelinePoint } from './point.ts';
import { writeCounter } from './stream-memory-operations.ts';

/**
 * Tells another process how far this one's streams are: each writes its counter behind its work.
 * Nobody waits here. Where a device does not, the CPU stores the counter when the work is done.
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

  /** A point behind the work of a stream; none where it is done. @throws CudaError */
  pointsBehindStream(stream: Stream): TimelinePoint[] {
    if (stream.done) return [];
    return this.#signalFromDevice(stream.context, () => this.#signalInStream(stream));
  }

  /** Points behind all work of a context that is known; none where nothing runs. @throws CudaError */
  pointsBehindContext(context: Context): TimelinePoint[] {
    const { streams, events, isComplete } = context.run(() => context.workTracker.runningWork());
    if (!isComplete) return [this.#hostSignaler.pointBehind(context)];
    if (streams.length === 0 && events.length === 0) return [];
    return this.#signalFromDevice(context, () => {
      const joinStream = internalStream(context, 'timeline');
      const others = streams.filter((stream) => stream !== joinStream);
      const points = others.flatMap((stream) => this.#signalInHandle(context, stream));
      if (events.length > 0) points.push(...this.#signalBehindEvents(context, joinStream, events));
      return latest(points);
    });
  }

  /** Whether a point is not reached yet. */
  get isPending(): boolean {
    return this.#counters.isPending;
  }

  /** No more points; those that are there are still reached. */
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
    const slot = isBorrowed
      ? this.#counters.ofBorrowed(stream)
      : this.#counters.ofHandle(context, handle);
    if (!slot) return this.#signalInJoinStream(context, (mark) => mark.record(stream));
    const address = this.page.addressIn(context, slot.slot);
    const point = StreamCounters.next(slot);
    stream.enqueue((queue) => writeCounter(context, queue, address, point.count));
    return [point];
  }

  #signalInHandle(context: Context, stream: CUstream): TimelinePoint[] {
    const slot = this.#counters.ofHandle(context, stream);
    if (!slot) return this.#signalInJoinStream(context, (mark) => mark.recordIn(stream));
    const address = this.page.addressIn(context, slot.slot);
    const point = StreamCounters.next(slot);
    const write = (): void => writeCounter(context, stream, address, point.count);
    // The handles of default streams mean those of the current context.
    if (stream > CU_STREAM_PER_THREAD) write();
    else context.run(write);
    return [point];
  }

  /** For a stream that has no slot: behind it in one that has, or told by the CPU. */
  #signalInJoinStream(context: Context, record: (mark: InternalEvent) => void): TimelinePoint[] {
    const joinStream = internalStream(context, 'timeline');
    if (!this.#counters.ofHandle(context, joinStream))
      return [this.#hostSignaler.pointBehind(context)];
    using mark = new InternalEvent(context);
    context.run(() => record(mark));
    mark.makeStreamWait(joinStream);
    return this.#signalInHandle(context, joinStream);
  }

  #signalBehindEvents(
    context: Context,
    joinStream: CUstream,
    events: readonly CUevent[],
  ): TimelinePoint[] {
    for (const event of events)
      check(cu.cuStreamWaitEvent(joinStream, event, 0), 'cuStreamWaitEvent');
    return this.#signalInHandle(context, joinStream);
  }
}

/** Whose work a slot counts: only that of one stream comes in order. */
export interface StreamCounter {
  readonly slot: number;
  /** Of a stream: a reset ends its work. */
  readonly context: Context | undefined;
  /** How often it was counted on. */
  count: number;
  /** Whether its stream is there no more: then the slot goes to another when it is reached. */
  isStreamGone(): boolean;
}

/** The slots of a page, one for each stream that tells how far it is. */
export class StreamCounters {
  readonly #page: TimelinePage;
  /** Of cuffi's own streams: their handles are used again only when their work is done. */
  readonly #byHandle = new Map<Context, Map<CUstream, StreamCounter>>();
  /** Of borrowed ones, which may be destroyed, and their handles used again, with work in them. */
  readonly #byBorrowedStream = new WeakMap<Stream, StreamCounter>();
  readonly #all: StreamCounter[] = [];
  readonly #resets = new ResetWatch((context) => this.#onReset(context));

  constructor(page: TimelinePage) {
    this.#page = page;
  }

  /** The page is there no more. */
  end(): void {
    this.#resets.stop();
  }

  /** Whether a stream has not come to its last point yet. */
  get isPending(): boolean {
    return this.#all.some((slot) => !this.#page.isReached(slot));
  }

  /** The slot of a stream of cuffi's own, or of a default stream; undefined where all are taken. */
  ofHandle(context: Context, handle: CUstream): StreamCounter | undefined {
    const ofContext = this.#byHandle.get(context) ?? new Map<CUstream, StreamCounter>();
    this.#byHandle.set(context, ofContext);
    const known = ofContext.get(handle);
    if (known) return known;
    const { streams } = context.workTracker;
    const slot = this.allocate(() => {
      if (streams.has(handle)) return false;
      ofContext.delete(handle);
      return true;
    }, context);
    if (slot) ofContext.set(handle, slot);
    return slot;
  }

  /** The slot of a borrowed stream, as long as its object is there. */
  ofBorrowed(stream: Stream): StreamCounter | undefined {
    const known = this.#byBorrowedStream.get(stream);
    if (known) return known;
    const weak = new WeakRef(stream);
    const slot = this.allocate(() => weak.deref() === undefined, stream.context);
    if (slot) this.#byBorrowedStream.set(stream, slot);
    return slot;
  }

  /** A slot for one who counts in order; undefined where all are taken. */
  allocate(isStreamGone: () => boolean, context?: Context): StreamCounter | undefined {
    if (context) this.#resets.add(context);
    if (this.#all.length < COUNTER_COUNT) {
      const slot = { slot: this.#all.length, context, count: 0, isStreamGone };
      this.#all.push(slot);
      return slot;
    }
    const at = this.#all.findIndex((slot) => this.#page.isReached(slot) && slot.isStreamGone());
    const old = this.#all[at];
    if (!old) return undefined;
    // It goes on counting where it stands: who waits for less has it reached.
    const slot = { slot: old.slot, context, count: old.count, isStreamGone };
    this.#all[at] = slot;
    return slot;
  }

  /** What was to write the counters runs no more: the other end must not wait for it for ever. */
  #onReset(context: Context): void {
    for (const slot of this.#all) if (slot.context === context) this.#page.advanceTo(slot);
  }

  /** The next place in the work of a slot's stream. */
  static next(slot: StreamCounter): TimelinePoint {
    slot.count += 1;
    return { slot: slot.slot, count: slot.count };
  }
}

/** Work whose end this process's CPU tells the other one, as its streams cannot: in order. */
export class HostSignaler {
  readonly #page: TimelinePage;
  /** Taken at once, so that there is one. */
  readonly #counter: StreamCounter;
  #pending: { readonly fence: Fence; readonly point: TimelinePoint }[] = [];
  /** Says to the poll in the background, if there is one, that there is more to be told. */
  #pollSooner: (() => void) | undefined;
  #onDone: (() => void) | undefined;

  constructor(page: TimelinePage, slots: StreamCounters) {
    this.#page = page;
    this.#counter = slots.allocate(() => false) as StreamCounter;
  }

  /** A point behind all work of a context, and of others on its memory, that is known now. */
  pointBehind(context: Context): TimelinePoint {
    const point = StreamCounters.next(this.#counter);
    this.#pending.push({ fence: context.workTracker.fence(), point });
    if (this.#pollSooner) this.#pollSooner();
    else this.#pollSooner = pollInBackground(() => this.#poll());
    return point;
  }

  /** Calls `done` when nothing is left to be told: the other process may wait for it. */
  whenDone(onDone: () => void): void {
    if (this.#pollSooner) this.#onDone = onDone;
    else onDone();
  }

  #poll(): boolean {
    for (let first = this.#pending[0]; first?.fence.isDone(); first = this.#pending[0]) {
      this.#page.advanceTo(first.point);
      this.#pending.shift();
      // The other process waits for each: the next is not asked for less often for this one.
      this.#pollSooner?.();
    }
    if (this.#pending.length > 0) return false;
    this.#pollSooner = undefined;
    this.#onDone?.();
    return true;
  }
}
