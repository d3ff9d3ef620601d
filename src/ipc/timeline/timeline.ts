import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd, SystemError } from '../../../ffi/linux/libc.ts';
import { pidfdOf } from '../../../ffi/linux/pidfd.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { Context } from '../../context.ts';
import { beginWait, type WaitOptions } from '../../deadline.ts';
import { Device } from '../../device.ts';
import { CudaError, CuffiError, IpcError, NotSupportedError, PeerGoneError } from '../../errors.ts';
import type { Fence } from '../../fence.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import type { Details } from '../../inspect.ts';
import { InternalEvent } from '../../internal-event.ts';
import { releaseOrWarn, ShareableResource } from '../../lifetime.ts';
import { pollInBackground, pollUntil } from '../../poller.ts';
import { type Stream, type StreamOption, streamOption } from '../../stream.ts';
import { assertInternal, checkInteger } from '../../validate.ts';
import { ResetWatch } from '../reset-watch.ts';
import { type HostPage, INVALID } from './host-page.ts';
import { type CounterFds, SharedCounter, type WriteEnd } from './shared-counter.ts';
import { canUseStreams, writeCounter } from './stream-memory-operations.ts';
import { enqueueWait, StreamWaits } from './stream-waits.ts';

/**
 * A counter that streams and hosts of several processes wait for: order between processes without
 * their hosts.
 *
 * One process signals: the one that created the timeline, or the one that {@link signaler} was sent
 * to. All others wait. It is sent with `peer.send`, to any number of processes, which may use
 * different devices. It is not tied to a device.
 *
 * If the signalling process ends or closes its timeline, waiting streams continue, and the waits of
 * the hosts reject with a {@link PeerGoneError}. The counter is a page of host memory that every
 * process with the timeline can write: send it only to processes that you trust.
 *
 * @example
 * const timeline = Timeline.create();
 * await peer.send({ frame, timeline });
 * buffer.fill(1, { stream });
 * timeline.signal(1, { stream }); // there: timeline.wait(1, { stream }), or await timeline.reached(1)
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html
 */
export class Timeline extends ShareableResource {
  readonly #state: TimelineState;

  private constructor(state: TimelineState) {
    assertInternal(state, TimelineState, 'Timeline', 'Timeline.create');
    super('Timeline', { release: () => state.close() });
    this.#state = state;
  }

  /** Creates a timeline that stands at 0. This process signals. @throws SystemError */
  static create(): Timeline {
    return new Timeline(TimelineState.create());
  }

  /**
   * Whether the streams of a device can wait for timelines. If not, `wait` throws; `signal`,
   * `reached` and `value` work, through the host.
   *
   * @param device a device or its ordinal; default device 0
   */
  static canWait(device: Device | number = 0): boolean {
    return canUseStreams(Device.resolve(device));
  }

  /** @internal Opens what another process has sent. It owns the file descriptors in every case. */
  static open(fds: CounterFds, handover?: Handover, onReleased?: () => void): Timeline {
    return new Timeline(TimelineState.open(fds, handover, onReleased));
  }

  /** @internal What another process needs. The timeline owns the file descriptors. */
  get fds(): CounterFds {
    this.assertOpen();
    return this.#state.counter.fds;
  }

  /** Whether this process signals. */
  get isSignaler(): boolean {
    return this.#state.isSignaler;
  }

  /**
   * The last value that was reached, read without a driver call. 0 at first.
   *
   * @throws PeerGoneError if the signalling process has ended, ClosedError, IpcError if a process
   * has stored what is not a value
   */
  get value(): number {
    if (this.closed) throw this.closedError();
    return this.#state.value;
  }

  /**
   * Signals a value when the work that is queued in a stream so far is done. Returns at once.
   *
   * A value in another stream than the last one is queued behind the last one. If the device cannot
   * write the counter, the host stores the value when the work is done.
   *
   * @param value an integer above the last signaled one, up to 2^53 - 1
   * @throws RangeError for any other value; CuffiError if this process does not signal, or if too
   * many streams wait; ClosedError, CudaError
   */
  signal(value: number, options?: StreamOption): void {
    this.assertOpen();
    checkInteger(value, 'value', 1);
    const stream = streamOption(options, 'timeline.signal');
    this.#state.signal(value, stream);
  }

  /**
   * Makes later work of a stream wait until a value is reached. Returns at once; no host waits. The
   * value need not be signaled yet.
   *
   * While a stream waits, some calls of the driver would block: see docs/waiting.md.
   *
   * @param value an integer from 0 to 2^53 - 1
   * @throws NotSupportedError if the device cannot wait; CuffiError if too many streams of this
   * process wait already; PeerGoneError if the value can no longer come; ClosedError, CudaError
   */
  wait(value: number, options?: StreamOption): void {
    this.assertOpen();
    checkInteger(value, 'value', 0);
    const stream = streamOption(options, 'timeline.wait');
    this.#state.wait(value, stream);
  }

  /**
   * Resolves when a value is reached. No stream and no driver is involved.
   *
   * @param value an integer from 0 to 2^53 - 1
   * @throws PeerGoneError if the signalling process ended before; ClosedError if the timeline is
   * closed meanwhile
   */
  async reached(value: number, options?: WaitOptions): Promise<void> {
    this.assertOpen();
    checkInteger(value, 'value', 0);
    const wait = beginWait(options, `waiting for value ${value} of a timeline`);
    await pollUntil(() => {
      this.assertOpen();
      return this.#state.isReachedOrThrow(value);
    }, wait);
  }

  /**
   * Returns the right to signal, to send to another process once. The timeline that arrives there
   * signals, and this one no longer does. Values that are queued here still come first; if this
   * process ends before their work is done, they count as signaled.
   *
   * @throws CuffiError if this process does not signal, ClosedError
   * @example
   * await peer.send(timeline.signaler());
   */
  signaler(): TimelineSignaler {
    this.assertOpen();
    return new TimelineSignaler(this.#state.handOver());
  }

  /** @internal */
  protected override describe(): Details {
    return [this.#state.isSignaler ? 'signals' : 'waits'];
  }
}

/**
 * The right to signal a timeline, on its way to another process: see {@link Timeline.signaler}. If it
 * is closed instead of sent, the timeline has ended for all.
 */
export class TimelineSignaler extends ShareableResource {
  readonly #handover: Handover;
  readonly #fds: CounterFds;

  /** @internal */
  constructor(init: Handover & { readonly fds: CounterFds }) {
    assertInternal(init, Object, 'TimelineSignaler', 'timeline.signaler');
    const { fds, ...handover } = init;
    super('TimelineSignaler', {
      release: () => {
        handover.writeEnd.close();
        closeFd(fds.memory);
        discardFd(fds.lifeline);
      },
    });
    this.#handover = handover;
    this.#fds = fds;
  }

  /** @internal What another process needs. The signaler owns the file descriptors. */
  get fds(): readonly [memory: number, lifeline: number, writeEnd: number] {
    this.assertOpen();
    return [this.#fds.memory, this.#fds.lifeline, this.#handover.writeEnd.fd];
  }

  /** @internal */
  protected override describe(): Details {
    return [`after ${this.#handover.last}`];
  }

  /** @internal The last value that was signaled here. */
  get last(): number {
    return this.#handover.last;
  }
}

// ---- What outlives the objects ----

/** The right to signal. */
export interface Handover {
  /** Kept open by the process that signals. */
  readonly writeEnd: WriteEnd;
  /** The last value that was signaled. Later ones are queued behind it. */
  readonly last: number;
}

/** A value that the host stores when the work before it is done. */
interface HostSignal {
  readonly event: InternalEvent;
  readonly previous: number;
  readonly value: number;
}

class TimelineState {
  readonly counter: SharedCounter;
  readonly #onReleased: (() => void) | undefined;
  #writeEnd: WriteEnd | undefined;
  #last = 0;
  /** The stream of the last value; undefined if another process signaled it. */
  #lastStream: StreamWaits | undefined;
  #hostSignals: HostSignal[] = [];
  /** Watches the process that handed over, while it may still signal what it has queued. */
  #predecessor: { readonly watch: FdWatch; readonly pidfd: number } | undefined;
  readonly #resets = new ResetWatch((context) => this.#onReset(context));
  /** The awaited values of streams here that may not be reached yet. */
  #awaited: number[] = [];
  #abandonedWaits = 0;
  #isClosed = false;

  private constructor(counter: SharedCounter, handover?: Handover, onReleased?: () => void) {
    this.counter = counter;
    this.#onReleased = onReleased;
    if (!handover) return;
    this.#writeEnd = handover.writeEnd;
    this.#last = handover.last;
    if (!counter.isReached(handover.last)) this.#watchPredecessor(counter.writerPid);
    counter.becomeWriter();
  }

  static create(): TimelineState {
    const { counter, writeEnd } = SharedCounter.create();
    return new TimelineState(counter, { writeEnd, last: 0 });
  }

  static open(fds: CounterFds, handover?: Handover, onReleased?: () => void): TimelineState {
    let counter: SharedCounter;
    try {
      counter = SharedCounter.accept(fds);
    } catch (error) {
      handover?.writeEnd.close();
      throw error;
    }
    const state = new TimelineState(counter, handover, onReleased);
    if (handover) return state;
    try {
      state.#watchSignaler();
      return state;
    } catch (error) {
      counter.close();
      throw error;
    }
  }

  get isSignaler(): boolean {
    return this.#writeEnd !== undefined;
  }

  get value(): number {
    const { value } = this.counter;
    if (value === INVALID)
      throw new IpcError('a process has stored what is not a value in the page of this timeline');
    if (this.counter.isKnownEnded) throw this.#goneError();
    return value;
  }

  isReachedOrThrow(value: number): boolean {
    if (this.counter.isReached(value)) return true;
    if (this.counter.isEnded) throw this.#goneError(value);
    return false;
  }

  get hostPage(): HostPage {
    return this.counter.page;
  }

  /** For {@link StreamWaits}: after the end nothing waits any longer. */
  isReached({ count }: { readonly count: number }): boolean {
    return this.counter.page.isUnmapped || this.counter.isEnded || this.counter.isReached(count);
  }

  signal(value: number, stream: Stream | undefined): void {
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
    const previous = this.#last;
    if (!this.#signalFromDevice(value, context, stream, waits))
      this.#signalFromHost({ event: InternalEvent.behind(context, stream), previous, value });
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
    try {
      this.#enqueueWait(value, context, stream);
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      throw new NotSupportedError(
        `the driver does not let streams wait for a timeline: await timeline.reached(${value}) instead: ${error.message}`,
        { cause: error },
      );
    }
  }

  handOver(): Handover & { readonly fds: CounterFds } {
    const writeEnd = this.#writeEnd;
    if (!writeEnd)
      throw new CuffiError(
        'this process does not signal this timeline: it has no signaler to send',
      );
    const fds = this.counter.duplicateFds();
    this.#writeEnd = undefined;
    this.#watchSignaler();
    return { writeEnd, last: this.#last, fds };
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const writeEnd = this.#writeEnd;
    const end = (): void => {
      // The others learn of the end after the last value.
      writeEnd?.close();
      this.#resets.stop();
      this.#stopWatchingPredecessor();
      this.counter.close();
      this.#onReleased?.();
    };
    if (!writeEnd || this.#isLastSignaled) {
      end();
      return;
    }
    let work: Fence | undefined;
    pollInBackground(() => {
      if (!this.#isLastSignaled) {
        // Another process may have stored another value over the last one, so the work is asked too.
        work ??= this.#lastStream?.context.workTracker.fence();
        if (this.#hostSignals.length > 0 || !(work?.isDone() ?? this.#isDisturbed)) return false;
        this.counter.advanceTo(this.#last);
      }
      work?.dispose();
      releaseOrWarn(end);
      return true;
    });
  }

  /** Whether another process has stored what only the signaler may store. */
  get #isDisturbed(): boolean {
    return this.counter.isEnded || this.counter.value === INVALID;
  }

  /** Whether nothing is left to signal. */
  get #isLastSignaled(): boolean {
    return this.counter.isReached(this.#last) || this.#lastStream?.context.isLost === true;
  }

  #enqueueWait(value: number, context: Context, stream: Stream | undefined): void {
    const wait = enqueueWait(this, { index: 0, count: value }, context, stream);
    if (wait === 'full') throw tooManyWaits();
    if (wait === 'known') return;
    if (this.#awaited.length >= MAX_LISTED_WAITS)
      this.#awaited = this.#awaited.filter((awaited) => !this.counter.isReached(awaited));
    this.#awaited.push(value);
  }

  /** Returns false if the device cannot write the counter. */
  #signalFromDevice(
    value: number,
    context: Context,
    stream: Stream | undefined,
    waits: StreamWaits,
  ): boolean {
    if (!canUseStreams(context.device)) return false;
    try {
      const address = this.counter.addressIn(context);
      if (this.#lastStream !== waits && !this.counter.isReached(this.#last))
        this.#enqueueWait(this.#last, context, stream);
      const write = (queue: Parameters<typeof writeCounter>[1]): void =>
        writeCounter(context, queue, address, value);
      if (stream) stream.enqueue(write);
      else context.enqueue(write);
      return true;
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      return false;
    }
  }

  #signalFromHost(signal: HostSignal): void {
    this.#hostSignals.push(signal);
    if (this.#hostSignals.length === 1) pollInBackground(() => this.#storeHostSignals());
  }

  #storeHostSignals(): boolean {
    for (let first = this.#hostSignals[0]; first; first = this.#hostSignals[0]) {
      const progress = first.event.progress;
      if (progress === 'pending') return false;
      if (progress === 'done') {
        if (!this.counter.isReached(first.previous) && !this.#isDisturbed) return false;
        this.counter.advanceTo(first.value);
      }
      first.event[Symbol.dispose]();
      this.#hostSignals.shift();
    }
    return true;
  }

  /** Stores the last value, which nothing will write after a reset of its context. */
  #onReset(context: Context): void {
    if (this.#lastStream?.context === context) this.counter.advanceTo(this.#last);
  }

  /**
   * Stores the last value of the process that handed over, which nothing will write once that process
   * has ended. Without a pid, as from another pid namespace, its end is not noticed.
   */
  #watchPredecessor(pid: number): void {
    if (pid === 0 || pid === process.pid) return;
    const last = this.#last;
    let pidfd: number | undefined;
    try {
      pidfd = pidfdOf(pid);
      if (pidfd === undefined) {
        this.counter.advanceTo(last);
        return;
      }
      const watch = watchFd(pidfd, { readable: true }, () => {
        this.#stopWatchingPredecessor();
        this.counter.advanceTo(last);
      });
      watch.unref();
      this.#predecessor = { watch, pidfd };
    } catch (error) {
      if (pidfd !== undefined) closeFd(pidfd);
      // /proc hides the process, or descriptors ran out.
      if (!(error instanceof SystemError)) throw error;
    }
  }

  #stopWatchingPredecessor(): void {
    const predecessor = this.#predecessor;
    this.#predecessor = undefined;
    if (!predecessor) return;
    predecessor.watch.close();
    closeFd(predecessor.pidfd);
  }

  #watchSignaler(): void {
    this.counter.watchWriter(() => {
      const unreached = this.#awaited.filter((value) => !this.counter.isReached(value));
      this.#abandonedWaits = unreached.length;
      this.#awaited = [];
    });
  }

  #goneError(value?: number): PeerGoneError {
    const { writerPid: pid, value: last } = this.counter;
    const who = pid === 0 ? 'the process that signals this timeline' : `process ${pid}`;
    return new PeerGoneError(
      `${who} has ended or closed the timeline after value ${last}` +
        (value === undefined ? '' : `: value ${value} will not be reached`),
      { pid, abandonedWaits: this.#abandonedWaits },
    );
  }
}

/** Above this number, reached values are removed from the list of awaited ones. */
const MAX_LISTED_WAITS = 64;

const tooManyWaits = (): CuffiError =>
  new CuffiError(
    'too many streams of this process wait already, or too much is queued behind waits: with one more, ' +
      'nothing else of the process would run. Use fewer streams, await timeline.reached() before ' +
      'queueing more, or raise CUDA_DEVICE_MAX_CONNECTIONS (at most 32)',
  );
