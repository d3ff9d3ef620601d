import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd, SystemError } from '../../../ffi/linux/libc.ts';
import { Context } from '../../context.ts';
import {
  CudaError,
  CuffiError,
  IpcError,
  isSticky,
  NotSupportedError,
  PeerGoneError,
} from '../../errors.ts';
import type { Fence } from '../../fence.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { InternalEvent } from '../../internal-event.ts';
import { ReferenceCount, releaseOrWarn } from '../../lifetime.ts';
import { pollInBackground } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { INVALID } from '../../waits/read-word.ts';
import { TimelineWord } from '../protocol.ts';
import { ResetWatch } from '../reset-watch.ts';
import { type CounterFds, TimelineCounter, type WriteEnd } from './counter.ts';
import { HostStores, storeFromDevice } from './stores.ts';
import { enqueueWaits, StreamWaits } from './waits.ts';
import { canUseStreams, type TimelinePoint } from './words.ts';

/** The right to signal. */
export interface Handover {
  /** Kept open by the process that signals. */
  readonly writeEnd: WriteEnd;
  /** The last value that was signaled. Later ones are queued behind it. */
  readonly last: number;
  /** The process that sent it; undefined if that is unknown. */
  readonly from: SendingProcess | undefined;
}

/** The process at the other end of a connection, as the kernel states it. */
export interface SendingProcess {
  readonly pid: number;
  /** Whether the end of the process can be observed. */
  readonly isExitObservable?: boolean;
  /** Calls `gone` once the process has ended. Returns a function that stops watching. @throws SystemError */
  onGone?(gone: () => void): () => void;
}

/** What a {@link TimelineSignaler} is made of. */
export interface SignalerInit extends Pick<Handover, 'last'> {
  /** What another process needs, which may signal from now on. */
  fdsToSend(): readonly [memory: number, lifeline: number, writeEnd: number];
  /** Called when this process no longer has it: it was closed, or the process that it was sent to ended it. */
  readonly release: () => void;
}

/**
 * What a timeline is for this process. It outlives the object that its user holds: until the last value is
 * stored, or never will be.
 */
export class TimelineState {
  readonly counter: TimelineCounter;
  readonly #onReleased: (() => void) | undefined;
  /**
   * The page is used by the open object and by every duty: to store a value, or to watch a process
   * until its last value is reached.
   */
  readonly #uses = new ReferenceCount();
  #writeEnd: WriteEnd | undefined;
  #last = 0;
  /** The stream of the last value; undefined if another process signaled it. */
  #lastStream: StreamWaits | undefined;
  readonly #fromHost = new HostStores();
  readonly #resets = new ResetWatch((context) => this.#onReset(context));
  /** The awaited values of streams here that may not be reached yet. */
  #awaited: number[] = [];
  /** The contexts of those streams, and whether the legacy default stream is one of them. */
  readonly #waitingContexts = new Map<Context, boolean>();
  #abandonedWaits = 0;
  /** The value that another process had promised and did not reach, and its pid, or 0. */
  #lost: { readonly pid: number; readonly value: number } | undefined;
  #isClosed = false;

  private constructor(counter: TimelineCounter, onReleased?: () => void) {
    this.counter = counter;
    this.#onReleased = onReleased;
    this.#uses.add();
  }

  static create(): TimelineState {
    const { counter, writeEnd } = TimelineCounter.create();
    const state = new TimelineState(counter);
    state.#writeEnd = writeEnd;
    counter.becomeWriter();
    return state;
  }

  static open(fds: CounterFds, handover?: Handover, onReleased?: () => void): TimelineState {
    let counter: TimelineCounter | undefined;
    try {
      counter = TimelineCounter.accept(fds);
      const state = new TimelineState(counter, onReleased);
      if (handover) state.#takeOver(handover);
      else state.#watchSignaler();
      return state;
    } catch (error) {
      handover?.writeEnd.close();
      counter?.close();
      throw error;
    }
  }

  get isSignaler(): boolean {
    return this.#writeEnd !== undefined;
  }

  /** How far it is and who signals, for a time-out. */
  readonly hint = (): string => {
    const { writerPid } = this.counter;
    const signaler =
      writerPid === 0 ? 'a process of another pid namespace' : `process ${writerPid}`;
    const last = this.#last > this.counter.value ? `, and has queued ${this.#last}` : '';
    const who = this.isSignaler ? `this process signals it${last}` : `${signaler} signals it`;
    return `it stands at ${this.counter.value}; ${who}`;
  };

  get value(): number {
    const { value } = this.counter;
    if (value === INVALID)
      throw new IpcError('another process wrote an invalid value to this timeline');
    if (this.counter.isKnownEnded) throw this.#goneError();
    return value;
  }

  isReachedOrThrow(value: number): boolean {
    if (this.counter.isReached(value)) return true;
    if (this.counter.isEnded) throw this.#goneError(value);
    return false;
  }

  signal(value: number, stream: Stream | undefined): void {
    if (this.#isLost) throw this.#goneError(value);
    if (!this.#writeEnd)
      throw new CuffiError(
        'this process does not signal this timeline: only the process that created it does, or the ' +
          'one that timeline.signaler() was sent to',
      );
    if (value <= this.#last)
      throw new RangeError(
        `value must be above ${this.#last}, the last value that was signaled, not ${value}`,
      );
    assertNotCapturing('signaling a timeline');
    const context = stream?.context ?? Context.primary();
    const waits = StreamWaits.of(context, stream);
    if (!this.#signalFromDevice(value, context, stream, waits))
      this.#signalFromHost(value, InternalEvent.behind(context, stream));
    this.#resets.add(context);
    this.#last = value;
    this.#lastStream = waits;
  }

  wait(value: number, stream: Stream | undefined): void {
    if (this.isReachedOrThrow(value)) return;
    assertNotCapturing('waiting for a timeline');
    const context = stream?.context ?? Context.primary();
    if (!canUseStreams(context.device))
      throw new NotSupportedError(
        `the streams of ${context.device} cannot wait for a timeline: await timeline.reached(${value}) instead`,
      );
    let isQueued: boolean;
    try {
      isQueued = this.#enqueueWait(value, context, stream);
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      throw new NotSupportedError(
        `the driver does not let streams wait for a timeline: await timeline.reached(${value}) instead: ${error.message}`,
        { cause: error },
      );
    }
    if (!isQueued) throw tooManyWaits();
  }

  handOver(): SignalerInit {
    const writeEnd = this.#writeEnd;
    if (this.#isLost) throw this.#goneError();
    if (!writeEnd)
      throw new CuffiError(
        'this process does not signal this timeline: it has no signaler to send',
      );
    const fds = this.counter.duplicateFds();
    const closeFds = (): void => {
      closeFd(fds.memory);
      discardFd(fds.lifeline);
    };
    try {
      this.#watchSignaler();
    } catch (error) {
      closeFds();
      throw error;
    }
    this.#writeEnd = undefined;
    this.#keepPromise();
    this.#uses.add();
    let mayBeSent = false;
    const fdsToSend = () => {
      mayBeSent = true;
      return [fds.memory, fds.lifeline, writeEnd.fd] as const;
    };
    const release = (): void => {
      closeFds();
      if (!mayBeSent) {
        this.#end(writeEnd, () => this.#release());
        return;
      }
      // The process that has it ends the timeline, or its end of the pipe does.
      this.#whenSignaled(() => {
        writeEnd.close();
        this.#release();
      });
    };
    return { last: this.#last, fdsToSend, release };
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const release = (): void => {
      this.#onReleased?.();
      this.#release();
    };
    if (this.#writeEnd) this.#end(this.#writeEnd, release);
    else release();
  }

  // ---- The end, and what must come before it ----

  #release(): void {
    if (!this.#uses.remove()) return;
    this.#resets.stop();
    this.counter.close();
  }

  /** Ends the timeline for all, after the last value. */
  #end(writeEnd: WriteEnd, then: () => void): void {
    this.#whenSignaled(() => {
      // A process whose host is blocked cannot end the waits of its streams itself.
      this.counter.markEnded();
      writeEnd.close();
      then();
    });
  }

  /** Calls `then` once the last value is stored, or never will be. */
  #whenSignaled(then: () => void): void {
    if (this.#isLastSignaled) {
      then();
      return;
    }
    let work: Fence | undefined;
    pollInBackground(() => {
      if (!this.#isLastSignaled) {
        // Another process may have stored another value over the last one, so the work is asked too.
        work ??= this.#lastStream?.context.workTracker.fence();
        if (this.#fromHost.isPending || !(work?.isDone() ?? this.#isDisturbed)) return false;
        // A lost context counts as done, too: it has not done what it was to signal.
        if (!this.#isWorkLost) this.counter.advanceTo(this.#last);
      }
      work?.dispose();
      releaseOrWarn(then);
      return true;
    });
  }

  /** Stores the values that are queued here after the signaler was handed over, or that they never come. */
  #keepPromise(): void {
    if (!this.#lastStream || this.counter.isReached(this.#last)) return;
    this.#uses.add();
    this.#whenSignaled(() => {
      // As after an error of the context.
      if (!this.counter.isReached(this.#last)) this.counter.abandon();
      this.#release();
    });
  }

  /** Whether another process has stored what only the signaler may store, or the timeline has ended. */
  get #isDisturbed(): boolean {
    return this.counter.isEnded || this.counter.value === INVALID;
  }

  get #isWorkLost(): boolean {
    const context = this.#lastStream?.context;
    return context !== undefined && (context.isLost || isSticky(context.workTracker.poll()));
  }

  /** Whether nothing is left to signal. */
  get #isLastSignaled(): boolean {
    return this.counter.isReached(this.#last) || this.#lastStream?.context.isLost === true;
  }

  // ---- Values that another process has promised ----

  /** @throws IpcError if the end of the process that handed over cannot be observed */
  #takeOver({ writeEnd, last, from }: Handover): void {
    if (!this.counter.isReached(last)) this.#watchPredecessor(last, from);
    this.#writeEnd = writeEnd;
    this.#last = last;
    this.counter.becomeWriter();
  }

  /**
   * Watches the process that handed over until its last value is reached, also after the close of the
   * timeline here: the next process that the signaler goes to watches only this one. Only the kernel
   * says who that process is: every process can write the page.
   *
   * @throws IpcError
   */
  #watchPredecessor(last: number, from: SendingProcess | undefined): void {
    let isDone = false;
    let stopWatching: (() => void) | undefined;
    const isSettled = (gone?: SendingProcess): boolean => {
      if (isDone) return true;
      const isReached = this.counter.isReached(last);
      // That process may have found that another one before it has ended, and have stored that.
      if (!isReached && !gone && !this.counter.isEnded) return false;
      isDone = true;
      stopWatching?.();
      if (!isReached) this.#onLost({ pid: gone?.pid ?? 0, value: last });
      this.#release();
      return true;
    };
    this.#uses.add();
    stopWatching = observe(from, () => isSettled(from), last);
    if (!isSettled()) pollInBackground(isSettled);
  }

  /** Whether a value that was promised never comes, as this process or another one has found. */
  get #isLost(): boolean {
    return this.#lost !== undefined || this.counter.isAbandoned;
  }

  /** Ends the timeline, as a value that was promised never comes. */
  #onLost(lost: { readonly pid: number; readonly value: number }): void {
    this.#lost = lost;
    this.#abandonWaits();
    this.counter.abandon();
    const writeEnd = this.#writeEnd;
    if (!writeEnd || this.#isClosed) return;
    this.#writeEnd = undefined;
    this.#uses.add();
    this.#end(writeEnd, () => this.#release());
  }

  #watchSignaler(): void {
    this.counter.watchWriter(() => this.#abandonWaits());
  }

  /** Counts the waits that are abandoned, and frees their streams. */
  #abandonWaits(): void {
    this.#abandonedWaits += this.#awaited.filter((value) => !this.counter.isReached(value)).length;
    this.#awaited = [];
    const waiting = [...this.#waitingContexts].map(([context, inLegacyStream]) =>
      workOf(context, inLegacyStream),
    );
    this.#waitingContexts.clear();
    if (waiting.length === 0) return;
    this.#uses.add();
    // Another process, or a device of the ended one, may still store something else.
    pollInBackground(() => {
      this.counter.markEnded();
      if (!waiting.every((isDone) => isDone())) return false;
      this.#release();
      return true;
    });
  }

  /** Returns false if there is no room for one more wait. */
  #enqueueWait(value: number, context: Context, stream: Stream | undefined): boolean {
    const wait = enqueueWaits(this.counter.words, [pointOf(value)], context, stream);
    if (wait !== 'queued') return wait === 'known';
    if (this.#awaited.length >= MAX_LISTED_WAITS)
      this.#awaited = this.#awaited.filter((awaited) => !this.counter.isReached(awaited));
    this.#awaited.push(value);
    const isLegacy = stream === undefined || stream.queryHandle === CU_STREAM_LEGACY;
    const within = stream?.context ?? context;
    this.#waitingContexts.set(within, isLegacy || this.#waitingContexts.get(within) === true);
    return true;
  }

  /** Returns false if the device cannot write the counter, or has no room for that behind a wait. */
  #signalFromDevice(
    value: number,
    context: Context,
    stream: Stream | undefined,
    waits: StreamWaits,
  ): boolean {
    // The stream of the last value comes to it first.
    const isNext = this.#lastStream === waits || this.counter.isReached(this.#last);
    const waitForLast = isNext ? undefined : () => this.#enqueueWait(this.#last, context, stream);
    return storeFromDevice(this.counter.words, pointOf(value), context, stream, waitForLast);
  }

  /** Stores a value behind the last one when the work that an event is recorded behind is done. */
  #signalFromHost(value: number, event: InternalEvent): void {
    const previous = this.#last;
    this.#fromHost.add(TimelineWord.value, {
      isDone: () => event.isDone && this.#mayFollow(previous),
      store: () => this.counter.advanceTo(value),
      onOver: () => event[Symbol.dispose](),
    });
  }

  #mayFollow(previous: number): boolean {
    return this.counter.isReached(previous) || this.#isDisturbed;
  }

  /** Stores the last value, which nothing will write after a reset of its context. */
  #onReset(context: Context): void {
    if (this.#lastStream?.context === context) this.counter.advanceTo(this.#last);
  }

  #goneError(value?: number): PeerGoneError {
    // The end may have been read before the watch reports it.
    this.#abandonWaits();
    const pid = this.#lost?.pid ?? this.counter.writerPid;
    const unreached = value === undefined ? '' : `: value ${value} will not be reached`;
    return new PeerGoneError(`${this.#howItEnded(pid)}${unreached}`, {
      pid,
      abandonedWaits: this.#abandonedWaits,
    });
  }

  #howItEnded(pid: number): string {
    const after = `after value ${this.counter.value}`;
    if (this.#isLost) {
      const isNamed = this.#lost !== undefined && pid !== 0;
      return (
        `${isNamed ? `process ${pid}` : 'a process'} that had handed over the signaler of this timeline ` +
        `has ended ${after}, before the values that it had signaled were reached`
      );
    }
    const who = pid === 0 ? 'the process that signals this timeline' : `process ${pid}`;
    return `${who} has ended or closed the timeline ${after}`;
  }
}

const pointOf = (value: number): TimelinePoint => ({ index: TimelineWord.value, count: value });

/**
 * Calls `gone` once a process has ended.
 *
 * @param last the value that it has promised
 * @throws IpcError if that cannot be observed
 */
function observe(from: SendingProcess | undefined, gone: () => void, last: number): () => void {
  const why =
    `received the signaler of a timeline before value ${last} was reached, from a process whose end ` +
    `cannot be observed here: await timeline.reached(${last}) there before you send it`;
  if (!from?.isExitObservable || !from.onGone) throw new IpcError(why, undefined, 'not-supported');
  try {
    return from.onGone(gone);
  } catch (error) {
    if (!(error instanceof SystemError)) throw error;
    throw new IpcError(why, error, 'not-supported');
  }
}

/** Returns whether the work that a context has now is done. */
function workOf(context: Context, inLegacyStream: boolean): () => boolean {
  const fence = context.workTracker.fence();
  let event: InternalEvent | undefined;
  try {
    // No fence has an event in the legacy default stream.
    if (inLegacyStream) event = InternalEvent.behind(context, undefined);
  } catch {
    // Nothing runs in a lost context.
  }
  return () => {
    if (!fence.isDone() || event?.progress === 'pending') return false;
    event?.[Symbol.dispose]();
    return true;
  };
}

/** Above this number, reached values are removed from the list of awaited ones. */
const MAX_LISTED_WAITS = 64;

const tooManyWaits = (): CuffiError =>
  new CuffiError(
    'too many streams of this process already wait, or too much work is queued behind waits: one more ' +
      'wait could stop all other GPU work of the process. Use fewer streams, await timeline.reached() ' +
      'before queueing more, or raise CUDA_DEVICE_MAX_CONNECTIONS (at most 32)',
  );
