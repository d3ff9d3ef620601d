import { UNCLONEABLE } from '../../conversions.ts';
import { beginWait, type WaitOptions } from '../../deadline.ts';
import { Device } from '../../device.ts';
import { PeerGoneError } from '../../errors.ts';
import type { Details } from '../../inspect.ts';
import { Resource } from '../../lifetime.ts';
import { pollUntil } from '../../poller.ts';
import { type StreamOption, streamOption } from '../../stream.ts';
import { assertInternal, checkInteger } from '../../validate.ts';
import type { CounterFds } from './counter.ts';
import { type Handover, type SignalerInit, TimelineState } from './timeline-state.ts';
import { canUseStreams } from './words.ts';

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
export class Timeline extends Resource {
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
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

  /**
   * @internal Opens what another process has sent. It owns the file descriptors in every case.
   *
   * @throws IpcError
   */
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
   * write the counter, or the stream has no room behind a wait, the host stores the value when the work is
   * done.
   *
   * @param value an integer above the last signaled one, up to 2^53 - 1
   * @throws RangeError for any other value; CuffiError if this process does not signal;
   * PeerGoneError if the process that handed the signaler over ended before its last value was
   * reached; ClosedError, CudaError
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
    const wait = beginWait(options, `waiting for value ${value} of a timeline`, this.#state.hint);
    await pollUntil(() => {
      this.assertOpen();
      return this.#state.isReachedOrThrow(value);
    }, wait);
  }

  /**
   * Returns the right to signal, to send to another process once. The timeline that arrives there
   * signals, and this one no longer does. Values that are queued here still come first. If this
   * process ends before their work is done, the timeline has ended for all: streams that wait
   * continue, and later values reject with a {@link PeerGoneError}.
   *
   * @throws CuffiError if this process does not signal, PeerGoneError, ClosedError
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
export class TimelineSignaler extends Resource {
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  readonly #init: SignalerInit;

  /** @internal */
  constructor(init: SignalerInit) {
    assertInternal(init, Object, 'TimelineSignaler', 'timeline.signaler');
    super('TimelineSignaler', { release: init.release });
    this.#init = init;
  }

  /** @internal What another process needs. The signaler owns the file descriptors. */
  get fds(): readonly [memory: number, lifeline: number, writeEnd: number] {
    this.assertOpen();
    return this.#init.fdsToSend();
  }

  /** @internal */
  protected override describe(): Details {
    return [`after ${this.#init.last}`];
  }

  /** @internal The last value that was signaled here. */
  get last(): number {
    return this.#init.last;
  }
}
