import { CU_STREAM_PER_THREAD } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUevent, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import { Mark } from '../../memory/mark.ts';
import { ownStream } from '../../memory/own-stream.ts';
import type { Stream } from '../../stream.ts';
import type { PointPage } from './page.ts';
import { furthest, type Point } from './point.ts';
import { Slots } from './slots.ts';
import { Told } from './told.ts';
import { writeWord } from './words.ts';

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
