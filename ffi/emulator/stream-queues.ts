/** Streams as queues of work, and the capture of streams. */
import { CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD } from '../constants.ts';
import { CUresult } from '../results.ts';
import type { Context, Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { Settings } from './settings.ts';

/** Does a piece of work. Returns false, without effect, if it must wait. */
export type Work = () => boolean;

/** A position in a stream: reached when all work queued before it is done. */
interface StreamPosition {
  readonly stream: Stream;
  readonly count: number;
}

interface QueuedWork {
  readonly after: readonly StreamPosition[];
  readonly work: Work;
  /** Whether it counts toward the stream's limit of queued work. */
  readonly isLimited: boolean;
  /** Whether it waits for a word of memory: while it does, it stops what comes later in its queue. */
  readonly isWait: boolean;
  /** Its place in the order of all work. */
  readonly place: number;
}

export interface Stream {
  readonly handle: number;
  readonly context: Context;
  readonly flags: number;
  readonly priority: number;
  readonly items: QueuedWork[];
  /** The capture that records its work, if one is active. */
  capture: Capture | undefined;
  /** The number of pieces of work that were ever queued, and of those that are done. */
  queued: number;
  done: number;
  /** The number of unfinished pieces of work that count toward the limit. */
  limitedCount: number;
  /** The queue of the device that it has: only while it has work that does not wait for other streams. */
  queue: number | undefined;
  /** Work that comes earlier in the order of all work is before it in that queue. */
  queuedSince: number;
  /** The work that waits for an event, if that comes next. */
  waitForEvent: QueuedWork | undefined;
}

interface DefaultStreams {
  readonly legacy: Stream;
  readonly perThread: Stream;
}

const isReached = (point: StreamPosition): boolean => point.stream.done >= point.count;
export const isBlocking = (stream: Stream): boolean =>
  (stream.flags & CU_STREAM_NON_BLOCKING) === 0;

const SPINS = 20;
const SLEEP_MS = 1;
/** How long a call blocks that would block forever on hardware. Then it throws. */
const MAX_BLOCKED_MS = 2000;
/** The most pieces of work behind a blocked one. The call that queues one more blocks. */
const MAX_LIMITED_WORK = 1020;
/** The kinds of work that count toward the limit. Host functions do not; others were not measured. */
const LIMITED_KINDS: ReadonlySet<NodeKind> = new Set<NodeKind>([
  'kernel',
  'copy',
  'fill',
  'value',
  'wait',
]);

/** The handle of internal streams, which take no queue. */
const INTERNAL = 0;
/** Whether the next work of a stream waits for a word of memory. */
const isWaiting = ({ items }: Stream): boolean => items[0]?.isWait === true;
/** The place of a stream's next work in its queue, which runs what has a lower one before. */
const placeInQueue = ({ items, queuedSince }: Stream): number =>
  Math.max(items[0]?.place ?? 0, queuedSince);

/** The name of a stream in error messages. */
const describeStream = ({ handle }: Stream): string => {
  if (handle === CU_STREAM_LEGACY) return 'the legacy stream';
  if (handle === CU_STREAM_PER_THREAD) return 'the per-thread stream';
  return handle === INTERNAL ? 'an internal stream' : `the stream 0x${handle.toString(16)}`;
};

/** The streams that block a stream: itself, or others that its next work waits for. */
function blockingStreams(stream: Stream): readonly Stream[] {
  const others = (stream.items[0]?.after ?? []).filter((point) => !isReached(point));
  return others.length === 0 ? [stream] : others.flatMap((point) => blockingStreams(point.stream));
}

/**
 * The streams of this process. Work never runs while it is queued, but at each `progress()` (queries,
 * waits, synchronous copies) and in turns of the event loop, which it does not keep alive.
 */
export class StreamQueues {
  readonly #contexts: Contexts;
  readonly #handles: Handles;
  readonly #queueCount: number;
  readonly #sharedFrom: number;
  /** The queue that was shared last. */
  #lastShared = 0;
  /** Whether the last stream that took a queue had to share that of a waiting one, by the setting. */
  #shares = false;
  /** The number of pieces of work that were ever queued. */
  #places = 0;
  readonly #streams = new Map<number, Stream>();
  readonly #defaults = new Map<Context, DefaultStreams>();
  /** Streams with unfinished work, including destroyed ones. */
  readonly #busy = new Set<Stream>();
  /** The active captures. */
  readonly captures = new Set<Capture>();
  readonly #sleeper = new Int32Array(new SharedArrayBuffer(4));
  readonly #synchronizeListeners: ((isContext: boolean) => void)[] = [];
  /** The name of the driver function that runs now. */
  currentCall = '';
  #immediate: NodeJS.Immediate | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(contexts: Contexts, handles: Handles, { queueCount, queuesSharedFrom }: Settings) {
    this.#contexts = contexts;
    this.#handles = handles;
    this.#queueCount = queueCount;
    this.#sharedFrom = queuesSharedFrom;
    contexts.onEnd((context) => this.#releaseContext(context));
  }

  /** How many streams were created and not destroyed. */
  get createdCount(): number {
    return this.#streams.size;
  }

  create(context: Context, flags: number, priority: number): Stream {
    const stream = this.#make(this.#handles.make('CUstream'), context, flags, priority);
    this.#streams.set(stream.handle, stream);
    return stream;
  }

  /** The stream of a handle. The handle of a default stream means that of the current context. */
  get(handle: number): Stream | undefined {
    if (handle === 0 || handle === CU_STREAM_LEGACY)
      return this.#defaultsOf(this.#contexts.current).legacy;
    if (handle === CU_STREAM_PER_THREAD) return this.#defaultsOf(this.#contexts.current).perThread;
    return this.#streams.get(handle);
  }

  legacy(context: Context): Stream {
    return this.#defaultsOf(context).legacy;
  }

  /** Destroys a stream; its queued work continues. Returns false for an unknown handle. */
  destroy(handle: number): boolean {
    const isKnown = this.#streams.delete(handle);
    if (isKnown) this.#handles.release('CUstream', handle);
    return isKnown;
  }

  /**
   * Queues work. If the stream is being captured, records it instead, to run at each launch.
   *
   * @param kind the kind of the graph node
   */
  enqueue(stream: Stream, work: Work, kind: NodeKind = 'other'): void {
    this.enqueueRepeatable(stream, () => work, kind);
  }

  /** Like {@link enqueue}, with work that is created anew for each launch. */
  enqueueRepeatable(stream: Stream, make: () => Work, kind: NodeKind): void {
    const { capture } = stream;
    if (capture)
      capture.add(stream, { handle: this.#handles.make('CUgraphNode'), kind, work: make });
    else this.#push(stream, make(), kind);
  }

  /** Invalidates the capture of a stream. Returns whether there was one. */
  invalidateCapture({ capture }: Stream): boolean {
    if (capture) capture.isInvalid = true;
    return capture !== undefined;
  }

  /** Invalidates the captures that include a matching stream. Returns whether there were any. */
  invalidateCaptures(isOfKind: (stream: Stream, capture: Capture) => boolean): boolean {
    let isBroken = false;
    for (const capture of this.captures)
      if (capture.includesStream((stream) => isOfKind(stream, capture))) {
        capture.isInvalid = true;
        isBroken = true;
      }
    return isBroken;
  }

  /**
   * Invalidates all captures that are not relaxed, as an unsafe call does. Returns whether there
   * were any.
   */
  invalidateStrictCaptures(): boolean {
    return this.invalidateCaptures((_, { isRelaxed }) => !isRelaxed);
  }

  #push(stream: Stream, work: Work, kind: NodeKind): void {
    const takesPlace = LIMITED_KINDS.has(kind);
    // One piece of work may be blocked, with MAX_LIMITED_WORK behind it.
    const hasPlace = (): boolean => stream.limitedCount <= MAX_LIMITED_WORK;
    if (takesPlace && !hasPlace()) this.blockUntil(hasPlace, () => [stream]);
    const after = this.#dependencies(stream);
    this.#places += 1;
    if (stream.items.length === 0 && after.every(isReached)) this.#takeQueue(stream);
    const [isWait, place] = [kind === 'wait', this.#places];
    stream.items.push({ after, work, isLimited: takesPlace, isWait, place });
    stream.queued += 1;
    if (takesPlace) stream.limitedCount += 1;
    this.#busy.add(stream);
    this.#schedule();
  }

  /** Fails a stream's context, as hardware does when work accesses unmapped memory. */
  failContext(stream: Stream): void {
    if (stream.context.failure === CUresult.CUDA_SUCCESS)
      stream.context.failure = CUresult.CUDA_ERROR_LAUNCH_FAILED;
  }

  /** Runs all work that can run now. */
  progress(): void {
    for (let moved = true; moved; ) {
      moved = false;
      for (const stream of this.#busy) moved = this.#advance(stream) || moved;
    }
  }

  /** Whether all work of the stream is done; for the legacy stream, also all that it waits for. */
  isIdle(stream: Stream): boolean {
    this.progress();
    return stream.items.length === 0 && this.#dependencies(stream, true).every(isReached);
  }

  /** Blocks until the work queued so far is done. */
  synchronize(stream: Stream): void {
    const points = [{ stream, count: stream.queued }, ...this.#dependencies(stream, true)];
    this.blockUntil(
      () => points.every(isReached),
      () => points.filter((point) => !isReached(point)).map((point) => point.stream),
    );
  }

  /** Blocks until a context has no unfinished work. */
  drain(context: Context): void {
    const busy = (): Stream[] => [...this.#busy].filter((stream) => stream.context === context);
    this.blockUntil(() => busy().length === 0, busy);
  }

  /** Creates an internal stream whose work runs after all work that a context has queued so far. */
  createJoinStream(context: Context): Stream {
    const stream = this.#make(INTERNAL, context, CU_STREAM_NON_BLOCKING, 0);
    const after = [...this.#busy]
      .filter((other) => other.context === context)
      .map((other) => ({ stream: other, count: other.queued }));
    const [isLimited, isWait, place] = [false, false, this.#places];
    stream.items.push({ after, work: () => true, isLimited, isWait, place });
    stream.queued += 1;
    this.#busy.add(stream);
    return stream;
  }

  /**
   * Blocks this thread: another process or thread may cause what it waits for.
   *
   * @param waitedFor the unfinished streams, or a description, for the error message
   * @throws Error if it blocks too long: hardware would block forever
   */
  blockUntil(isDone: () => boolean, waitedFor: () => readonly Stream[] | string): void {
    const begin = performance.now();
    for (let turns = 0; ; turns += 1) {
      this.progress();
      if (isDone()) return;
      if (performance.now() - begin > MAX_BLOCKED_MS) {
        const what = waitedFor();
        const names = typeof what === 'string' ? `${what}, which is blocked` : this.#explain(what);
        throw new Error(
          `${this.currentCall} has waited ${MAX_BLOCKED_MS} ms for ${names}. On hardware the call ` +
            'would block forever: nothing else can run in this thread meanwhile',
        );
      }
      if (turns >= SPINS) Atomics.wait(this.#sleeper, 0, 0, SLEEP_MS);
    }
  }

  /** Which streams block the given ones, and why. */
  #explain(waitedFor: readonly Stream[]): string {
    const streams = [...new Set(waitedFor.flatMap(blockingStreams))];
    const names = streams.map(describeStream).join(' and ');
    const stopping = streams.map((each) => this.#stoppedBy(each)).find((each) => each);
    return stopping
      ? `${names}, which shares a queue of the device with ${describeStream(stopping)}, which waits`
      : `${names}, which is blocked`;
  }

  /** Registers a function to call after each synchronization. `isContext`: of a whole context. */
  onSynchronize(settle: (isContext: boolean) => void): void {
    this.#synchronizeListeners.push(settle);
  }

  /** Calls the listeners after a wait for a stream, an event or a context. */
  notifySynchronized(isContext = false): void {
    for (const settle of this.#synchronizeListeners) settle(isContext);
  }

  /**
   * The positions that new work of a stream waits for. The legacy stream waits for all blocking
   * streams of its context, and those wait for the legacy stream.
   */
  #dependencies(stream: Stream, onlyLegacy = false): readonly StreamPosition[] {
    const legacy = this.#defaults.get(stream.context)?.legacy;
    if (stream === legacy) {
      return [...this.#busy]
        .filter((other) => other !== stream && other.context === stream.context)
        .filter(isBlocking)
        .map((other) => ({ stream: other, count: other.queued }));
    }
    if (onlyLegacy || !legacy || legacy.items.length === 0 || !isBlocking(stream)) return [];
    return [{ stream: legacy, count: legacy.queued }];
  }

  /**
   * Gives a stream one of the device's queues, as an H100 was measured to do: one without unfinished
   * work, or else one after the other, even if a stream waits in it.
   */
  #takeQueue(stream: Stream): void {
    if (stream.handle === INTERNAL) return;
    const used = new Set<number | undefined>();
    const waitedIn: number[] = [];
    for (const other of this.#busy)
      if (other.context === stream.context && other.queue !== undefined) {
        used.add(other.queue);
        if (isWaiting(other)) waitedIn.push(other.queue);
      }
    let queue = 0;
    while (used.has(queue)) queue += 1;
    if (waitedIn.length >= this.#sharedFrom) this.#shares = !this.#shares;
    else this.#shares = false;
    if (this.#shares) queue = waitedIn[0] as number;
    else if (queue >= this.#queueCount) {
      this.#lastShared = (this.#lastShared + 1) % this.#queueCount;
      queue = this.#lastShared;
    }
    stream.queue = queue;
    stream.queuedSince = this.#places;
  }

  /** The stream that waits in the same queue, before this one's next work. */
  #stoppedBy(stream: Stream): Stream | undefined {
    if (stream.queue === undefined) return undefined;
    const place = placeInQueue(stream);
    for (const other of this.#busy)
      if (
        other.queue === stream.queue &&
        other.context === stream.context &&
        isWaiting(other) &&
        placeInQueue(other) < place
      )
        return other;
    return undefined;
  }

  #advance(stream: Stream): boolean {
    let moved = false;
    for (let item = stream.items[0]; item; item = stream.items[0]) {
      if (!item.after.every(isReached)) {
        stream.queue = undefined;
        break;
      }
      // A stream that waits for an event has no queue: it stops no others, and none stops it.
      if (stream.waitForEvent !== item) {
        if (stream.queue === undefined) this.#takeQueue(stream);
        if (this.#stoppedBy(stream)) break;
      }
      // After a failure nothing runs.
      if (stream.context.failure === 0 && !item.work()) {
        if (!item.isWait) {
          stream.waitForEvent = item;
          stream.queue = undefined;
        }
        break;
      }
      stream.items.shift();
      stream.done += 1;
      if (item.isLimited) stream.limitedCount -= 1;
      moved = true;
    }
    if (stream.items.length === 0) {
      stream.queue = undefined;
      this.#busy.delete(stream);
    }
    return moved;
  }

  /**
   * Schedules progress. The immediate runs in this turn of the loop, but does not wake a sleeping
   * loop. The timer does.
   */
  #schedule(): void {
    this.#immediate ??= setImmediate(() => this.#tick()).unref();
    this.#timer ??= setTimeout(() => this.#tick(), SLEEP_MS).unref();
  }

  #tick(): void {
    clearImmediate(this.#immediate);
    clearTimeout(this.#timer);
    this.#immediate = undefined;
    this.#timer = undefined;
    this.progress();
    // The rest waits for other processes or threads: poll once per millisecond.
    if (this.#busy.size > 0) this.#timer = setTimeout(() => this.#tick(), SLEEP_MS).unref();
  }

  #releaseContext(context: Context): void {
    this.progress();
    for (const stream of this.#busy) if (stream.context === context) this.#busy.delete(stream);
    for (const [handle, stream] of this.#streams)
      if (stream.context === context) this.destroy(handle);
    this.#defaults.delete(context);
    for (const capture of this.captures)
      if (capture.origin.context === context) this.captures.delete(capture);
  }

  #defaultsOf(context: Context): DefaultStreams {
    const known = this.#defaults.get(context);
    if (known) return known;
    const made = {
      legacy: this.#make(CU_STREAM_LEGACY, context, 0, 0),
      perThread: this.#make(CU_STREAM_PER_THREAD, context, 0, 0),
    };
    this.#defaults.set(context, made);
    return made;
  }

  #make(handle: number, context: Context, flags: number, priority: number): Stream {
    const counts = { queued: 0, done: 0, limitedCount: 0, queuedSince: 0 };
    const none = { capture: undefined, queue: undefined, waitForEvent: undefined };
    return { handle, context, flags, priority, items: [], ...none, ...counts };
  }
}

// ---- Stream capture: work that is recorded as the nodes of a graph ----

/** The kinds of work. An updated graph must have the same kinds. */
export type NodeKind =
  | 'kernel'
  | 'copy'
  | 'fill'
  | 'value'
  | 'wait'
  | 'host'
  | 'allocate'
  | 'free'
  | 'graph'
  | 'other';

/** A node of a graph: one piece of work. */
export interface GraphNode {
  readonly handle: number;
  readonly kind: NodeKind;
  /** Creates the work for one launch. */
  readonly work: () => Work;
}

/** A position in a capture: all nodes before it, and those that the next node depends on. */
export interface CapturePosition {
  readonly predecessors: ReadonlySet<GraphNode>;
  readonly dependencies: ReadonlySet<GraphNode>;
}

const START_POSITION: CapturePosition = { predecessors: new Set(), dependencies: new Set() };

/** An active capture, or the graph that it produced. */
export class Capture {
  readonly id: number;
  readonly origin: Stream;
  /** Whether unsafe calls outside of its streams leave it valid. */
  readonly isRelaxed: boolean;
  /** In capture order, which is a valid execution order. */
  readonly nodes: GraphNode[] = [];
  /** Whether a call invalidated it. */
  isInvalid = false;
  readonly #positions = new Map<Stream, CapturePosition>();

  constructor(id: number, origin: Stream, isRelaxed: boolean) {
    this.id = id;
    this.origin = origin;
    this.isRelaxed = isRelaxed;
    this.join(origin, START_POSITION);
  }

  /** Whether a matching stream is captured. */
  includesStream(isOfKind: (stream: Stream) => boolean): boolean {
    return [...this.#positions.keys()].some(isOfKind);
  }

  add(stream: Stream, node: GraphNode): void {
    const { predecessors } = this.positionOf(stream);
    this.nodes.push(node);
    this.#positions.set(stream, {
      predecessors: new Set([...predecessors, node]),
      dependencies: new Set([node]),
    });
  }

  positionOf(stream: Stream): CapturePosition {
    return this.#positions.get(stream) ?? START_POSITION;
  }

  /** Makes later work of a stream depend on a position. The stream is captured from then on. */
  join(stream: Stream, { predecessors, dependencies }: CapturePosition): void {
    const own = this.positionOf(stream);
    stream.capture = this;
    this.#positions.set(stream, {
      predecessors: new Set([...own.predecessors, ...predecessors]),
      dependencies: new Set([
        ...[...own.dependencies].filter(
          (node) => !predecessors.has(node) || dependencies.has(node),
        ),
        ...[...dependencies].filter((node) => !own.predecessors.has(node)),
      ]),
    });
  }

  /** Ends the capture. Returns whether the origin stream has joined all captured work. */
  end(): boolean {
    const isJoined = this.positionOf(this.origin).predecessors.size === this.nodes.length;
    for (const stream of this.#positions.keys()) stream.capture = undefined;
    return isJoined;
  }
}
