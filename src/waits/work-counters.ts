/**
 * Counts the work that stands behind a wait for another process, in whichever stream. The driver blocks
 * the caller that queues too much there, who then cannot see that the other process has ended.
 */
import { OUT3, readUint32 } from '../../ffi/arena.ts';
import {
  CU_STREAM_LEGACY,
  CU_STREAM_NON_BLOCKING,
  CU_STREAM_PER_THREAD,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUstream } from '../../ffi/types.ts';
import { CuffiError } from '../errors.ts';
import type { Fence } from '../fence.ts';
import { isCapturing } from '../graph-capture.ts';
import { isCaptured, type WorkTracker } from '../work-tracker.ts';
import type { WaitingStream } from './waiting-streams.ts';

// ---- The limits ----

/**
 * The most waits that one stream may have queued, for all other processes together. Behind an
 * unreached wait a stream accepts 1,020 operations. The next one blocks its caller inside the
 * driver. Most of the 1,020 are left for the work between the waits.
 */
const MAX_WAITS_PER_STREAM = 320;
/** The most waits for all streams of a context, as some of them may share a hardware queue. */
export const MAX_WAITS_PER_CONTEXT = 512;
/**
 * The most pieces of work that may be queued behind a wait, waits included. Events, and what pools allocate
 * and free, do not count (H100). The rest is for what cuffi does not see: work of other libraries.
 */
const MAX_WORK_PER_STREAM = 960;
/** Above this, loops that can wait on the host do. The rest is for the work of one of their turns. */
const MAX_WORK_AHEAD = MAX_WORK_PER_STREAM / 2;
/** After so many waits an event is recorded, to find out how many have run. */
const WAITS_PER_EVENT = MAX_WAITS_PER_STREAM / 2;
/** The same for work. */
const WORK_PER_EVENT = 128;

/**
 * Returns how many streams of a context may wait at a time: two fewer than the device has queues. If
 * all queues held waits, nothing else of the process would run, not even what another process waits
 * for. One queue is left for the user's work, and one for cuffi's own.
 */
export function maxWaitingStreams(): number {
  const given = Number(process.env['CUDA_DEVICE_MAX_CONNECTIONS']);
  const queues = Number.isInteger(given) && given >= 1 && given <= 32 ? given : DEFAULT_QUEUES;
  return Math.max(0, queues - 2);
}

/** The driver's default. */
const DEFAULT_QUEUES = 8;

// ---- The streams of a context ----

/**
 * What the streams of a context have queued behind waits. A stream stands behind a wait that is queued in
 * it, or behind an event of such a stream. Blocking streams stand behind the legacy default stream while
 * that has work, and it behind all of them.
 */
export class WorkCounters {
  readonly #workTracker: WorkTracker;
  readonly #counters = new Map<CUstream, WorkCounter>();
  /** Whether a blocking stream waits, or the legacy default stream. */
  #doesBlockingStreamWait = false;
  #isActive = false;

  constructor(workTracker: WorkTracker) {
    this.#workTracker = workTracker;
  }

  /** Whether work may stand behind a wait. If not, nothing is counted. */
  get isActive(): boolean {
    return this.#isActive;
  }

  /** Whether the work of a stream is counted, as it may stand behind a wait. */
  isCounted(stream: CUstream): boolean {
    return this.#find(stream) !== undefined;
  }

  /** Counts a piece of work that is queued next. @throws CuffiError if it does not fit */
  count(stream: CUstream): void {
    if (!this.hasRoom(stream)) throw tooMuchWork();
  }

  /** Whether one more piece of work fits into a stream without blocking, which is counted then. */
  hasRoom(stream: CUstream): boolean {
    const counter = this.#find(stream);
    // Work that is captured is not queued.
    if (!counter || isCapturing()) return true;
    if (counter.size >= MAX_WORK_PER_STREAM || counter.isDue) {
      this.#check(counter);
      if (counter.size >= MAX_WORK_PER_STREAM) return false;
    }
    counter.addWork();
    return true;
  }

  /**
   * Whether a stream has room for work that can be queued later as well: it may take half of the limit.
   * Nothing is counted.
   */
  hasRoomAhead(stream: CUstream): boolean {
    const counter = this.#find(stream);
    if (!counter || counter.size < MAX_WORK_AHEAD) return true;
    this.#check(counter);
    return counter.size < MAX_WORK_AHEAD;
  }

  /** Whether so many more waits for other processes fit into a stream. */
  hasRoomForWaits(stream: CUstream, count: number): boolean {
    const counter = this.#counterOf(stream);
    if (counter.hasRoomForWaits(count)) return true;
    this.#check(counter);
    return counter.hasRoomForWaits(count);
  }

  /** Notes a wait for another process, which was queued in a stream. */
  addWait(stream: CUstream, waiting: WaitingStream): void {
    const counter = this.#counterOf(stream);
    counter.addWait(waiting);
    this.#noteWaiting(counter);
  }

  /** Finds out how many of the waits of a stream have run, if many were queued. */
  markWaits(stream: CUstream): void {
    const counter = this.#counterOf(stream);
    if (counter.newWaitCount >= WAITS_PER_EVENT) counter.mark(this.#workTracker);
  }

  /** How many waits a stream has queued that may not have run yet. */
  waitCount(stream: CUstream): number {
    return this.#counters.get(stream)?.waitCount ?? 0;
  }

  /** Notes that a stream waits for an event that may stand behind a wait for another process. */
  addEventWait(stream: CUstream): void {
    if (isCapturing() || (stream > CU_STREAM_PER_THREAD && isCaptured(stream))) return;
    const counter = this.#counterOf(stream);
    counter.addEventWait();
    this.#noteWaiting(counter);
  }

  /** Whether a stream has a counter. */
  has(stream: CUstream): boolean {
    return this.#counters.has(stream);
  }

  /** Forgets a stream, which is destroyed. */
  delete(stream: CUstream): void {
    const counter = this.#counters.get(stream);
    if (!counter) return;
    counter.dispose();
    this.#counters.delete(stream);
    this.refresh();
  }

  /** Forgets all, as the context was reset. */
  clear(): void {
    for (const counter of this.#counters.values()) counter.dispose();
    this.#counters.clear();
    this.#isActive = false;
    this.#doesBlockingStreamWait = false;
  }

  /** Finds out which streams still wait. */
  refresh(): void {
    for (const counter of this.#counters.values()) counter.refresh(this.#workTracker);
    this.#isActive = false;
    this.#doesBlockingStreamWait = false;
    for (const counter of this.#counters.values()) if (counter.mayWait) this.#noteWaiting(counter);
    if (this.#isActive) return;
    for (const [stream, counter] of this.#counters) {
      // A stream that is held up has not come to its waits yet, and may get more of them.
      counter.mark(this.#workTracker);
      counter.refresh(this.#workTracker);
      if (counter.waitCount > 0) continue;
      counter.dispose();
      this.#counters.delete(stream);
    }
  }

  #noteWaiting(counter: WorkCounter): void {
    this.#isActive = true;
    if (counter.isBlocking) this.#doesBlockingStreamWait = true;
  }

  /** Finds out how much of the work of a stream has run. */
  #check(counter: WorkCounter): void {
    this.refresh();
    if (this.#isBehindWait(counter)) counter.mark(this.#workTracker);
    else counter.forgetWork();
  }

  #isBehindWait(counter: WorkCounter): boolean {
    if (counter.mayWait) return true;
    if (!this.#doesBlockingStreamWait || !counter.isBlocking) return false;
    // Other blocking streams stand only behind what the legacy default stream has queued.
    return counter.stream === CU_STREAM_LEGACY || this.#workTracker.hasWork(CU_STREAM_LEGACY);
  }

  #find(stream: CUstream): WorkCounter | undefined {
    if (!this.#isActive) return undefined;
    const known = this.#counters.get(stream);
    if (known?.mayWait) return known;
    if (!this.#doesBlockingStreamWait) return undefined;
    // Reading the flags of a captured stream would end the capture. Its work is not queued.
    if (!known && stream > CU_STREAM_PER_THREAD && isCaptured(stream)) return undefined;
    const counter = known ?? this.#counterOf(stream);
    return counter.isBlocking ? counter : undefined;
  }

  #counterOf(stream: CUstream): WorkCounter {
    let counter = this.#counters.get(stream);
    if (!counter) {
      counter = new WorkCounter(stream, isBlocking(stream));
      this.#counters.set(stream, counter);
    }
    return counter;
  }
}

/** Whether a stream synchronizes with the legacy default stream, or is that one. */
const isBlocking = (stream: CUstream): boolean =>
  stream <= CU_STREAM_PER_THREAD ||
  (cu.cuStreamGetFlags(stream, OUT3) === CUresult.CUDA_SUCCESS &&
    (readUint32(OUT3) & CU_STREAM_NON_BLOCKING) === 0);

const tooMuchWork = (): CuffiError =>
  new CuffiError(
    `${MAX_WORK_PER_STREAM} operations are queued in this stream behind a wait for another process: the driver would ` +
      'block this process at the next ones. Await stream.synchronize() or timeline.reached() before queueing more',
  );

// ---- One stream ----

/** How much may not have run yet, or was queued since a mark. */
interface Queued {
  work: number;
  waits: number;
  /** Whether it waits for an event that may stand behind a wait. */
  hasEventWait: boolean;
}

const nothing = (): Queued => ({ work: 0, waits: 0, hasEventWait: false });

/** What one stream has queued. It counts too much rather than too little. */
class WorkCounter {
  readonly stream: CUstream;
  readonly isBlocking: boolean;
  #queued = nothing();
  #sinceMark = nothing();
  /** Done when all has run that was queued up to it. */
  #mark: Fence | undefined;
  /** Those that wait in this stream. A reached value does not prove that the wait has run. */
  readonly #waiting = new Set<WaitingStream>();
  #workSinceCheck = 0;

  constructor(stream: CUstream, blocking: boolean) {
    this.stream = stream;
    this.isBlocking = blocking;
  }

  /** Whether a wait in this stream may not be over, as of the last {@link refresh}. */
  get mayWait(): boolean {
    return this.#waiting.size > 0 || this.#queued.hasEventWait;
  }

  get size(): number {
    return this.#queued.work + this.#queued.waits;
  }

  get waitCount(): number {
    return this.#queued.waits;
  }

  /** How many waits were queued since the last mark. */
  get newWaitCount(): number {
    return this.#sinceMark.waits;
  }

  /** Whether it is time to look how much has run. */
  get isDue(): boolean {
    return this.#workSinceCheck >= WORK_PER_EVENT;
  }

  hasRoomForWaits(count: number): boolean {
    return (
      this.#queued.waits + count <= MAX_WAITS_PER_STREAM && this.size + count <= MAX_WORK_PER_STREAM
    );
  }

  addWork(): void {
    this.#queued.work += 1;
    this.#sinceMark.work += 1;
    this.#workSinceCheck += 1;
  }

  addWait(waiting: WaitingStream): void {
    this.#queued.waits += 1;
    this.#sinceMark.waits += 1;
    this.#waiting.add(waiting);
  }

  addEventWait(): void {
    this.#queued.hasEventWait = true;
    this.#sinceMark.hasEventWait = true;
  }

  /** Marks what is queued now, unless an earlier mark is still pending. */
  mark(workTracker: WorkTracker): void {
    this.#workSinceCheck = 0;
    if (this.#mark) return;
    this.#mark = workTracker.fenceBehind(this.stream);
    this.#sinceMark = nothing();
  }

  /** Forgets the work, as it stands behind no wait. */
  forgetWork(): void {
    this.#queued.work = 0;
    this.#sinceMark.work = 0;
    this.#workSinceCheck = 0;
  }

  refresh(workTracker: WorkTracker): void {
    for (const waiting of this.#waiting) if (!waiting.isWaiting) this.#waiting.delete(waiting);
    if (this.#queued.hasEventWait) this.mark(workTracker);
    if (!this.#mark?.isDone()) return;
    this.#mark.dispose();
    this.#mark = undefined;
    this.#queued = { ...this.#sinceMark };
  }

  dispose(): void {
    this.#mark?.dispose();
    this.#mark = undefined;
  }
}
