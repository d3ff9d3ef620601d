import { CU_STREAM_PER_THREAD } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUevent, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import type { Fence } from '../../fence.ts';
import { Mark } from '../../memory/internal-event.ts';
import { ownStream } from '../../memory/internal-stream.ts';
import { pollInBackground } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { ResetWatch } from '../reset-watch.ts';
import type { PointPage } from './page.ts';
import { furthest, type Point, SLOT_COUNT } from './point.ts';
import { writeWord } from './stream-memory-operations.ts';

/**
 * Tells another process how far this one's streams are: each writes its counter behind its work.
 * Nobody waits here. Where a device does not, the CPU stores the counter when the work is done.
 */
export class Signals {
  readonly page: PointPage;
  readonly #slots: Slots;
  readonly #told: Told;
  /** Whether a device has refused to write to the page. */
  #isRefused = false;

  constructor(page: PointPage) {
    this.page = page;
    this.#slots = new Slots(page);
    this.#told = new Told(page, this.#slots);
  }

  /** A point behind the work of a stream; none where it is done. @throws CudaError */
  behindStream(stream: Stream): Point[] {
    if (stream.done) return [];
    return this.#tryDevice(stream.context, () => this.#inStream(stream));
  }

  /** Points behind all work of a context that is known; none where nothing runs. @throws CudaError */
  behindContext(context: Context): Point[] {
    const { streams, marks, isWhole } = context.run(() => context.activity.running());
    if (!isWhole) return [this.#told.behind(context)];
    if (streams.length === 0 && marks.length === 0) return [];
    return this.#tryDevice(context, () => {
      const joining = ownStream(context, 'points');
      const others = streams.filter((stream) => stream !== joining);
      const points = others.flatMap((stream) => this.#inHandle(context, stream));
      if (marks.length > 0) points.push(...this.#behindEvents(context, joining, marks));
      return furthest(points);
    });
  }

  /** Whether a point is not reached yet. */
  get isPending(): boolean {
    return this.#slots.isPending;
  }

  /** No more points; those that are there are still reached. */
  close(): void {
    this.#told.whenDone(() => this.page.close(() => this.#slots.end()));
  }

  #tryDevice(context: Context, queue: () => Point[]): Point[] {
    if (!this.#isRefused) {
      try {
        return queue();
      } catch (error) {
        if (!(error instanceof CudaError) || error.sticky) throw error;
        this.#isRefused = true;
      }
    }
    return [this.#told.behind(context)];
  }

  #inStream(stream: Stream): Point[] {
    const { context, handle } = stream;
    const isBorrowed = stream.plainHandle === undefined && handle > CU_STREAM_PER_THREAD;
    const slot = isBorrowed
      ? this.#slots.ofBorrowed(stream)
      : this.#slots.ofHandle(context, handle);
    if (!slot) return this.#joined(context, (mark) => mark.record(stream));
    const address = this.page.addressIn(context, slot.slot);
    const point = Slots.next(slot);
    stream.enqueue((queue) => writeWord(context, queue, address, point.count));
    return [point];
  }

  #inHandle(context: Context, stream: CUstream): Point[] {
    const slot = this.#slots.ofHandle(context, stream);
    if (!slot) return this.#joined(context, (mark) => mark.recordIn(stream));
    const address = this.page.addressIn(context, slot.slot);
    const point = Slots.next(slot);
    const write = (): void => writeWord(context, stream, address, point.count);
    // The handles of default streams mean those of the current context.
    if (stream > CU_STREAM_PER_THREAD) write();
    else context.run(write);
    return [point];
  }

  /** For a stream that has no slot: behind it in one that has, or told by the CPU. */
  #joined(context: Context, record: (mark: Mark) => void): Point[] {
    const joining = ownStream(context, 'points');
    if (!this.#slots.ofHandle(context, joining)) return [this.#told.behind(context)];
    using mark = new Mark(context);
    context.run(() => record(mark));
    mark.holdUp(joining);
    return this.#inHandle(context, joining);
  }

  #behindEvents(context: Context, joining: CUstream, events: readonly CUevent[]): Point[] {
    for (const event of events) check(cu.cuStreamWaitEvent(joining, event, 0), 'cuStreamWaitEvent');
    return this.#inHandle(context, joining);
  }
}

/** Whose work a slot counts: only that of one stream comes in order. */
export interface Slot {
  readonly slot: number;
  /** Of a stream: a reset ends its work. */
  readonly context: Context | undefined;
  /** How often it was counted on. */
  count: number;
  /** Whether its stream is there no more: then the slot goes to another when it is reached. */
  isOver(): boolean;
}

/** The slots of a page, one for each stream that tells how far it is. */
export class Slots {
  readonly #page: PointPage;
  /** Of cuffi's own streams: their handles are used again only when their work is done. */
  readonly #byHandle = new Map<Context, Map<CUstream, Slot>>();
  /** Of borrowed ones, which may be destroyed, and their handles used again, with work in them. */
  readonly #byStream = new WeakMap<Stream, Slot>();
  readonly #all: Slot[] = [];
  readonly #resets = new ResetWatch((context) => this.#wasReset(context));

  constructor(page: PointPage) {
    this.#page = page;
  }

  /** The page is there no more. */
  end(): void {
    this.#resets.end();
  }

  /** Whether a stream has not come to its last point yet. */
  get isPending(): boolean {
    return this.#all.some((slot) => !this.#page.isReached(slot));
  }

  /** The slot of a stream of cuffi's own, or of a default stream; undefined where all are taken. */
  ofHandle(context: Context, handle: CUstream): Slot | undefined {
    const ofContext = this.#byHandle.get(context) ?? new Map<CUstream, Slot>();
    this.#byHandle.set(context, ofContext);
    const known = ofContext.get(handle);
    if (known) return known;
    const { streams } = context.activity;
    const slot = this.take(() => {
      if (streams.has(handle)) return false;
      ofContext.delete(handle);
      return true;
    }, context);
    if (slot) ofContext.set(handle, slot);
    return slot;
  }

  /** The slot of a borrowed stream, as long as its object is there. */
  ofBorrowed(stream: Stream): Slot | undefined {
    const known = this.#byStream.get(stream);
    if (known) return known;
    const weak = new WeakRef(stream);
    const slot = this.take(() => weak.deref() === undefined, stream.context);
    if (slot) this.#byStream.set(stream, slot);
    return slot;
  }

  /** A slot for one who counts in order; undefined where all are taken. */
  take(isOver: () => boolean, context?: Context): Slot | undefined {
    if (context) this.#resets.add(context);
    if (this.#all.length < SLOT_COUNT) {
      const slot = { slot: this.#all.length, context, count: 0, isOver };
      this.#all.push(slot);
      return slot;
    }
    const at = this.#all.findIndex((slot) => this.#page.isReached(slot) && slot.isOver());
    const old = this.#all[at];
    if (!old) return undefined;
    // It goes on counting where it stands: who waits for less has it reached.
    const slot = { slot: old.slot, context, count: old.count, isOver };
    this.#all[at] = slot;
    return slot;
  }

  /** What was to write the counters runs no more: the other end must not wait for it for ever. */
  #wasReset(context: Context): void {
    for (const slot of this.#all) if (slot.context === context) this.#page.raise(slot);
  }

  /** The next place in the work of a slot's stream. */
  static next(slot: Slot): Point {
    slot.count += 1;
    return { slot: slot.slot, count: slot.count };
  }
}

/** Work whose end this process's CPU tells the other one, as its streams cannot: in order. */
export class Told {
  readonly #page: PointPage;
  /** Taken at once, so that there is one. */
  readonly #slot: Slot;
  #waiting: { readonly fence: Fence; readonly point: Point }[] = [];
  /** Says to the poll in the background, if there is one, that there is more to be told. */
  #hurry: (() => void) | undefined;
  #done: (() => void) | undefined;

  constructor(page: PointPage, slots: Slots) {
    this.#page = page;
    this.#slot = slots.take(() => false) as Slot;
  }

  /** A point behind all work of a context, and of others on its memory, that is known now. */
  behind(context: Context): Point {
    const point = Slots.next(this.#slot);
    this.#waiting.push({ fence: context.activity.fence(), point });
    if (this.#hurry) this.#hurry();
    else this.#hurry = pollInBackground(() => this.#poll());
    return point;
  }

  /** Calls `done` when nothing is left to be told: the other process may wait for it. */
  whenDone(done: () => void): void {
    if (this.#hurry) this.#done = done;
    else done();
  }

  #poll(): boolean {
    for (let first = this.#waiting[0]; first?.fence.isDone(); first = this.#waiting[0]) {
      this.#page.raise(first.point);
      this.#waiting.shift();
      // The other process waits for each: the next is not asked for less often for this one.
      this.#hurry?.();
    }
    if (this.#waiting.length > 0) return false;
    this.#hurry = undefined;
    this.#done?.();
    return true;
  }
}
