import { OUT0, readHandle, readInt32, readUint32 } from '../ffi/arena.ts';
import {
  CU_STREAM_LEGACY,
  CU_STREAM_NON_BLOCKING,
  CU_STREAM_PER_THREAD,
} from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import type { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUevent, CUstream } from '../ffi/types.ts';
import { check, isReady } from './check.ts';
import { Context, type PlaceOptions } from './context.ts';
import { beginWait, type WaitOptions } from './deadline.ts';
import { initialize } from './driver.ts';
import { assertNotCapturing } from './graph-capture.ts';
import { type Details, placeName } from './inspect.ts';
import { InternalEvent } from './internal-event.ts';
import { Resource } from './lifetime.ts';
import { type ArmWakeUp, pollUntil } from './poller.ts';
import {
  assertInternal,
  checkBoolean,
  checkInteger,
  checkOptions,
  formatValue,
} from './validate.ts';
import { blockUntil, hasWaitingStreams } from './waits/waiting-streams.ts';
import { wakeBehindStream } from './waits/wake-up.ts';
import { assertNotCaptured, type FollowedStream } from './work-tracker.ts';

/** Options of {@link Stream.create}. */
export interface StreamOptions extends PlaceOptions {
  /** A lower number is a higher priority; see `context.streamPriorityRange()`. Default 0. */
  readonly priority?: number;
  /** Whether it does not synchronize with the legacy default stream. Default false, as in numba. */
  readonly nonBlocking?: boolean;
}

/** What a stream can wait for: a `CudaEvent`, whose class is above streams. */
export interface WaitableEvent extends Resource {
  readonly handle: CUevent;
  /** @internal Whether its work is not done, and may stand behind a wait for another process. */
  readonly mayStandBehindWait: boolean;
}

/** Options of calls that work in a stream. */
export interface StreamOption {
  /** The stream to work in. Default: the legacy default stream. */
  readonly stream?: Stream;
}

/**
 * A queue of work on a device, which runs in order.
 *
 * @example
 * using stream = cuda.Stream.create();
 * buffer.fill(0, { stream });
 * await stream.synchronize();
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
 */
export class Stream extends Resource implements AsyncDisposable {
  readonly context: Context;
  readonly #handle: CUstream;
  // The handles of default streams mean something only in the current context.
  readonly #isDefault: boolean;
  readonly #isOwn: boolean;
  /** The work of a stream of its own; undefined for others, which are tracked call by call. */
  readonly #followed: FollowedStream | undefined;

  private constructor(context: Context, handle: CUstream, isOwn: boolean) {
    assertInternal(context, Context, 'Stream', 'Stream.create');
    const isDefault = handle <= CU_STREAM_PER_THREAD;
    const { releases, epoch } = context;
    const { workTracker } = context;
    super('Stream', {
      owner: isDefault ? undefined : context.resources,
      release: isOwn
        ? () =>
            // Destroyed when its work is done: until then the context must know about the work.
            releases.enqueue(
              () => {
                if (context.epoch !== epoch) return;
                workTracker.forget(handle);
                context.workCounters.delete(handle);
                check(cu.cuStreamDestroy_v2(handle), 'cuStreamDestroy_v2');
              },
              { mayBlock: false },
            )
        : undefined,
    });
    this.#followed = isOwn ? workTracker.follow(handle, { isShared: false }) : undefined;
    this.context = context;
    this.#handle = handle;
    this.#isDefault = isDefault;
    this.#isOwn = isOwn;
  }

  /** Makes a stream. */
  static create(options?: StreamOptions): Stream {
    const checked = checkOptions(
      options,
      ['context', 'device', 'priority', 'nonBlocking'],
      'Stream.create',
    );
    const priority = checkInteger(checked.priority ?? 0, 'priority', -1024, 1024);
    const nonBlocking = checkBoolean(checked.nonBlocking, 'nonBlocking', false);
    const context = Context.resolve(checked);
    context.run(() =>
      check(
        cu.cuStreamCreateWithPriority(OUT0, nonBlocking ? CU_STREAM_NON_BLOCKING : 0, priority),
        'cuStreamCreateWithPriority',
        () => 'creating a stream',
      ),
    );
    return new Stream(context, readHandle<CUstream>(OUT0, cu.cuStreamDestroy_v2), true);
  }

  /** The legacy default stream: it waits for all blocking streams, and they wait for it. */
  static legacyDefault(options?: PlaceOptions): Stream {
    const place = checkOptions(options, ['context', 'device'], 'Stream.legacyDefault');
    return new Stream(Context.resolve(place), CU_STREAM_LEGACY, false);
  }

  /** The default stream of the calling thread. */
  static perThreadDefault(options?: PlaceOptions): Stream {
    const place = checkOptions(options, ['context', 'device'], 'Stream.perThreadDefault');
    return new Stream(Context.resolve(place), CU_STREAM_PER_THREAD, false);
  }

  /** Borrows a stream that another library made: closing it forgets it. */
  static fromHandle(handle: number, options?: PlaceOptions): Stream {
    // 0 is a handle of the legacy default stream, too.
    const borrowedHandle = (checkInteger(handle, 'handle') || CU_STREAM_LEGACY) as CUstream;
    const place = checkOptions(options, ['context', 'device'], 'Stream.fromHandle');
    if (borrowedHandle <= CU_STREAM_PER_THREAD || place.context || place.device !== undefined)
      return new Stream(Context.resolve(place), borrowedHandle, false);
    initialize();
    check(
      cu.cuStreamGetCtx(borrowedHandle, OUT0),
      'cuStreamGetCtx',
      () => `borrowing stream ${borrowedHandle}`,
    );
    return new Stream(Context.fromHandle(readHandle<CUcontext>(OUT0)), borrowedHandle, false);
  }

  /**
   * The driver's handle, for other libraries. They may queue work at any time. So, before it frees memory, cuffi always
   * asks a stream whose handle was read; it asks other streams only if cuffi itself has queued work there.
   *
   * @throws ClosedError
   */
  get handle(): CUstream {
    const handle = this.queryHandle;
    if (this.#followed && !this.#followed.isShared) {
      this.#followed.isShared = true;
      this.context.workTracker.noteWork(this.#followed);
    }
    return handle;
  }

  /** @internal The handle, to tell streams apart, and for calls that queue no work. @throws ClosedError */
  get queryHandle(): CUstream {
    if (this.closed) throw this.closedError();
    return this.#handle;
  }

  /** Whether all work queued so far is done. */
  get done(): boolean {
    const handle = this.queryHandle;
    assertNotCapturing('querying a stream');
    const status = this.#isDefault ? this.#queryDefault() : cu.cuStreamQuery(handle);
    return isReady(status, 'cuStreamQuery');
  }

  // A method of its own: a closure in `done` would cost an allocation at every call.
  #queryDefault(): CUresult {
    return this.context.run(() => cu.cuStreamQuery(this.#handle));
  }

  /** The priority that the driver assigned. */
  get priority(): number {
    const handle = this.queryHandle;
    this.#query(() => check(cu.cuStreamGetPriority(handle, OUT0), 'cuStreamGetPriority'));
    return readInt32(OUT0);
  }

  /** Whether it does not synchronize with the legacy default stream. */
  get nonBlocking(): boolean {
    const handle = this.queryHandle;
    this.#query(() => {
      assertNotCaptured(handle, 'reading whether a stream is non-blocking');
      check(cu.cuStreamGetFlags(handle, OUT0), 'cuStreamGetFlags');
    });
    return (readUint32(OUT0) & CU_STREAM_NON_BLOCKING) !== 0;
  }

  /** Makes later work wait for the work that `event` was recorded behind, without blocking the process. */
  wait(event: WaitableEvent): void {
    const handle = this.queryHandle;
    if (!Resource.is(event, 'CudaEvent'))
      throw new TypeError(`event must be a CudaEvent, not ${formatValue(event)}`);
    const awaited = event.handle;
    this.#noteWork();
    this.#query(() => check(cu.cuStreamWaitEvent(handle, awaited, 0), 'cuStreamWaitEvent'));
    if (event.mayStandBehindWait) this.context.workCounters.addEventWait(handle);
  }

  /** Waits, without blocking the event loop, until all work is done, including work queued meanwhile. */
  async synchronize(options?: WaitOptions): Promise<void> {
    assertNotCapturing('waiting for a stream');
    const wait = beginWait(options, 'waiting for a stream');
    // An event in the legacy default stream would order other streams, and the owner of a borrowed one
    // may destroy it at any time: those are polled.
    const armWakeUp: ArmWakeUp | undefined = this.#isOwn
      ? (onWake) => (this.closed ? undefined : wakeBehindStream(this, this.#handle, onWake))
      : undefined;
    await pollUntil(() => this.done, wait, undefined, armWakeUp);
  }

  /**
   * Blocks the process until all work queued so far is done. While streams wait for other processes it
   * still watches those, so that it returns if one of them ends.
   *
   * @throws CudaError if the work failed
   */
  synchronizeSync(): void {
    const handle = this.queryHandle;
    assertNotCapturing('waiting for a stream');
    if (hasWaitingStreams(this.context)) blockUntil(() => this.done);
    else this.#query(() => check(cu.cuStreamSynchronize(handle), 'cuStreamSynchronize'));
  }

  /**
   * Calls `callback` once, on the event loop, when the work queued so far is done. The argument is
   * undefined, or the error with which the work failed. Work queued later does not count, and closing
   * the stream does not cancel the call. The process stays alive meanwhile. An exception in `callback`
   * is an uncaught exception.
   *
   * @returns a function that cancels the call
   * @throws CudaError if no event can be recorded; CuffiError while a graph is captured
   * @example
   * buffer.fill(1, { stream });
   * const cancel = stream.onDone((error) => console.log(error ?? 'filled'));
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
   */
  onDone(callback: (error: Error | undefined) => void): () => void {
    if (typeof callback !== 'function')
      throw new TypeError(`callback must be a function, not ${formatValue(callback)}`);
    this.assertOpen();
    const event = InternalEvent.behind(this.context, this);
    const canceled = new AbortController();
    const end = (error?: Error): void => {
      event[Symbol.dispose]();
      if (canceled.signal.aborted) return;
      // Not in the promise's job: there an exception would be an unhandled rejection.
      queueMicrotask(() => {
        if (!canceled.signal.aborted) callback(error);
      });
    };
    const wait = { signal: canceled.signal };
    pollUntil(() => event.isDone, wait, undefined, event.armWakeUp).then(() => end(), end);
    return () => canceled.abort();
  }

  /**
   * Closes the stream once its work is done, for `await using`.
   *
   * @throws CudaError if the work failed; then it is closed too
   * @example
   * {
   *   await using stream = cuda.Stream.create();
   *   buffer.fill(1, { stream });
   * } // done and closed here
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.closed) return;
    try {
      await this.synchronize();
    } finally {
      this[Symbol.dispose]();
    }
  }

  /**
   * Returns a scope that waits for the stream at its end, as numba's `stream.auto_synchronize()`.
   *
   * @example
   * {
   *   await using _ = stream.autoSynchronize();
   *   buffer.fill(1, { stream });
   * } // done here
   */
  autoSynchronize(): AsyncDisposable & { readonly stream: Stream } {
    this.assertOpen();
    return { stream: this, [Symbol.asyncDispose]: () => this.synchronize() };
  }

  /** @internal */
  protected override describe(): Details {
    return [
      this.#isDefault ? defaultStreamName(this.#handle) : !this.#isOwn && 'borrowed',
      placeName(this.context),
    ];
  }

  /** @internal `event.record(stream)`: the hot path, so without a closure. */
  recordEvent(event: CUevent): void {
    if (this.#isOwn) {
      this.#noteWork();
      check(cu.cuEventRecord(event, this.queryHandle), 'cuEventRecord');
    } else this.#recordInBorrowed(event);
  }

  #recordInBorrowed(event: CUevent): void {
    this.enqueueUncounted((handle) => check(cu.cuEventRecord(event, handle), 'cuEventRecord'));
  }

  /** @internal Whether cuffi made it, and it is open: calls with its handle need no current context. */
  get isOwn(): boolean {
    return this.#isOwn && !this.closed;
  }

  /**
   * @internal The handle for a call that queues work, if that needs neither a current context nor an event behind
   * it; undefined for closed streams, and for default and borrowed ones: use {@link enqueue} for those.
   */
  get untrackedHandle(): CUstream | undefined {
    if (!this.isOwn) return undefined;
    this.#noteWork();
    return this.#handle;
  }

  /** @internal As {@link untrackedHandle}; also undefined while the work of this stream is counted. */
  get launchHandle(): CUstream | undefined {
    const { workCounters } = this.context;
    return workCounters.isActive && workCounters.isCounted(this.#handle)
      ? undefined
      : this.untrackedHandle;
  }

  /**
   * @internal Makes a call that queues one piece of work in this stream, with its context current if needed.
   *
   * @throws CuffiError if so much is queued behind a wait that the driver would block
   */
  enqueue(call: (handle: CUstream) => void): void {
    const { workCounters } = this.context;
    if (workCounters.isActive) workCounters.count(this.queryHandle);
    this.enqueueUncounted(call);
  }

  /** @internal As {@link enqueue}, for calls that must not be refused, or that have limits of their own. */
  enqueueUncounted(call: (handle: CUstream) => void): void {
    const handle = this.queryHandle;
    this.#queue(() => call(handle));
  }

  #noteWork(): void {
    if (this.#followed && !this.#followed.mayHaveWork)
      this.context.workTracker.noteWork(this.#followed);
  }

  /** Makes a call with this stream that queues no work. */
  #query(call: () => void): void {
    if (this.#isDefault) this.context.run(call);
    else call();
  }

  #queue(call: () => void): void {
    const { context } = this;
    const { workTracker } = context;
    if (this.#isDefault) assertNotCapturing('work in a default stream');
    if (this.#isOwn) {
      // Again behind the call, which may have asked whether the stream has work before it queued any.
      this.#noteWork();
      try {
        call();
      } finally {
        this.#noteWork();
      }
    } else if (this.#handle === CU_STREAM_PER_THREAD) {
      workTracker.follow(this.#handle, { isShared: true });
      context.run(call);
    } else context.run(() => workTracker.track(this.#handle, call));
  }
}

const defaultStreamName = (handle: CUstream): string =>
  handle === CU_STREAM_PER_THREAD ? 'per-thread default' : 'legacy default';

/** Returns the stream of a call's options, if there is one. @throws TypeError for anything but a stream */
export function streamOf(stream: unknown): Stream | undefined {
  if (stream !== undefined && !Resource.is(stream, 'Stream'))
    throw new TypeError(`stream must be a Stream, not ${formatValue(stream)}`);
  return stream as Stream | undefined;
}

/**
 * Returns the stream of options that have no other property. Counting the properties takes a third of
 * the time of checking their names, which matters in calls that only queue.
 *
 * @throws TypeError as checkOptions
 */
export function streamOption(options: StreamOption | undefined, call: string): Stream | undefined {
  if (options === undefined) return undefined;
  let count = 0;
  for (const _ in options) count += 1;
  const isPlain =
    count === 1 && Object.getPrototypeOf(options) === Object.prototype && 'stream' in options;
  return streamOf(isPlain ? options.stream : checkOptions(options, ['stream'], call).stream);
}
