/** One process of a pool: it is started, takes tasks, and is started again when it ends. */

import { CUresult } from '../../../ffi/results.ts';
import type { Device } from '../../device.ts';
import { type DiagnosticMessages, diagnostics } from '../../diagnostics.ts';
import { isSticky } from '../../errors.ts';
import type { ChildPeer } from '../peer/spawn.ts';

/** Which process of a pool it is. */
export interface PoolMember {
  /** Its number in the pool, from 0 on: a process that is started again has the same. */
  readonly index: number;
  /** Its GPU. */
  readonly device: Device;
}

/** What a {@link Member} is made of. */
export interface MemberSettings {
  /** How many tasks it runs at a time. */
  readonly concurrency: number;
  /** How often in a row a process that has not served is started again. */
  readonly restartLimit: number;
  readonly backoffMs: number;
  /** How long a handler may take after its task was given up, and a process to exit after its end was asked for. */
  readonly closeTimeoutMs: number;
  start(member: PoolMember): ChildPeer;
  setup(peer: ChildPeer, member: PoolMember): unknown;
}

/** The pool of a {@link Member}. */
export interface MemberHost {
  /** Handles that it may take a task: a process serves, or a task is over. */
  onFree(): void;
  /** Handles that it is not started again. */
  onGivenUp(): void;
}

/** A task, as its process sees it. */
export interface MemberTask {
  readonly value: unknown;
  /** Gives the task up. */
  readonly signal: AbortSignal;
}

/** The longest pause before a process is started again. */
const MAX_BACKOFF_MS = 30_000;

/** A place in a pool, and the process that has it. */
export class Member {
  readonly place: PoolMember;
  readonly #settings: MemberSettings;
  readonly #host: MemberHost;
  #peer: ChildPeer | undefined;
  /** Whether the process takes tasks. */
  #isServing = false;
  /** How many tasks the process has, those that were given up included. */
  #running = 0;
  /** How many of them were given up. */
  #givenUp = 0;
  /** How many processes have ended since the last one that served. */
  #failures = 0;
  #restart: NodeJS.Timeout | undefined;
  #isClosing = false;
  /** The processes that have not exited, and their exits. */
  readonly #exits = new Map<ChildPeer, Promise<unknown>>();
  /** How many processes were started again. */
  restarts = 0;
  /** Why the last process has ended. */
  reason: unknown;
  /** Whether no process is started any more. */
  isGivenUp = false;

  /** @throws what `settings.start` throws */
  constructor(place: PoolMember, settings: MemberSettings, host: MemberHost) {
    this.place = place;
    this.#settings = settings;
    this.#host = host;
    this.#begin(settings.start(place));
  }

  /** The process id; undefined while there is no process. */
  get pid(): number | undefined {
    return this.#peer?.process.pid;
  }

  get running(): number {
    return this.#running;
  }

  /**
   * Whether it serves, and has not as many tasks as it may have. One that may be killed, as a handler goes on
   * whose task was given up, gets no others.
   */
  get isFree(): boolean {
    if (!this.#isServing || this.#givenUp > 0 || this.#peer?.connection.end) return false;
    return this.#running < this.#settings.concurrency;
  }

  /** What it waits for before it takes a task. */
  get state(): 'starting' | 'serving' | 'restarting' | 'given up' {
    if (this.isGivenUp) return 'given up';
    if (this.#restart) return 'restarting';
    return this.#isServing ? 'serving' : 'starting';
  }

  get #diagnostic(): DiagnosticMessages['cuffi:pool:worker:start'] {
    const { index, device } = this.place;
    return { index, pid: this.pid, device: device.uuid };
  }

  // ---- Tasks ----

  /**
   * Runs a task. A handler whose task was given up keeps its place until it has ended, or its process.
   *
   * @throws what the handler throws; PeerGoneError, ClosedError if the process ends; the signal's reason;
   * what `peer.request` throws
   */
  async run({ value, signal }: MemberTask): Promise<unknown> {
    const peer = this.#peer as ChildPeer;
    this.#running += 1;
    let isGivenUp = false;
    let timer: NodeJS.Timeout | undefined;
    const end = (): void => {
      clearTimeout(timer);
      if (this.#peer !== peer) return;
      this.#running -= 1;
      if (isGivenUp) this.#givenUp -= 1;
      this.#host.onFree();
    };
    try {
      return await peer.ask(
        value,
        { signal },
        {
          onGivenUp: () => {
            isGivenUp = true;
            this.#givenUp += 1;
            timer = this.#killLater(peer);
          },
          onDropped: end,
        },
      );
    } catch (error) {
      if (isContextLost(error)) this.#discard(peer);
      throw error;
    } finally {
      if (!isGivenUp) end();
    }
  }

  // ---- Processes ----

  #startAgain(): void {
    this.#restart = undefined;
    this.restarts += 1;
    try {
      this.#begin(this.#settings.start(this.place));
    } catch (error) {
      this.#onEnd(error);
    }
  }

  #begin(peer: ChildPeer): void {
    this.#peer = peer;
    if (diagnostics.workerStart.isOn) diagnostics.workerStart.publish(this.#diagnostic);
    const exit = peer.whenExited().then(() => this.#exits.delete(peer));
    this.#exits.set(peer, exit);
    void peer.ended.then((reason) => {
      if (this.#peer === peer) this.#onEnd(reason);
    });
    void this.#prepare(peer);
  }

  async #prepare(peer: ChildPeer): Promise<void> {
    try {
      await this.#settings.setup(peer, this.place);
    } catch (error) {
      if (this.#peer !== peer) return;
      this.#onEnd(error);
      this.#kill(peer);
      return;
    }
    await peer.connection.whenServed();
    if (this.#peer !== peer) return;
    this.#isServing = true;
    this.#failures = 0;
    if (diagnostics.workerServe.isOn) diagnostics.workerServe.publish(this.#diagnostic);
    this.#host.onFree();
  }

  /** Handles that there is no process any more, and starts the next one. */
  #onEnd(reason: unknown): void {
    const peer = this.#peer;
    if (diagnostics.workerEnd.isOn) diagnostics.workerEnd.publish({ ...this.#diagnostic, reason });
    this.#peer = undefined;
    this.#isServing = false;
    this.#running = 0;
    this.#givenUp = 0;
    if (peer) {
      peer.close();
      // It may have ended the connection alone.
      this.#killLater(peer);
    }
    if (this.#isClosing) return;
    this.reason = reason;
    this.#failures += 1;
    const { restartLimit, backoffMs } = this.#settings;
    if (this.#failures > restartLimit) {
      this.isGivenUp = true;
      // Not in the constructor of the pool.
      queueMicrotask(() => this.#host.onGivenUp());
      return;
    }
    const pause = Math.min(backoffMs * 2 ** (this.#failures - 1), MAX_BACKOFF_MS);
    this.#restart = setTimeout(() => this.#startAgain(), pause);
  }

  /** Kills a process in which nothing works any more. */
  #discard(peer: ChildPeer): void {
    if (this.#peer === peer) this.#isServing = false;
    this.#kill(peer);
  }

  /** Kills a process, whose peer then ends. */
  #kill(peer: ChildPeer): void {
    if (peer.isRunning) peer.process.kill('SIGKILL');
  }

  /** Kills a process that has not exited in time. */
  #killLater(peer: ChildPeer): NodeJS.Timeout | undefined {
    return peer.killLater(this.#settings.closeTimeoutMs)?.unref();
  }

  // ---- The end ----

  /** Closes the connection, so that the process exits, and waits until it has. One that does not exit is killed. */
  async close(): Promise<void> {
    this.#stop();
    this.#peer?.close();
    await this.#exited();
  }

  /** Kills the process, and waits until it has exited. */
  async destroy(): Promise<void> {
    this.#stop();
    for (const peer of this.#exits.keys()) this.#kill(peer);
    await this.#exited();
  }

  async #exited(): Promise<void> {
    // This process must not exit meanwhile.
    for (const { process } of this.#exits.keys()) process.ref();
    await Promise.all(this.#exits.values());
  }

  #stop(): void {
    this.#isClosing = true;
    clearTimeout(this.#restart);
    this.#restart = undefined;
  }
}

/** Whether an error of a handler says that the context of its process is lost: nothing works there any more. */
function isContextLost(error: unknown): boolean {
  const code: unknown = error instanceof Error && Reflect.get(error, 'code');
  const statuses: Readonly<Record<string, CUresult>> = CUresult;
  const status = typeof code === 'string' ? statuses[code] : undefined;
  return status !== undefined && isSticky(status);
}
