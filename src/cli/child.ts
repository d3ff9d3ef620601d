/** The child process of a round trip, with one deadline for all requests. */
import { once } from 'node:events';
import type { Writable } from 'node:stream';
import { ClosedError, CuffiError, PeerGoneError } from '../errors.ts';
import { type ChildPeer, spawnPeer } from '../ipc/peer/spawn.ts';
import { Reply, type Request } from './messages.ts';

/** Options of a child process. */
export interface ChildOptions {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly deadlineMs: number;
}

/** What an error says of a child that reported one. */
export const failedInChild = (message: string): string => `in the child: ${message}`;

/** What an error says of a child that was ended at its deadline. */
export const noReplyWithin = (deadlineMs: number, pid?: number): string =>
  `the child ${pid === undefined ? '' : `(pid ${pid}) `}did not reply within ${deadlineMs / 1000} s`;

/** The child's descriptor of {@link RoundtripChild.pipe}. */
export const COPY_FD = 3;

/** The child of a round trip, from the parent's side. */
export class RoundtripChild {
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
