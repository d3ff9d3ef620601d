import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUdeviceptr, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError, isSticky } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { InternalEvent } from '../../internal-event.ts';
import { pollInBackground, pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { canUseStreams, type SharedWords, type TimelinePoint } from './words.ts';

// ---- By the device ----

/**
 * Makes a device store a point when the work that is queued in a stream so far is done. By default it is
 * the legacy default stream of the context.
 *
 * @param before called if the store fits; returns false if it must not be queued
 * @returns false if the CPU must store it: the device cannot, or the stream has no room behind a wait
 * @throws CudaError if the context is lost
 */
export function storeFromDevice(
  words: SharedWords,
  { index, count }: TimelinePoint,
  context: Context,
  stream: Stream | undefined,
  before?: () => boolean,
): boolean {
  if (!canUseStreams(context.device)) return false;
  try {
    const address = words.addressIn(context, index);
    if (!context.workCounters.hasRoom(stream?.queryHandle ?? CU_STREAM_LEGACY)) return false;
    if (before?.() === false) return false;
    const write = (queue: CUstream): void => writeWord(queue, address, count);
    if (stream) stream.enqueueUncounted(write);
    else context.enqueueUncounted(write);
    return true;
  } catch (error) {
    if (!(error instanceof CudaError) || error.sticky) throw error;
    return false;
  }
}

/** Queues the store of a word. @throws CudaError */
export function writeWord(stream: CUstream, address: CUdeviceptr, count: number): void {
  check(
    cu.cuStreamWriteValue64_v2(stream, address, count, 0),
    'cuStreamWriteValue64_v2',
    () => 'signaling the progress of a stream to another process',
  );
}

// ---- By the CPU ----

/** What the CPU stores when the work before it is done. */
interface HostStore {
  /** @throws CudaError if the work was lost, after which nothing is stored */
  isDone(): boolean;
  store(): void;
  /** Called once, when it is stored, or with the error of what was lost. */
  onOver(error: unknown): void;
}

/**
 * Stores words from the CPU, each word in order, when the work before each store is done. A caller that
 * blocks the event loop until a stream is done does so meanwhile: the stream may wait for another process
 * that waits for this one.
 */
export class HostStores {
  /** For each word what is left to store, in order: one stream must not hold up the words of others. */
  readonly #queues = new Map<number, HostStore[]>();
  /** Tells the background poll, while it runs, that there is more to store. */
  #pollSooner: (() => void) | undefined;
  #onDone: (() => void) | undefined;

  /** Whether something is left to store. */
  get isPending(): boolean {
    return this.#queues.size > 0;
  }

  add(index: number, store: HostStore): void {
    const queue = this.#queues.get(index);
    if (queue) queue.push(store);
    else this.#queues.set(index, [store]);
    if (this.#pollSooner) this.#pollSooner();
    else this.#pollSooner = pollInBackground(() => this.#pollOrEnd());
  }

  /** Calls `onDone` once nothing is left to store, because another process may wait for it. */
  whenDone(onDone: () => void): void {
    if (this.#pollSooner) this.#onDone = onDone;
    else onDone();
  }

  /** Stores what can be stored. */
  poll(): void {
    for (const [index, queue] of this.#queues) {
      for (let first = queue[0]; first; first = queue[0]) {
        let lost: unknown;
        try {
          if (!first.isDone()) break;
          first.store();
        } catch (error) {
          lost = error;
        }
        // Before its report, which may poll or add to the queue.
        queue.shift();
        if (queue.length === 0) this.#queues.delete(index);
        // Another process waits for each store, so the next is polled as often as the first.
        this.#pollSooner?.();
        first.onOver(lost);
      }
    }
  }

  #pollOrEnd(): boolean {
    this.poll();
    if (this.isPending) return false;
    this.#pollSooner = undefined;
    this.#onDone?.();
    return true;
  }
}

// ---- With reports ----

/** Receives reports of stores. */
export interface StoreListener {
  /** Called on the event loop when points are stored, or with the error of a context that lost them. */
  onStored(error?: unknown): void;
  /** Whether somebody sleeps until the next point is stored. */
  isAwaited(): boolean;
  /** Whether `onStored` may be late while later stores are queued, which makes many of them cheaper. */
  readonly isLazy: boolean;
}

/** A store, and the work that it follows. */
interface QueuedStore {
  readonly point: TimelinePoint;
  readonly context: Context;
  readonly stream: Stream | undefined;
  /** The handle of the stream, which may be closed before its work is done. */
  readonly handle: CUstream;
}

/**
 * Stores points when the work of streams is done, and reports that: by the device, or by the CPU if that
 * work is done already or the device cannot. The process stays alive until they are stored.
 */
export class TrackedStores {
  readonly #words: SharedWords;
  readonly #listener: StoreListener;
  readonly #fromHost = new HostStores();
  /** The streams of which a store is tracked; if later ones are not, with the latest. */
  readonly #tracked = new Map<Stream | undefined, QueuedStore | undefined>();

  constructor(words: SharedWords, listener: StoreListener) {
    this.#words = words;
    this.#listener = listener;
  }

  /**
   * Stores a point when the work that is queued in a stream so far is done. By default it is the legacy
   * default stream of the context.
   *
   * @throws CudaError if the context is lost; then nothing is stored
   */
  store(point: TimelinePoint, context: Context, stream: Stream | undefined): void {
    assertNotCapturing('signaling another process');
    if (stream?.done) {
      // Cheaper and sooner than by the device, which would also take turns with other processes.
      this.#words.write(point.index, point.count);
      this.#listener.onStored();
      return;
    }
    const isByDevice = storeFromDevice(this.#words, point, context, stream);
    if (isByDevice && this.#words.isReached(point)) {
      this.#listener.onStored();
      return;
    }
    const handle = stream?.queryHandle ?? CU_STREAM_LEGACY;
    const queued = { point, context, stream, handle };
    const { isLazy, isAwaited } = this.#listener;
    // Only the work of one stream is done in order.
    if (isByDevice && isLazy && this.#tracked.has(stream)) this.#tracked.set(stream, queued);
    else if (isByDevice && !isAwaited()) this.#poll(queued);
    else this.#track(queued, isByDevice);
  }

  /** Polls, which is cheaper than an event, and up to a millisecond late. */
  #poll(queued: QueuedStore): void {
    const words = this.#words;
    let begun = 0;
    this.#begin(queued);
    const isPolled = (): boolean => {
      if (words.isReached(queued.point)) return true;
      begun ||= performance.now();
      return performance.now() - begun > POLL_MS;
    };
    void pollUntil(isPolled).then(() => {
      if (words.isReached(queued.point)) this.#end(queued);
      else this.#trackAgain(queued);
    });
  }

  #track(queued: QueuedStore, isByDevice: boolean): void {
    const words = this.#words;
    const { point, context, stream } = queued;
    const work = stream?.closed ? workBehind(queued) : InternalEvent.behind(context, stream);
    let isOver = false;
    const end = (error?: unknown): void => {
      isOver = true;
      work[Symbol.dispose]();
      if (error === undefined) this.#end(queued);
      else this.#fail(queued, error);
    };
    const store = (): void => words.advanceTo(point);
    this.#begin(queued);
    if (isByDevice) {
      const isStored = (): boolean => words.isReached(point) || work.isDone;
      // After a reset of the context the device stores nothing any more.
      const storeAndEnd = (): void => {
        store();
        end();
      };
      pollUntil(isStored, {}, undefined, work.armWakeUp).then(storeAndEnd, end);
      return;
    }
    this.#fromHost.add(point.index, { isDone: () => work.isDone, store, onOver: end });
    const poll = (): boolean => {
      if (!isOver) this.#fromHost.poll();
      return isOver;
    };
    void pollUntil(poll, {}, undefined, work.armWakeUp);
  }

  /** A later store may be known already. */
  #begin({ stream }: QueuedStore): void {
    if (!this.#tracked.has(stream)) this.#tracked.set(stream, undefined);
  }

  #end({ stream }: QueuedStore): void {
    const latest = this.#tracked.get(stream);
    this.#tracked.delete(stream);
    this.#listener.onStored();
    if (latest && !this.#words.isReached(latest.point)) this.#trackAgain(latest);
  }

  /** Tracks a store by the device behind all that its stream has queued since. */
  #trackAgain(queued: QueuedStore): void {
    try {
      this.#track(queued, true);
    } catch (error) {
      if (!queued.context.isLost) {
        // Such as while a graph is captured.
        this.#poll(queued);
        return;
      }
      this.#fail(queued, error);
    }
  }

  #fail({ stream }: QueuedStore, error: unknown): void {
    this.#tracked.delete(stream);
    this.#listener.onStored(error);
  }
}

/** Work that is tracked: an {@link InternalEvent}, or what stands for one. */
type TrackedWork = Pick<InternalEvent, 'isDone' | typeof Symbol.dispose> &
  Partial<Pick<InternalEvent, 'armWakeUp'>>;

/** The work of a stream that is closed. */
function workBehind({ context, handle }: QueuedStore): TrackedWork {
  const { workTracker } = context;
  const fence = workTracker.fenceBehind(handle);
  return {
    get isDone() {
      if (!fence.isDone()) return false;
      // To a fence, work that was lost is done.
      const status = workTracker.poll();
      if (isSticky(status)) check(status, 'cuStreamQuery');
      return true;
    },
    [Symbol.dispose]: () => fence.dispose(),
  };
}

/** After so long, an event shows whether the context is lost. */
const POLL_MS = 100;
