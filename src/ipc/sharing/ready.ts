import type { PlaceOptions } from '../../context.ts';
import { checkDeadline, type WaitOptions, withDeadline } from '../../deadline.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { counted, type Details } from '../../inspect.ts';
import { Resource } from '../../lifetime.ts';
import { pollUntil } from '../../poller.ts';
import { assertInternal, checkOptions } from '../../validate.ts';
import {
  type Exported,
  type IpcEventDescriptor,
  type IpcMemoryDescriptor,
  MEMORY_KINDS,
  type MemoryFields,
} from '../descriptor.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { parseDescriptor, withChecksum } from './descriptor-codec.ts';
import { withReadyEvent } from './event.ts';
import { openIpcEvent } from './import.ts';
import { sharesPidNamespace } from './open.ts';

/** Options of {@link ready}. */
export interface ReadyOptions extends WaitOptions, PlaceOptions {
  /** Whether to wait for memory of other users' processes. Default false. */
  readonly allowOtherUsers?: boolean;
}

/** How often a wait reads /proc. */
const LIVENESS_PERIOD_MS = 20;

/**
 * Waits until the work is done that the exporter had queued in the `stream` it shared the memory
 * with. The event loop is not blocked, and nothing is queued. The memory may be opened before.
 *
 * If the process that recorded the event exits first, the work may never be done. Then this
 * rejects, if both processes are in one pid namespace. Otherwise only `timeoutMs` and `signal` end
 * the wait.
 *
 * @param message the descriptor from the other process
 * @throws IpcError for memory shared without a stream, for an exporter that has exited (code
 * `exporter-gone`) or has closed the memory, and as `openIpcEvent` does; `TimeoutError`
 * @example
 * using array = openIpcArray(message);
 * await ready(message, { timeoutMs: 1000 });
 * console.log(await array.copyToHost());
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
 */
export const ready = async (message: unknown, options?: ReadyOptions): Promise<void> =>
  waitReady(parseDescriptor(message, MEMORY_KINDS), options, () => {});

/** Like {@link ready}. `check` is called at every poll, and may throw. */
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
    await withDeadline<void>(
      deadline,
      `waiting for work of process ${pid} on shared memory`,
      (resolve, reject) => {
        const abandoned = new AbortController();
        const poll = (): boolean => {
          check();
          return isDone();
        };
        pollUntil(poll, { signal: abandoned.signal }).then(resolve, reject);
        return () => abandoned.abort();
      },
    );
  } finally {
    event.close();
  }
}

/**
 * Returns a function that polls the event. It throws if the process that should record it has
 * exited.
 */
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
    // The process may have exited after its work was done.
    if (event.done) return true;
    throw new IpcError(
      `process ${pid} exited before it finished the work that its memory waits for`,
      undefined,
      'exporter-gone',
    );
  };
}

/**
 * The result of `exportIpc` with a stream: memory, and an event after which it may be used. The
 * other process waits for the event with `ready`. `close()` closes the event and keeps the memory.
 */
export class ReadyExport extends Resource implements Exported {
  readonly descriptor: IpcMemoryDescriptor;
  readonly fds: readonly number[];

  /** @internal */
  constructor(fields: MemoryFields, fds: readonly number[], event: CudaEvent) {
    assertInternal(event, CudaEvent, 'ReadyExport', 'exportIpc');
    super('ReadyExport', { owner: event.context.resources, release: () => event.close() });
    this.descriptor = withChecksum(withReadyEvent(fields, event));
    this.fds = fds;
  }

  /** @internal */
  protected override describe(): Details {
    const { kind, byteLength } = this.descriptor;
    return [kind, `${byteLength} bytes`, counted(this.fds.length, 'file descriptor')];
  }
}
