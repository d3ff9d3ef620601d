/** Sends a GPU buffer to another process and back without a copy. */
import { once } from 'node:events';
import type { Writable } from 'node:stream';
import { recordCalls } from '../../ffi/driver.ts';
import { bytesCopied } from '../../ffi/trace.ts';
import { Context } from '../context.ts';
import { Device } from '../device.ts';
import { ClosedError, CuffiError, PeerGoneError } from '../errors.ts';
import { type ChildPeer, spawnPeer } from '../ipc/peer/spawn.ts';
import { type IpcSupport, ipcSupport } from '../ipc/sharing/blockers.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { childProgram, failedInChild, noReplyWithin } from './child.ts';
import type { DriverChoice } from './driver-choice.ts';
import { type KindName, kinds } from './kinds.ts';
import { COPY_FD, countMismatches, pattern, Reply, type Request } from './roundtrip-messages.ts';

/** Options of a round trip. */
export interface RoundtripOptions {
  /** The number of 32-bit elements in the buffer. */
  readonly elements: number;
  readonly kind: KindName;
  readonly device: number;
  readonly driver: DriverChoice;
  readonly deadlineMs: number;
  /** The child's program; tests pass one that fails. */
  readonly program?: string;
}

/** The device, and what it can share. */
export interface DeviceSupport {
  readonly device: Device;
  readonly support: IpcSupport;
}

/** The result of a round trip. */
export interface RoundtripResult {
  readonly kind: KindName;
  readonly byteLength: number;
  readonly parent: { readonly pid: number; readonly wrote: number[]; readonly readBack: number[] };
  readonly child: { readonly pid: number; readonly read: number[]; readonly wrote: number[] };
  /** The time from the export until the child has read the first values, by the parent's clock. */
  readonly ipcMs: number;
  /** The same by copying: device to host, through a socket, host to device. */
  readonly copyMs: number;
  /** The bytes that both processes copied between the export and the first read. */
  readonly bytesCopied: number;
  /** By how many bytes the child's free device memory fell. */
  readonly childMemoryFell: number;
  /** Whether both numbers show that there was no copy. */
  readonly noCopy: boolean;
  /** Elements that differ from those that the other side wrote. */
  readonly mismatches: { readonly child: number; readonly parent: number };
  readonly ok: boolean;
}

const SAMPLE_LENGTH = 4;

/** Looks up a device and what it can share. */
export function inspectDevice(ordinal: number): DeviceSupport {
  const device = Device.get(ordinal);
  return { device, support: ipcSupport(device) };
}

/** Makes the round trip. @throws CuffiError if the child dies or does not reply in time */
export async function roundtrip(options: RoundtripOptions): Promise<RoundtripResult> {
  const {
    elements,
    kind,
    device,
    driver,
    deadlineMs,
    program = childProgram('roundtrip-child'),
  } = options;
  const context = Context.primary(device);
  using memory = kinds[kind].allocate(elements * 4, context);
  const { buffer } = memory;
  const written = pattern('parent', elements);
  await buffer.copyFrom(written);
  const child = new RoundtripChild({
    program,
    args: [String(device)],
    env: { ...process.env, CUFFI_DRIVER: driver.name },
    deadlineMs,
  });
  try {
    await child.ask('ready');
    const shared = await timeSharing(child, buffer);
    const checked = await child.ask('checked', { type: 'check' });
    const back = await buffer.copyToHost(new Uint32Array(elements));
    const copyMs = await timeCopying(child, buffer);
    await child.end();
    const wrongCounts = { child: checked.mismatches, parent: countMismatches('child', back) };
    return {
      kind,
      byteLength: buffer.byteLength,
      parent: {
        pid: process.pid,
        wrote: Array.from(written.subarray(0, SAMPLE_LENGTH)),
        readBack: Array.from(back.subarray(0, SAMPLE_LENGTH)),
      },
      child: { pid: child.pid, read: shared.first, wrote: checked.first },
      ipcMs: shared.ms,
      copyMs,
      bytesCopied: shared.bytesCopied,
      childMemoryFell: shared.fell,
      noCopy: shared.bytesCopied === 0 && shared.fell < buffer.byteLength,
      mismatches: wrongCounts,
      ok: wrongCounts.child === 0 && wrongCounts.parent === 0,
    };
  } catch (error) {
    await child.kill();
    throw error;
  }
}

async function timeSharing(child: RoundtripChild, buffer: DeviceBuffer) {
  using recorder = recordCalls();
  const start = performance.now();
  const opened = await child.ask('opened', { type: 'open', buffer });
  const ms = performance.now() - start;
  recorder.stop();
  return {
    ms,
    first: opened.first,
    bytesCopied: bytesCopied(recorder.calls) + opened.bytesCopied,
    fell: opened.freeBefore - opened.freeAfter,
  };
}

async function timeCopying(child: RoundtripChild, buffer: DeviceBuffer): Promise<number> {
  const start = performance.now();
  const received = child.ask('received', { type: 'receive', byteLength: buffer.byteLength });
  // Awaited below; without this, a child that dies before would cause an unhandled rejection.
  received.catch(() => {});
  child.pipe.write(await buffer.copyToHost());
  await received;
  return performance.now() - start;
}

// ---- The child ----

/** Options of a child process. */
interface ChildOptions {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly deadlineMs: number;
}

/** The child process, with one deadline for all requests. */
class RoundtripChild {
  readonly #peer: ChildPeer;
  readonly #exited: Promise<CuffiError>;

  constructor({ program, args, env, deadlineMs }: ChildOptions) {
    const stdio = ['ignore', 'inherit', 'inherit', 'pipe'] as const;
    this.#peer = spawnPeer(program, { args, env, stdio: [...stdio] });
    this.#exited = this.#watch(deadlineMs);
    // A child that dies breaks its pipe; its exit is reported instead.
    this.pipe.on('error', () => {});
  }

  get pid(): number {
    return this.#peer.pid;
  }

  /** The pipe for the bytes that the child copies to the device. */
  get pipe(): Writable {
    return this.#peer.process.stdio[COPY_FD] as Writable;
  }

  /** Sends a request, if given, and returns the child's next message, which must be of `type`. */
  async ask<T extends Reply['type']>(
    type: T,
    request?: Request,
  ): Promise<Extract<Reply, { type: T }>> {
    const parsed = Reply.safeParse(await this.#exchange(request));
    if (!parsed.success) throw new CuffiError('the child sent an invalid message');
    const received = parsed.data;
    if (received.type === 'failed') throw new CuffiError(failedInChild(received.message));
    if (received.type !== type)
      throw new CuffiError(`the child sent '${received.type}' instead of '${type}'`);
    return received as Extract<Reply, { type: T }>;
  }

  /** Closes the connection and waits for the child to exit; the deadline kills it. */
  async end(): Promise<void> {
    this.#peer.close();
    this.pipe.destroy();
    await this.#exited;
  }

  /** Kills the child and waits for its exit. */
  async kill(): Promise<void> {
    this.#peer.process.kill('SIGKILL');
    await this.end();
  }

  async #exchange(request: Request | undefined): Promise<unknown> {
    try {
      if (request) await this.#peer.send(request);
      return await this.#peer.receive();
    } catch (error) {
      if (error instanceof ClosedError || error instanceof PeerGoneError) throw await this.#exited;
      throw error;
    }
  }

  /** Resolves at the child's exit with an error for requests that are still waiting. */
  async #watch(deadlineMs: number): Promise<CuffiError> {
    const { process: child, pid } = this.#peer;
    let isTimedOut = false;
    const deadline = setTimeout(() => {
      isTimedOut = true;
      child.kill('SIGKILL');
    }, deadlineMs);
    try {
      const [code, signal] = await once(child, 'exit');
      return new CuffiError(
        isTimedOut
          ? noReplyWithin(deadlineMs, pid)
          : `the child (pid ${pid}) ${signal ? `was killed by ${signal}` : `exited with code ${code}`} before it replied`,
      );
    } catch (error) {
      return new CuffiError(`the child failed: ${(error as Error).message}`);
    } finally {
      clearTimeout(deadline);
    }
  }
}
