/** The child of a hand-over, from the parent's side. */
import { type ChildProcess, fork } from 'node:child_process';
import type { Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import type { DriverChoice } from '../driver.ts';
import type { Reply, Request } from './messages.ts';

const PROGRAM = fileURLToPath(new URL('./hand-over-child.ts', import.meta.url));
const DEADLINE_MS = 60_000;

/** A process that opens or receives what it is handed, and acknowledges. */
export class HandOverChild {
  readonly #process: ChildProcess;
  readonly #exited: Promise<void>;
  #waiting: { resolve(bytes: readonly number[]): void; reject(error: Error): void } | undefined;
  #failure: Error | undefined;

  private constructor(driver: DriverChoice, byteLength: number) {
    this.#process = fork(PROGRAM, [String(byteLength)], {
      env: { ...process.env, CUFFI_DRIVER: driver.name },
      // The fifth is a pair of Unix sockets: the way of the copied bytes.
      stdio: ['ignore', 'inherit', 'inherit', 'ipc', 'pipe'],
    });
    this.#process.on('message', (message) => this.#receive(message as Reply));
    this.#process.on('error', (error) => this.#fail(error));
    // A child that died is told of by its exit.
    this.#socket.on('error', () => {});
    this.#exited = new Promise((resolve) => {
      this.#process.once('exit', (code, signal) => {
        this.#fail(new Error(`the child ended by ${signal ?? `code ${code}`} before it answered`));
        resolve();
      });
    });
  }

  /** Resolves when the child has opened the driver and its memory. */
  static async start(driver: DriverChoice, byteLength: number): Promise<HandOverChild> {
    const child = new HandOverChild(driver, byteLength);
    try {
      await child.#answer();
    } catch (error) {
      await child.end();
      throw error;
    }
    return child;
  }

  /** Sends a descriptor; answers with the first bytes that the child read through it. */
  share(descriptor: unknown): Promise<readonly number[]> {
    this.#process.send({ type: 'open', descriptor } satisfies Request);
    return this.#answer();
  }

  /** Sends the bytes themselves; answers with the first ones on the child's device. */
  receive(bytes: Uint8Array): Promise<readonly number[]> {
    this.#socket.write(bytes);
    return this.#answer();
  }

  /** Kills the child; resolves when it is gone. */
  async end(): Promise<void> {
    this.#process.kill('SIGKILL');
    this.#socket.destroy();
    await this.#exited;
  }

  get #socket(): Writable {
    return this.#process.stdio[4] as Writable;
  }

  async #answer(): Promise<readonly number[]> {
    const deadline = setTimeout(
      () => this.#fail(new Error(`the child did not answer within ${DEADLINE_MS / 1000} s`)),
      DEADLINE_MS,
    );
    try {
      return await new Promise((resolve, reject) => {
        if (this.#failure) reject(this.#failure);
        else this.#waiting = { resolve, reject };
      });
    } finally {
      clearTimeout(deadline);
    }
  }

  #receive(reply: Reply): void {
    if (reply.type === 'failed') this.#fail(new Error(`in the child: ${reply.message}`));
    else this.#waiting?.resolve(reply.first);
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#waiting?.reject(this.#failure);
  }
}
