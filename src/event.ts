import { BLOCK, OUT0, readBytes, readFloat32, readHandle } from '../ffi/arena.ts';
import {
  CU_EVENT_BLOCKING_SYNC,
  CU_EVENT_DISABLE_TIMING,
  CU_EVENT_INTERPROCESS,
  CU_IPC_HANDLE_SIZE,
  CU_STREAM_LEGACY,
} from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUevent, CUstream } from '../ffi/types.ts';
import { check, cudaError, isReady } from './check.ts';
import { Context, type PlaceOptions } from './context.ts';
import { beginWait, type WaitOptions } from './deadline.ts';
import { assertNotCapturing, isCapturing } from './graph-capture.ts';
import { type Details, placeName } from './inspect.ts';
import { Resource } from './lifetime.ts';
import { pollUntil } from './poller.ts';
import { Stream } from './stream.ts';
import { assertInternal, checkBoolean, checkInstance, checkOptions } from './validate.ts';
import { blockUntil, hasWaitingStreams } from './waits/waiting-streams.ts';
import { wakeBehindEvent } from './waits/wake-up.ts';

/** Options of {@link CudaEvent.create}. */
export interface EventOptions extends PlaceOptions {
  /** Whether it records the time. Default true, except for interprocess events, which cannot. */
  readonly timing?: boolean;
  /** Whether other processes may open it (`getIpcHandle` of cuffi/ipc). Default false. */
  readonly interprocess?: boolean;
  /** Whether `synchronizeSync` sleeps instead of spinning. Default false. */
  readonly blockingSync?: boolean;
}

/**
 * A point in the work of a stream, to wait for, or to measure the time between two.
 *
 * @example
 * using start = cuda.CudaEvent.create();
 * using end = cuda.CudaEvent.create();
 * start.record(stream);
 * buffer.fill(0, { stream });
 * end.record(stream);
 * await end.synchronize();
 * console.log(cuda.CudaEvent.elapsedMs(start, end));
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
 */
export class CudaEvent extends Resource {
  readonly context: Context;
  readonly timing: boolean;
  readonly interprocess: boolean;
  /** Whether another process made it. */
  readonly imported: boolean;
  /** @internal The 64 bytes of its IPC handle; undefined unless it is an interprocess event made here. */
  readonly ipcBytes: Uint8Array | undefined;
  readonly #handle: CUevent;
  readonly #aliasOf: CudaEvent | undefined;
  /** Whether the work of the stream that it was recorded in was counted then. */
  #isCounted = false;

  /** @internal */
  constructor(
    context: Context,
    handle: CUevent,
    traits: {
      readonly timing: boolean;
      readonly interprocess: boolean;
      readonly imported: boolean;
      readonly ipcBytes?: Uint8Array | undefined;
      /** The event that this object is an alias of: closed with that event, which destroys the handle. */
      readonly aliasOf?: CudaEvent | undefined;
      /** Called when it was closed; must not refer to the event's object. */
      readonly destroyed?: (() => void) | undefined;
    },
  ) {
    assertInternal(context, Context, 'CudaEvent', 'CudaEvent.create');
    const { destroyed } = traits;
    super('CudaEvent', {
      owner: context.resources,
      release: traits.aliasOf ? destroyed : () => destroyEvent(handle, destroyed),
    });
    this.#aliasOf = traits.aliasOf;
    this.context = context;
    this.#handle = handle;
    this.timing = traits.timing;
    this.interprocess = traits.interprocess;
    this.imported = traits.imported;
    this.ipcBytes = traits.ipcBytes;
  }

  /** Makes an event. Until it is recorded, it counts as done. */
  static create(options?: EventOptions): CudaEvent {
    const checked = checkOptions(
      options,
      ['context', 'device', 'timing', 'interprocess', 'blockingSync'],
      'CudaEvent.create',
    );
    const interprocess = checkBoolean(checked.interprocess, 'interprocess', false);
    const timing = checkBoolean(checked.timing, 'timing', !interprocess);
    const blockingSync = checkBoolean(checked.blockingSync, 'blockingSync', false);
    if (interprocess && timing)
      throw new TypeError('an interprocess event cannot record the time: leave timing out');
    const context = Context.resolve(checked);
    const flags =
      (timing ? 0 : CU_EVENT_DISABLE_TIMING) |
      (interprocess ? CU_EVENT_INTERPROCESS : 0) |
      (blockingSync ? CU_EVENT_BLOCKING_SYNC : 0);
    return context.run(() => {
      createEvent(flags, interprocess);
      const handle = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
      // Exported at once, while its context is current: later no context may be current.
      const ipcBytes = interprocess ? exportEvent(handle) : undefined;
      return new CudaEvent(context, handle, { timing, interprocess, imported: false, ipcBytes });
    });
  }

  /** Returns the milliseconds between two events that were recorded with timing and are done. */
  static elapsedMs(start: CudaEvent, end: CudaEvent): number {
    for (const [name, event] of Object.entries({ start, end })) {
      checkInstance(event, CudaEvent, name);
      if (!event.timing)
        throw new TypeError(
          `${name} was created ${event.interprocess ? 'without timing: interprocess events cannot be timed' : 'with timing: false'}`,
        );
    }
    assertNotCapturing('measuring time');
    const status = cu.cuEventElapsedTime(OUT0, start.handle, end.handle);
    if (status === CUresult.CUDA_ERROR_NOT_READY)
      throw cudaError(
        status,
        'cuEventElapsedTime',
        'measuring the time before both events are done',
      );
    check(status, 'cuEventElapsedTime', () => 'measuring the time (were both events recorded?)');
    return readFloat32(OUT0);
  }

  override get closed(): boolean {
    return super.closed || (this.#aliasOf?.closed ?? false);
  }

  /** @internal */
  protected override get closedWith(): Resource | undefined {
    return this.#aliasOf;
  }

  /** The driver's handle. @throws ClosedError */
  get handle(): CUevent {
    if (this.closed) throw this.closedError();
    return this.#handle;
  }

  /** Whether the work before its last record is done; true if it was never recorded. */
  get done(): boolean {
    assertNotCapturing('querying an event');
    return isReady(cu.cuEventQuery(this.handle), 'cuEventQuery');
  }

  /** Records the work queued in `stream` so far. Default: the legacy default stream. */
  record(stream?: Stream): void {
    if (stream === undefined) this.#recordInLegacyDefault();
    else if (Resource.is(stream, 'Stream')) stream.recordEvent(this.handle);
    else checkInstance(stream, Stream, 'stream');
    const { workCounters } = stream?.context ?? this.context;
    this.#isCounted =
      workCounters.isActive && workCounters.isCounted(stream?.queryHandle ?? CU_STREAM_LEGACY);
  }

  /**
   * @internal Whether its work is not done, and may stand behind a wait for another process. What another
   * process has recorded may wait for this one.
   */
  get mayStandBehindWait(): boolean {
    if (isCapturing()) return false;
    if (!this.interprocess) {
      if (!this.#isCounted) return false;
      const { workCounters } = this.context;
      workCounters.refresh();
      if (!workCounters.isActive) return false;
    }
    return cu.cuEventQuery(this.handle) === CUresult.CUDA_ERROR_NOT_READY;
  }

  // A method of its own: a closure in `record` would cost an allocation at every call.
  #recordInLegacyDefault(): void {
    const event = this.handle;
    assertNotCapturing('work in the default stream');
    this.context.run(() => check(cu.cuEventRecord(event, 0 as CUstream), 'cuEventRecord'));
  }

  /** Waits until it is {@link done}, without blocking the event loop. */
  async synchronize(options?: WaitOptions): Promise<void> {
    assertNotCapturing('waiting for an event');
    const wait = beginWait(options, 'waiting for an event');
    await pollUntil(
      () => this.done,
      wait,
      undefined,
      (onWake) => (this.closed ? undefined : wakeBehindEvent(this, this.#handle, onWake)),
    );
  }

  /** @internal */
  protected override describe(): Details {
    return [
      this.interprocess && 'interprocess',
      this.imported && 'imported',
      !this.timing && 'without timing',
      placeName(this.context),
    ];
  }

  /**
   * Blocks the process until it is done. While streams wait for other processes it still watches those,
   * so that it returns if one of them ends.
   *
   * @throws CudaError if the work failed
   */
  synchronizeSync(): void {
    assertNotCapturing('waiting for an event');
    if (hasWaitingStreams(this.context)) blockUntil(() => this.done);
    else check(cu.cuEventSynchronize(this.handle), 'cuEventSynchronize');
  }
}

function destroyEvent(handle: CUevent, onDestroyed: (() => void) | undefined): void {
  try {
    check(cu.cuEventDestroy_v2(handle), 'cuEventDestroy_v2');
  } finally {
    onDestroyed?.();
  }
}

function createEvent(flags: number, interprocess: boolean): void {
  const status = cu.cuEventCreate(OUT0, flags);
  if (interprocess && status === CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    throw cudaError(
      status,
      'cuEventCreate',
      'creating an interprocess event (a process can have about 4096 at a time: close some)',
    );
  check(status, 'cuEventCreate', () => 'creating an event');
}

function exportEvent(handle: CUevent): Uint8Array {
  const status = cu.cuIpcGetEventHandle(BLOCK, handle);
  if (status !== 0) {
    cu.cuEventDestroy_v2(handle);
    throw cudaError(status, 'cuIpcGetEventHandle', 'exporting an event');
  }
  return readBytes(BLOCK, CU_IPC_HANDLE_SIZE);
}
