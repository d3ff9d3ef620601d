/** Streams as queues of work, and the points where that work goes on. */
import { CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD } from '../constants.ts';
import { CUresult } from '../results.ts';
import type { Context, Contexts } from './context.ts';
import type { Handles } from './handles.ts';

/** Does a piece of work; false, with nothing done, where what it waits for is not there yet. */
export type Work = () => boolean;

/** A place in a stream: reached when the work queued up to there is done. */
interface StreamPosition {
  readonly stream: Stream;
  readonly count: number;
}

interface QueuedWork {
  readonly after: readonly StreamPosition[];
  readonly work: Work;
  /** Whether it takes a place of those that a stream has. */
  readonly isLimited: boolean;
}

export interface Stream {
  readonly handle: number;
  readonly context: Context;
  readonly flags: number;
  readonly priority: number;
  readonly items: QueuedWork[];
  /** What takes down its work at present, if anything does. */
  capture: Capture | undefined;
  /** How many pieces of work were ever queued, and how many of them are done. */
  queued: number;
  done: number;
  /** How many that are not done take a place each. */
  limitedCount: number;
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
/** So long a caller is blocked that hardware would block for good. */
const MAX_BLOCKED_MS = 2000;
/** So many pieces of work may be queued behind one that is held up; the next blocks its caller. */
const MAX_LIMITED_WORK = 1020;
/** What takes such a place. Whether other work does was not measured: host functions do not. */
const LIMITED_KINDS: ReadonlySet<NodeKind> = new Set<NodeKind>(['kernel', 'copy', 'fill', 'value']);

/** What errors call a stream. */
const describeStream = ({ handle }: Stream): string => {
  if (handle === CU_STREAM_LEGACY) return 'the legacy stream';
  if (handle === CU_STREAM_PER_THREAD) return 'the per-thread stream';
  return handle === 0 ? 'a stream of its own' : `the stream 0x${handle.toString(16)}`;
};

/** The streams that hold up a stream: itself, or others that it comes after. */
function blockingStreams(stream: Stream): readonly Stream[] {
  const others = (stream.items[0]?.after ?? []).filter((point) => !isReached(point));
  return others.length === 0 ? [stream] : others.flatMap((point) => blockingStreams(point.stream));
}

/**
 * The streams of this process. Nothing runs when it is queued: work goes on at each `progress()`
 * (queries, waits, synchronous copies) and in turns of the event loop, which it never keeps alive.
 */
export class StreamQueues {
  readonly #contexts: Contexts;
  readonly #handles: Handles;
  readonly #streams = new Map<number, Stream>();
  readonly #defaults = new Map<Context, DefaultStreams>();
  /** Streams with work that is not done, destroyed ones too. */
  readonly #busy = new Set<Stream>();
  /** Those that are open. */
  readonly captures = new Set<Capture>();
  readonly #sleeper = new Int32Array(new SharedArrayBuffer(4));
  readonly #synchronizeListeners: ((isContext: boolean) => void)[] = [];
  /** Which call is under way. */
  currentCall = '';
  #immediate: NodeJS.Immediate | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(contexts: Contexts, handles: Handles) {
    this.#contexts = contexts;
    this.#handles = handles;
    contexts.onEnd((context) => this.#releaseContext(context));
  }

  create(context: Context, flags: number, priority: number): Stream {
    const stream = this.#make(this.#handles.make('CUstream'), context, flags, priority);
    this.#streams.set(stream.handle, stream);
    return stream;
  }

  /** The stream of a handle; a default stream's handle means the current context's. */
  get(handle: number): Stream | undefined {
    if (handle === 0 || handle === CU_STREAM_LEGACY)
      return this.#defaultsOf(this.#contexts.current).legacy;
    if (handle === CU_STREAM_PER_THREAD) return this.#defaultsOf(this.#contexts.current).perThread;
    return this.#streams.get(handle);
  }

  legacy(context: Context): Stream {
    return this.#defaultsOf(context).legacy;
  }

  /** Forgets a stream; its work goes on. False for a handle that is none. */
  destroy(handle: number): boolean {
    const isKnown = this.#streams.delete(handle);
    if (isKnown) this.#handles.release('CUstream', handle);
    return isKnown;
  }

  /**
   * Queues work, or has the capture of the stream take it down: then it is done at each launch.
   *
   * @param kind what it is in a graph
   */
  enqueue(stream: Stream, work: Work, kind: NodeKind = 'other'): void {
    this.enqueueRepeatable(stream, () => work, kind);
  }

  /** As {@link enqueue}, for work that is made anew for each launch. */
  enqueueRepeatable(stream: Stream, make: () => Work, kind: NodeKind): void {
    const { capture } = stream;
    if (capture)
      capture.add(stream, { handle: this.#handles.make('CUgraphNode'), kind, work: make });
    else this.#push(stream, make(), LIMITED_KINDS.has(kind));
  }

  /** Ends the capture that a stream is in, if it is in one: what is asked of it cannot be captured. */
  invalidateCapture({ capture }: Stream): boolean {
    if (capture) capture.isInvalid = true;
    return capture !== undefined;
  }

  /** Ends the captures that have a stream of a kind; returns whether there were any. */
  invalidateCaptures(isOfKind: (stream: Stream, capture: Capture) => boolean): boolean {
    let isBroken = false;
    for (const capture of this.captures)
      if (capture.includesStream((stream) => isOfKind(stream, capture))) {
        capture.isInvalid = true;
        isBroken = true;
      }
    return isBroken;
  }

  /** As {@link invalidateCaptures}: all that are not relaxed, which a call ends that may not be made now. */
  invalidateStrictCaptures(): boolean {
    return this.invalidateCaptures((_, { isRelaxed }) => !isRelaxed);
  }

  #push(stream: Stream, work: Work, takesPlace: boolean): void {
    // Full: the one that is held up, and those behind it.
    const hasPlace = (): boolean => stream.limitedCount <= MAX_LIMITED_WORK;
    if (takesPlace && !hasPlace()) this.blockUntil(hasPlace, () => [stream]);
    stream.items.push({ after: this.#dependencies(stream), work, isLimited: takesPlace });
    stream.queued += 1;
    if (takesPlace) stream.limitedCount += 1;
    this.#busy.add(stream);
    this.#schedule();
  }

  /** Ends a stream's context, as hardware does when work touches what is not mapped (any more). */
  failContext(stream: Stream): void {
    if (stream.context.failure === CUresult.CUDA_SUCCESS)
      stream.context.failure = CUresult.CUDA_ERROR_LAUNCH_FAILED;
  }

  /** Does all work that can be done now. */
  progress(): void {
    for (let moved = true; moved; ) {
      moved = false;
      for (const stream of this.#busy) moved = this.#advance(stream) || moved;
    }
  }

  /** Whether all work of the stream is done (and what the legacy stream waits for, for it). */
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

  /** Blocks until a context has no work left. */
  drain(context: Context): void {
    const busy = (): Stream[] => [...this.#busy].filter((stream) => stream.context === context);
    this.blockUntil(() => busy().length === 0, busy);
  }

  /** A stream that nobody else has, whose work comes after all that a context has queued so far. */
  createJoinStream(context: Context): Stream {
    const stream = this.#make(0, context, CU_STREAM_NON_BLOCKING, 0);
    const after = [...this.#busy]
      .filter((other) => other.context === context)
      .map((other) => ({ stream: other, count: other.queued }));
    stream.items.push({ after, work: () => true, isLimited: false });
    stream.queued += 1;
    this.#busy.add(stream);
    return stream;
  }

  /**
   * Blocks, without a turn of the loop: what is waited for may come from another process or thread.
   *
   * @param waitedFor what is not done yet: streams, or words for it
   * @throws Error, which is no status, where hardware would block its caller for longer
   */
  blockUntil(isDone: () => boolean, waitedFor: () => readonly Stream[] | string): void {
    const begin = performance.now();
    for (let turns = 0; ; turns += 1) {
      this.progress();
      if (isDone()) return;
      if (performance.now() - begin > MAX_BLOCKED_MS) {
        const what = waitedFor();
        const names =
          typeof what === 'string'
            ? what
            : [...new Set(what.flatMap(blockingStreams))].map(describeStream).join(' and ');
        throw new Error(
          `${this.currentCall} has waited ${MAX_BLOCKED_MS} ms for ${names}, which is held up: hardware blocks ` +
            'its caller until that goes on, and nothing in this thread can see to it meanwhile',
        );
      }
      if (turns >= SPINS) Atomics.wait(this.#sleeper, 0, 0, SLEEP_MS);
    }
  }

  /** Has `settle` called when a caller has waited for work, and told whether for a context's. */
  onSynchronize(settle: (isContext: boolean) => void): void {
    this.#synchronizeListeners.push(settle);
  }

  /** A stream, an event or a context was waited for. */
  notifySynchronized(isContext = false): void {
    for (const settle of this.#synchronizeListeners) settle(isContext);
  }

  /**
   * What new work of a stream comes after: on the legacy stream all work of blocking streams of
   * its context, on those the work of the legacy stream.
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

  #advance(stream: Stream): boolean {
    let moved = false;
    for (let item = stream.items[0]; item?.after.every(isReached); item = stream.items[0]) {
      // Behind work that failed nothing is done any more.
      if (stream.context.failure === 0 && !item.work()) break;
      stream.items.shift();
      stream.done += 1;
      if (item.isLimited) stream.limitedCount -= 1;
      moved = true;
    }
    if (stream.items.length === 0) this.#busy.delete(stream);
    return moved;
  }

  /**
   * The immediate makes work go on in this turn of the loop; where the loop is about to sleep it
   * does not wake it, but the timer does.
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
    // What is left waits for others: once a millisecond is often enough.
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
    const counts = { queued: 0, done: 0, limitedCount: 0 };
    return { handle, context, flags, priority, items: [], capture: undefined, ...counts };
  }
}

/** Work of streams that is written down in place of being done: what a graph is made of. */

/** What kinds of work there are: an update must find the same ones. */
export type NodeKind =
  | 'kernel'
  | 'copy'
  | 'fill'
  | 'value'
  | 'host'
  | 'allocate'
  | 'free'
  | 'graph'
  | 'other';

/** One piece of work of a graph. */
export interface GraphNode {
  readonly handle: number;
  readonly kind: NodeKind;
  /** As {@link Work}, of one launch: made anew for each, so that it can be begun again. */
  readonly work: () => Work;
}

/** A place in a capture: all that comes before it, and what new work there depends on. */
export interface CapturePosition {
  readonly predecessors: ReadonlySet<GraphNode>;
  readonly dependencies: ReadonlySet<GraphNode>;
}

const START_POSITION: CapturePosition = { predecessors: new Set(), dependencies: new Set() };

/** A capture that is open, or the graph that came of it. */
export class Capture {
  readonly id: number;
  readonly origin: Stream;
  /** Whether calls that are not of its streams can end it, too. */
  readonly isRelaxed: boolean;
  /** In the order in which they were captured, which is one that they can be done in. */
  readonly nodes: GraphNode[] = [];
  /** Whether something was asked that no capture survives. */
  isInvalid = false;
  readonly #positions = new Map<Stream, CapturePosition>();

  constructor(id: number, origin: Stream, isRelaxed: boolean) {
    this.id = id;
    this.origin = origin;
    this.isRelaxed = isRelaxed;
    this.join(origin, START_POSITION);
  }

  /** Whether a stream of a kind is captured. */
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

  /** Has later work of a stream come after a place, too; the stream is captured from then on. */
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

  /** Ends it; answers whether the origin comes after all that was captured. */
  end(): boolean {
    const isJoined = this.positionOf(this.origin).predecessors.size === this.nodes.length;
    for (const stream of this.#positions.keys()) stream.capture = undefined;
    return isJoined;
  }
}
