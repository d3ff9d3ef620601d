import { CU_STREAM_PER_THREAD } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd } from '../../../ffi/linux/libc.ts';
import type { CUevent, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError, IpcError } from '../../errors.ts';
import { InternalEvent } from '../../internal-event.ts';
import { internalStream } from '../../memory/internal-stream.ts';
import type { Stream } from '../../stream.ts';
import { COUNTER_COUNT } from '../protocol.ts';
import { ResetWatch } from '../reset-watch.ts';
import { HostStores, storeFromDevice, writeWord } from './stores.ts';
import { enqueueWaits } from './waits.ts';
import { canUseStreams, latest, SharedWords, type TimelinePoint } from './words.ts';

/**
 * Orders the GPU work of two processes. Each process writes the counters of its own page and waits
 * for the counters of the other page.
 */
export class ConnectionTimeline {
  #signaler: Signaler | undefined;
  #theirs: SharedWords | undefined;
  /** Whether the driver has refused to make a stream wait for their counters. */
  #isDeviceRefused = false;
  #isClosed = false;
  /** Whether the other process needs this process's page and has not got it. */
  isPageUnshared = false;

  /** Whether the other process may still wait for work of this process. */
  get isAwaitedByPeer(): boolean {
    return this.#signaler?.isPending === true;
  }

  /** Returns points behind the work of one stream. @throws CudaError, ClosedError */
  pointsBehindStream(stream: Stream): TimelinePoint[] {
    return this.#isClosed ? [] : this.#ownSignaler.pointsBehindStream(stream);
  }

  /** Returns points behind all known work of a context. @throws CudaError */
  pointsBehindContext(context: Context): TimelinePoint[] {
    return this.#isClosed ? [] : this.#ownSignaler.pointsBehindContext(context);
  }

  /**
   * Calls `send` with this process's page if the other process needs it now. Later calls do so
   * again until `send` succeeds once.
   */
  sharePage(send: (fd: number) => void): void {
    const words = this.#signaler?.words;
    if (words?.hasFd) {
      send(words.fd);
      closeFd(words.takeFd());
    }
    this.isPageUnshared = false;
  }

  /** Maps the other process's page and closes the descriptor. @throws IpcError */
  acceptPage(fd: number): void {
    if (this.#theirs || this.#isClosed) {
      discardFd(fd);
      throw new IpcError('received a second timeline page');
    }
    this.#theirs = SharedWords.accept(fd, 'timeline page', { isForDevices: true });
  }

  /** @throws IpcError for points whose page was never received */
  isReached(points: readonly TimelinePoint[]): boolean {
    if (points.length === 0) return true;
    const words = this.#received;
    return points.every((point) => words.isReached(point));
  }

  /** Whether streams of a context can wait for points, but for the limits of each stream. @throws as {@link wait} */
  canWait(context: Context): boolean {
    const { isMemoryFixed } = this.#received;
    return !this.#isDeviceRefused && isMemoryFixed && canUseStreams(context.device);
  }

  /**
   * Makes later work of a stream wait for points of the other process, which must be alive; the default is
   * the context's legacy default stream. Returns false if the device cannot wait or too many waits are
   * queued: then the host must wait.
   *
   * @throws IpcError for points whose page was never received; CudaError if the context is lost
   */
  wait(points: readonly TimelinePoint[], context: Context, stream: Stream | undefined): boolean {
    if (points.length === 0) return true;
    const words = this.#received;
    const unreached = points.filter((point) => !words.isReached(point));
    if (unreached.length === 0) return true;
    if (!this.canWait(stream?.context ?? context)) return false;
    try {
      return enqueueWaits(words, unreached, context, stream) !== 'full';
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      this.#isDeviceRefused = true;
      return false;
    }
  }

  /**
   * Unblocks every stream after the other process is gone. Returns how many counters were awaited and
   * never reached.
   */
  abandonWaits(): number {
    return this.#theirs?.abandonWaits() ?? 0;
  }

  /** Stops creating points. Calls `onUnused` once no stream here can wait for the other process. */
  close(onUnused: () => void): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#signaler?.close();
    if (this.#theirs) this.#theirs.close(onUnused);
    else onUnused();
  }

  get #ownSignaler(): Signaler {
    if (!this.#signaler) {
      this.#signaler = new Signaler(SharedWords.create('cuffi-points'));
      this.isPageUnshared = true;
    }
    return this.#signaler;
  }

  get #received(): SharedWords {
    if (!this.#theirs) throw new IpcError('received points before their timeline page');
    return this.#theirs;
  }
}

// ---- The points of this process ----

/**
 * Signals to another process how far the streams of this process are. Each stream writes its
 * counter behind its work, and no CPU waits. If a device cannot write, the CPU stores the counter
 * when the work is done.
 */
export class Signaler {
  readonly words: SharedWords;
  readonly #counters: StreamCounters;
  readonly #fromHost = new HostStores();
  /** The counter of the CPU, allocated when one is certainly free. */
  readonly #hostCounter: StreamCounter;

  constructor(words: SharedWords) {
    this.words = words;
    this.#counters = new StreamCounters(words);
    this.#hostCounter = this.#counters.allocate(() => false) as StreamCounter;
  }

  /**
   * Returns a point behind the work of a stream, or none if that work is done. @throws CudaError
   */
  pointsBehindStream(stream: Stream): TimelinePoint[] {
    if (stream.done) return [];
    return this.#fromDeviceOrHost(stream.context, () => this.#signalInStream(stream));
  }

  /**
   * Returns points behind all known work of a context, or none if nothing runs. @throws CudaError
   */
  pointsBehindContext(context: Context): TimelinePoint[] {
    const { streams, events, isComplete } = context.run(() => context.workTracker.runningWork());
    if (!isComplete) return [this.#fromHostBehind(context)];
    if (streams.length === 0 && events.length === 0) return [];
    return this.#fromDeviceOrHost(context, () => {
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
    this.#fromHost.whenDone(() => this.words.close(() => this.#counters.end()));
  }

  #fromDeviceOrHost(context: Context, queue: () => TimelinePoint[]): TimelinePoint[] {
    if (canUseStreams(context.device))
      try {
        return queue();
      } catch (error) {
        if (!(error instanceof CudaError) || error.sticky) throw error;
      }
    return [this.#fromHostBehind(context)];
  }

  /**
   * Returns a point that the CPU stores behind the work of a stream, by default behind all known work of a
   * context, including work of other contexts on its memory.
   */
  #fromHostBehind({ workTracker }: Context, stream?: CUstream): TimelinePoint {
    const point = nextPoint(this.#hostCounter);
    // Other streams may hold a default stream up.
    const isAlone = stream !== undefined && stream > CU_STREAM_PER_THREAD;
    const fence = isAlone ? workTracker.fenceBehind(stream) : workTracker.fence();
    this.#hostCounter.count = point.count;
    this.#fromHost.add(point.index, {
      isDone: () => fence.isDone(),
      store: () => this.words.advanceTo(point),
      onOver: () => fence.dispose(),
    });
    return point;
  }

  #signalInStream(stream: Stream): TimelinePoint[] {
    const { context, queryHandle: handle } = stream;
    const isBorrowed = !stream.isOwn && handle > CU_STREAM_PER_THREAD;
    const counter = isBorrowed
      ? this.#counters.ofBorrowed(stream)
      : this.#counters.ofHandle(context, handle);
    if (!counter) return this.#signalInJoinStream(context, handle, (event) => event.record(stream));
    const point = nextPoint(counter);
    if (!storeFromDevice(this.words, point, context, stream))
      return [this.#fromHostBehind(context, handle)];
    counter.count = point.count;
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
      return [this.#fromHostBehind(context, events.length > 0 ? undefined : stream)];
    for (const event of events) check(cu.cuStreamWaitEvent(stream, event, 0), 'cuStreamWaitEvent');
    const address = this.words.addressIn(context, counter.index);
    const point = nextPoint(counter);
    const write = (): void => writeWord(stream, address, point.count);
    // The handles of default streams refer to those of the current context.
    if (stream > CU_STREAM_PER_THREAD) write();
    else context.run(write);
    counter.count = point.count;
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
      return [this.#fromHostBehind(context, stream)];
    using event = new InternalEvent(context);
    context.run(() => record(event));
    event.makeStreamWait(joinStream);
    if (context.workCounters.isCounted(stream)) context.workCounters.addEventWait(joinStream);
    return this.#signalInHandle(context, joinStream);
  }
}

/** A counter that one stream advances. Only the work of a single stream completes in order. */
interface StreamCounter {
  readonly index: number;
  /**
   * The context of the stream. Its reset ends the stream's work. Undefined for the CPU's counter.
   */
  readonly context: Context | undefined;
  /** The last count that is stored, or will be. */
  count: number;
  /**
   * Whether the stream no longer exists. Another stream then gets the counter once it is reached.
   */
  isStreamGone(): boolean;
}

/** The next point of a counter. Once its store is queued, the counter stands at it. */
const nextPoint = ({ index, count }: StreamCounter): TimelinePoint => ({ index, count: count + 1 });

/** The counters of a page, one for each stream that signals. */
export class StreamCounters {
  readonly #words: SharedWords;
  /** Counters of cuffi's own streams. Their handles are reused only after their work is done. */
  readonly #byHandle = new Map<Context, Map<CUstream, StreamCounter>>();
  /**
   * Counters of borrowed streams. Others may destroy those, and reuse their handles, with work
   * pending.
   */
  readonly #byBorrowedStream = new WeakMap<Stream, StreamCounter>();
  readonly #all: StreamCounter[] = [];
  readonly #resets = new ResetWatch((context) => this.#onReset(context));

  constructor(words: SharedWords) {
    this.#words = words;
  }

  /** Stops watching for context resets, as the page is unmapped. */
  end(): void {
    this.#resets.stop();
  }

  /** Whether a stream has not reached its last point yet. */
  get isPending(): boolean {
    return this.#all.some((counter) => !this.#words.isReached(counter));
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
    const { workTracker } = context;
    const counter = this.allocate(() => {
      if (workTracker.follows(handle)) return false;
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
      (counter) => this.#words.isReached(counter) && counter.isStreamGone(),
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
    for (const counter of this.#all)
      if (counter.context === context) this.#words.advanceTo(counter);
  }
}
