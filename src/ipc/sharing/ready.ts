import type { PlaceOptions } from '../../context.ts';
import { checkDeadline, type DeadlineOptions, withDeadline } from '../../deadline.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { Resource } from '../../lifetime.ts';
import { pollUntil } from '../../poller.ts';
import { assertInternal, checkOptions } from '../../validate.ts';
import {
  type Exported,
  type IpcEventDescriptor,
  type IpcMemoryDescriptor,
  MEMORY_KINDS,
} from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { withReadyEvent } from './event.ts';
import { sharesPidNamespace } from './explain.ts';
import { openIpcEvent } from './import.ts';

/** Options of {@link ready}. */
export interface ReadyOptions extends DeadlineOptions, PlaceOptions {
  /** Whether memory of other users' processes may be waited for. Default false. */
  readonly allowOtherUsers?: boolean;
}

/** A look at /proc, which a wait does not take at every turn. */
const LIVENESS_PERIOD_MS = 20;

/**
 * Waits until the work is done that the exporter had queued in the `stream` with which it shared
 * the memory; the event loop turns meanwhile, and nothing is queued for it. It may be opened before.
 *
 * If the process that recorded the event ends before, or has ended, the work may never be done: then
 * this rejects, where the two see each other (one pid namespace). Elsewhere only `timeoutMs` and
 * `signal` end such a wait.
 *
 * @param message the descriptor, as it came from the other process
 * @throws IpcError for what was shared without a stream, for an exporter that has ended (code
 * `exporter-gone`) or has closed what it shared, and for what `openIpcEvent` refuses; `TimeoutError`
 * @example
 * using array = openIpcArray(message);
 * await ready(message, { timeoutMs: 1000 });
 * console.log(await array.copyToHost());
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
 */
export const ready = async (message: unknown, options?: ReadyOptions): Promise<void> =>
  waitReady(parseDescriptor(message, MEMORY_KINDS), options, () => {});

/** As {@link ready}; `check` is asked as long as it waits, and may throw. */
export async function waitReady(
  { readyEvent, pid }: IpcMemoryDescriptor,
  options: ReadyOptions | undefined,
  check: () => void,
): Promise<void> {
  const { signal, timeoutMs, ...place } = checkOptions(
    options,
    ['signal', 'timeoutMs', 'context', 'device', 'allowOtherUsers'],
    'ready',
  );
  const deadline = checkDeadline({ signal, timeoutMs }, 'ready');
  if (!readyEvent)
    throw new IpcError(
      `process ${pid} shared this memory without { stream }: there is no event to wait for`,
    );
  const event = openIpcEvent(readyEvent, { ...place, sameProcess: 'alias' });
  try {
    const isDone = donePoller(event, readyEvent);
    await withDeadline<void>(deadline, 'waiting for shared memory', (resolve, reject) => {
      const abandoned = new AbortController();
      const poll = (): boolean => {
        check();
        return isDone();
      };
      pollUntil(poll, { signal: abandoned.signal }).then(resolve, reject);
      return () => abandoned.abort();
    });
  } finally {
    event.close();
  }
}

/** Whether the event is done. It throws where whoever was to make it so has ended. */
function donePoller(event: CudaEvent, recorder: IpcEventDescriptor): () => boolean {
  const self = localProcess();
  if (isFromThisProcess(recorder, self) || !sharesPidNamespace(recorder, self))
    return () => event.done;
  const { pid, startTime } = recorder;
  let checkedAt = performance.now();
  return () => {
    if (event.done) return true;
    const now = performance.now();
    if (now - checkedAt < LIVENESS_PERIOD_MS) return false;
    checkedAt = now;
    if (self.isAlive(pid, startTime)) return false;
    // It may have ended after its work was done.
    if (event.done) return true;
    throw new IpcError(
      `process ${pid} ended before the work was done that its memory was to be ready after`,
      undefined,
      'exporter-gone',
    );
  };
}

/**
 * What `exportIpc` gives with a stream: memory, and an event that says when it may be used. The
 * other process waits for that with `ready`; `close()` takes the event away, and leaves the memory.
 */
export class ReadyExport extends Resource implements Exported {
  readonly descriptor: IpcMemoryDescriptor;
  readonly fds: readonly number[];

  /** @internal */
  constructor(descriptor: IpcMemoryDescriptor, fds: readonly number[], event: CudaEvent) {
    assertInternal(event, CudaEvent, 'ReadyExport', 'exportIpc');
    super('ReadyExport', { owner: event.context.resources, release: () => event.close() });
    this.descriptor = withReadyEvent(descriptor, event);
    this.fds = fds;
  }
}
