/** A child process that answers requests one by one, under one deadline. */
import { type ChildProcess, fork } from 'node:child_process';
import type { Writable } from 'node:stream';
import { CuffiError } from '../errors.ts';
import { Reply, type Request } from './messages.ts';

/** How the child is started. */
export interface ChildOptions {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly deadlineMs: number;
}

/** The child of a round trip, from the parent's side. */
export class Child {
  readonly #process: ChildProcess;
  readonly #deadline: NodeJS.Timeout;
  #waiting: { resolve(reply: Reply): void; reject(error: Error): void } | undefined;
  #failure: Error | undefined;
  readonly #exited: Promise<void>;

  constructor({ program, args, env, deadlineMs }: ChildOptions) {
    this.#process = fork(program, [...args], {
      env,
      stdio: ['ignore', 'inherit', 'inherit', 'ipc', 'pipe'],
    });
    this.#deadline = setTimeout(() => {
      this.#fail(`the child (pid ${this.pid}) did not answer within ${deadlineMs / 1000} s`);
      this.#process.kill('SIGKILL');
    }, deadlineMs);
    this.#exited = new Promise((resolve) => {
      this.#process.once('exit', (code, signal) => {
        clearTimeout(this.#deadline);
        this.#fail(
          `the child (pid ${this.pid}) ended ${signal ? `by ${signal}` : `with code ${code}`} before it answered`,
        );
        resolve();
      });
      this.#process.once('error', (error) => {
        this.#fail(`the child failed: ${error.message}`);
        // One that never started has no 'exit'.
        if (this.#process.pid === undefined) {
          clearTimeout(this.#deadline);
          resolve();
        }
      });
    });

    this.#process.on('message', (message) => this.#receive(message));
    // A child that dies breaks its pipe: how it ended is told by 'exit'.
    this.pipe.on('error', () => {});
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }

  /** Where bytes for the child's copy go in. */
  get pipe(): Writable {
    return this.#process.stdio[4] as Writable;
  }

  /** The child's next message, after sending it a request; it must be of the given type. */
  async ask<T extends Reply['type']>(
    type: T,
    request?: Request,
  ): Promise<Extract<Reply, { type: T }>> {
    const reply = new Promise<Reply>((resolve, reject) => {
      if (this.#failure) reject(this.#failure);
      else this.#waiting = { resolve, reject };
    });
    if (request && this.#process.connected) this.#process.send(request);
    const received = await reply;
    if (received.type === 'failed') throw new CuffiError(`in the child: ${received.message}`);
    if (received.type !== type)
      throw new CuffiError(`the child said '${received.type}' where '${type}' was expected`);
    return received as Extract<Reply, { type: T }>;
  }

  /** Lets the child end by itself; kills it if it does not. */
  async end(): Promise<void> {
    if (this.#process.connected) this.#process.send({ type: 'finish' } satisfies Request);
    this.pipe.destroy();
    await this.#exited;
  }

  /** Kills the child and waits until it is gone. */
  async kill(): Promise<void> {
    this.#process.kill('SIGKILL');
    this.pipe.destroy();
    await this.#exited;
  }

  #receive(message: unknown): void {
    const parsed = Reply.safeParse(message);
    if (parsed.success) this.#waiting?.resolve(parsed.data);
    else this.#fail('the child sent a message that is none of ours');
  }

  #fail(message: string): void {
    this.#failure ??= new CuffiError(message);
    this.#waiting?.reject(this.#failure);
  }
}
