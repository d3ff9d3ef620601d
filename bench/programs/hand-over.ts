/** The child of a hand-over, from the parent's side. */
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { type DeviceBuffer, type PinnedArrays, pin, type Stream } from 'cuffi';
import { closeFd, createMemfd, mapShared } from 'cuffi/ffi';
import { type ChildPeer, spawnPeer } from 'cuffi/ipc';
import type { DriverChoice } from '../driver.ts';
import { type Copy, type GivesUp, SHARED_FD, SOCKET_FD } from './hand-over-messages.ts';

const PROGRAM = new URL('./hand-over-child.ts', import.meta.url);
const START_TIMEOUT_MS = 60_000;

/** How the child is started. */
export interface ChildOptions {
  /** Default: buffers. */
  readonly givesUp?: GivesUp;
  /** How many bytes are copied, where any are. Default 0. */
  readonly byteLength?: number;
}

/** Memory of both processes, mapped twice here: pageable, and page-locked. */
class SharedMemory {
  readonly pageable: Uint8Array;
  readonly pinned: Uint8Array;
  readonly #mappings: readonly ReturnType<typeof mapShared>[];
  readonly #lock: PinnedArrays;

  constructor(fd: number, byteLength: number) {
    this.#mappings = [mapShared(fd, byteLength), mapShared(fd, byteLength)];
    [this.pageable, this.pinned] = this.#mappings.map((mapping) =>
      new Uint8Array(mapping.view()).fill(1),
    ) as [Uint8Array, Uint8Array];
    this.#lock = pin(this.pinned);
  }

  close(): void {
    this.#lock.close();
    for (const mapping of this.#mappings) mapping.unmap();
  }
}

/** A process that reads a word of what it is handed, and answers with it. */
export class HandOverChild {
  readonly #peer: ChildPeer;
  readonly #shared: SharedMemory | undefined;
  /** Who waits for what comes by another way than the connection. */
  #waiting: { resolve(answer: unknown): void; reject(error: Error): void } | undefined;

  private constructor(peer: ChildPeer, shared: SharedMemory | undefined) {
    this.#peer = peer;
    this.#shared = shared;
    // Listened to once, so that the other ways are measured at their best.
    const answered = (answer: unknown): void => this.#waiting?.resolve(answer);
    this.#socket.on('data', answered);
    peer.process.on('message', answered);
    // A child that died is told of by its exit.
    this.#socket.on('error', () => {});
    peer.process.once('exit', () =>
      this.#waiting?.reject(new Error('the child ended before it answered')),
    );
  }

  /** Resolves when the child has opened the driver and what it needs. */
  static async start(
    driver: DriverChoice,
    { givesUp = 'buffers', byteLength = 0 }: ChildOptions = {},
  ): Promise<HandOverChild> {
    const fd = createMemfd('cuffi-bench', Math.max(byteLength, 1));
    let child: HandOverChild;
    try {
      const stdio: (number | 'inherit' | 'ipc' | 'pipe')[] = ['inherit', 'inherit', 'inherit'];
      stdio.push('ipc');
      stdio[SOCKET_FD] = 'pipe';
      stdio[SHARED_FD] = fd;
      const env = { ...process.env, CUFFI_DRIVER: driver.name };
      const args = [String(byteLength), givesUp];
      const shared = byteLength > 0 ? new SharedMemory(fd, byteLength) : undefined;
      child = new HandOverChild(spawnPeer(PROGRAM, { env, args, stdio }), shared);
    } finally {
      closeFd(fd);
    }
    try {
      await child.#peer.receive({ timeoutMs: START_TIMEOUT_MS });
    } catch (error) {
      await child.end();
      throw error;
    }
    return child;
  }

  /** Sends a buffer through the connection, behind the work of a stream. This and all others: the word that the child read. */
  async give(buffer: DeviceBuffer, stream?: Stream): Promise<unknown> {
    await this.#peer.send(buffer, stream && { stream });
    return this.#peer.receive();
  }

  /** Sends nothing through the connection. */
  async greet(): Promise<unknown> {
    await this.#peer.send(null);
    return this.#peer.receive();
  }

  /** Sends a descriptor by `process.send`. */
  tell(descriptor: object): Promise<unknown> {
    return this.#answer(() => this.#peer.process.send(descriptor));
  }

  /** Sends bytes through a socket of node:net, which come back. */
  echo(bytes: Uint8Array): Promise<unknown> {
    return this.#answer(() => this.#socket.write(bytes));
  }

  /** Sends the bytes themselves, through the socket. */
  async copy(bytes: Uint8Array): Promise<unknown> {
    this.#socket.write(bytes);
    return this.#peer.receive();
  }

  /** Copies a buffer to the shared memory, from where the child copies it. */
  async share(buffer: DeviceBuffer, { pinned }: Pick<Copy, 'pinned'>): Promise<unknown> {
    const memory = pinned ? this.#shared?.pinned : this.#shared?.pageable;
    if (memory) buffer.copyToHostSync(memory);
    await this.#peer.send({ type: 'copy', pinned } satisfies Copy);
    return this.#peer.receive();
  }

  /** Kills the child; resolves when it is gone. */
  async end(): Promise<void> {
    const { process: child } = this.#peer;
    const isRunning = child.pid !== undefined && child.exitCode === null && !child.killed;
    const exited = isRunning && once(child, 'exit');
    child.kill('SIGKILL');
    this.#socket.destroy();
    await exited;
    this.#peer.close();
    this.#shared?.close();
  }

  #answer(ask: () => void): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      ask();
    });
  }

  get #socket(): Duplex {
    return this.#peer.process.stdio[SOCKET_FD] as Duplex;
  }
}
