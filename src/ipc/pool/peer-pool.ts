/** Several processes that share the tasks of this one. */

import { inspect } from 'node:util';
import { checkDeadline, MAX_TIMER_MS, type WaitOptions, withDeadline } from '../../deadline.ts';
import { devices as allDevices, Device } from '../../device.ts';
import { diagnostics } from '../../diagnostics.ts';
import { ClosedError, IpcError } from '../../errors.ts';
import { counted, describeObject } from '../../inspect.ts';
import {
  assertInternal,
  checkInteger,
  checkOptions,
  formatValue,
  messageOf,
} from '../../validate.ts';
import type { Anything, Outgoing } from '../peer/sendable.ts';
import { type ChildPeer, type SpawnPeerOptions, scriptPath, spawnPeer } from '../peer/spawn.ts';
import { type SpawnPythonOptions, spawnPython } from '../peer/spawn-python.ts';
import { Member, type PoolMember } from './member.ts';

/** What the processes of a pool run: a script for Node, or one for Python (`.py`, or a module). */
export type PoolScript = string | URL | { readonly module: string };

/** Options of {@link PeerPool.create}. */
export interface PeerPoolOptions<Receives = unknown, Sends = Anything>
  extends Omit<SpawnPeerOptions, 'signal' | 'requestTimeoutMs'>,
    Pick<SpawnPythonOptions, 'python'> {
  /** The script, or a function that returns the script of each process. */
  readonly script: PoolScript | ((member: PoolMember) => PoolScript);
  /** The GPUs, as devices or ordinals. Default: `'all'` that this process sees. */
  readonly devices?: 'all' | readonly (Device | number)[];
  /** How many processes each GPU has. Default: 1. */
  readonly perDevice?: number;
  /**
   * Whether a process sees its own GPU alone, by `CUDA_VISIBLE_DEVICES`, where it is device 0 (the default),
   * or all that this process sees. Then `setup` tells it which one is its own.
   */
  readonly visibleDevices?: 'own' | 'all';
  /** How many tasks a process has at a time. Its script must serve as many. Default: 1. */
  readonly concurrency?: number;
  /** How many tasks may wait for a process. Default: 1024. */
  readonly maxQueue?: number;
  /**
   * What happens when a process ends. Another one is started after `backoffMs` (default: 100), and after twice
   * as long each time that one ends before it served, `limit` times (default: 5). 0 starts none.
   */
  readonly restart?: { readonly limit?: number; readonly backoffMs?: number };
  /**
   * How long the handler of a task that was given up may take to end, and a process to exit when the pool is
   * closed. Then it is killed. Default: 5000.
   */
  readonly closeTimeoutMs?: number;
  /**
   * Called with each process that was started, before it gets a task: sends what all of them share, such as
   * weights or a channel, and may await that the process has it. If it throws, the process is ended.
   */
  readonly setup?: (peer: ChildPeer<Receives, Sends>, member: PoolMember) => unknown;
}

/** Options of {@link PeerPool.run}. */
export interface PoolRunOptions extends WaitOptions {
  /** The GPU, as a device or an ordinal, whose processes may run the task. Default: any. */
  readonly device?: Device | number;
}

/** What a {@link PeerPool} has done, and does. */
export interface PeerPoolStats {
  /** The processes. `pid` is undefined while no process runs. */
  readonly members: readonly (PoolMember & {
    readonly pid: number | undefined;
    readonly state: Member['state'];
    /** How many tasks it has. */
    readonly running: number;
    readonly restarts: number;
  })[];
  /** How many tasks wait for a process. */
  readonly queueSize: number;
  /** How many tasks had an answer, how many failed, and how many were given up. */
  readonly completed: number;
  readonly failed: number;
  readonly givenUp: number;
  /** How many processes were started again. */
  readonly restarts: number;
}

/** A task that has no answer. */
interface Task {
  readonly value: unknown;
  /** The UUID of its GPU, if it has to be a certain one. */
  readonly device: string | undefined;
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: unknown) => void;
  readonly giveUp: AbortController;
  /** When it was queued, by `performance.now()`. */
  readonly since: number;
}

/** All that checked options say. */
type Settings = ReturnType<typeof checkPoolOptions>;

/**
 * Processes that run the tasks of this one: Node or Python, one or more for each GPU. Each is a peer that was
 * spawned, whose script serves: a task is a request, with GPU objects anywhere inside, and its result is the
 * answer. Tasks wait in order until a process is free.
 *
 * When a process ends, or its context is lost, its tasks reject with the reason, and another one is started. No
 * task is run again: only the caller of {@link run} knows whether it may be. A pool keeps this process alive until
 * it is closed.
 *
 * @example
 * await using pool = PeerPool.create({ script: new URL('./worker.js', import.meta.url) });
 * const labels = await pool.run({ image: buffer }, { timeoutMs: 1000 });
 */
export class PeerPool<Receives = unknown, Sends = Anything> implements AsyncDisposable {
  readonly #settings: Settings;
  readonly #members: readonly Member[];
  readonly #queue: Task[] = [];
  /** Tasks that a process has. */
  readonly #running = new Set<Task>();
  readonly #counts = { completed: 0, failed: 0, givenUp: 0 };
  /** The number of the member that was asked last, so that all get their share. */
  #last = 0;
  #closing: Promise<void> | undefined;
  /** Called when no task is left. */
  #onDrained: (() => void) | undefined;

  private constructor(settings: Settings) {
    assertInternal(settings, Object, 'PeerPool', 'PeerPool.create');
    this.#settings = settings;
    const places = settings.devices.flatMap((device) =>
      Array.from({ length: settings.perDevice }, () => device),
    );
    const host = { onFree: () => this.#dispatch(), onGivenUp: () => this.#onGivenUp() };
    const members: Member[] = [];
    try {
      for (const [index, device] of places.entries())
        members.push(new Member({ index, device }, settings, host));
    } catch (error) {
      for (const member of members) void member.destroy();
      throw error;
    }
    this.#members = members;
  }

  /**
   * Starts the processes of a pool.
   *
   * @throws TypeError, RangeError for invalid options; NotSupportedError in Bun and Deno. A script that cannot
   * run rejects the tasks, once it is not started again
   */
  static create<Receives = unknown, Sends = Anything>(
    options: PeerPoolOptions<Receives, Sends>,
  ): PeerPool<Receives, Sends> {
    return new PeerPool(checkPoolOptions(options as PeerPoolOptions));
  }

  /** How many processes it has, those included that are being started. */
  get size(): number {
    return this.#closing ? 0 : this.#members.filter(({ isGivenUp }) => !isGivenUp).length;
  }

  /** How many tasks wait for a process. */
  get queueSize(): number {
    return this.#queue.length;
  }

  /**
   * Runs a task in a process that is free, or waits for one. Resolves with what its handler returns. The value is
   * sent when a process takes it: until then, leave it as it is. Work on GPU objects is ordered as by
   * `peer.request`; the objects of the answer are the caller's.
   *
   * Aborting, or the time-out, which counts from this call on, gives a task up: one that waits is not begun, and
   * for one that runs the handler's `signal` is aborted. If the handler has not ended after `closeTimeoutMs`, its
   * process is killed, and another one is started.
   *
   * @throws what the handler throws; PeerGoneError or ClosedError if its process ends, with the exit code, the
   * signal and the end of its stderr; the signal's reason; a `TimeoutError`
   * @throws IpcError with the code `limit-exceeded` if `maxQueue` tasks wait already, with `spawn-failed` if no
   * process is left; ClosedError after {@link close}; as `peer.send`
   */
  async run<V>(value: Outgoing<Sends, V>, options?: PoolRunOptions): Promise<Receives> {
    const { device, ...wait } = checkOptions(
      options,
      ['device', 'signal', 'timeoutMs'],
      'pool.run',
    );
    const deadline = checkDeadline(wait, 'pool.run');
    const uuid = device === undefined ? undefined : checkDevice(device, 'device').uuid;
    if (this.#membersOn(uuid).length === 0)
      throw new RangeError(`the pool has no process on ${formatValue(device)}`);
    deadline.signal?.throwIfAborted();
    return withDeadline<unknown>(
      deadline,
      'a task of a pool',
      (resolve, reject) => {
        const giveUp = new AbortController();
        const task = { value, device: uuid, resolve, reject, giveUp, since: performance.now() };
        this.#add(task);
        return () => this.#giveUp(task);
      },
      () => this.#hint(uuid),
    ) as Promise<Receives>;
  }

  /** What it has done, and does now. */
  stats(): PeerPoolStats {
    const members = this.#members.map(({ place, pid, state, running, restarts }) => ({
      ...place,
      pid,
      state,
      running,
      restarts,
    }));
    const restarts = members.reduce((sum, member) => sum + member.restarts, 0);
    return { members, queueSize: this.queueSize, ...this.#counts, restarts };
  }

  /**
   * Closes the pool: no task can be added, those that it has are run to their end, and then its processes exit.
   * The second call returns the same promise.
   */
  close(): Promise<void> {
    this.#closing ??= this.#drain();
    return this.#closing;
  }

  /** Ends the pool at once: its tasks reject with a ClosedError, and its processes are killed. */
  async destroy(): Promise<void> {
    for (const task of [...this.#queue.splice(0), ...this.#running]) {
      task.reject(closedError());
      task.giveUp.abort();
    }
    const closing = this.close();
    await Promise.all(this.#members.map((member) => member.destroy()));
    await closing;
  }

  /** As {@link close}. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal */
  [inspect.custom](): string {
    return describeObject('PeerPool', () => [
      this.#closing ? 'closed' : counted(this.size, 'process', 'processes'),
      this.queueSize > 0 && `${counted(this.queueSize, 'task')} waiting`,
    ]);
  }

  // ---- Tasks ----

  /** @throws IpcError if the queue is full, or no process is left; ClosedError */
  #add(task: Task): void {
    if (this.#closing) throw closedError();
    if (this.#isHopeless(task)) throw this.#noProcess(task.device);
    const { maxQueue } = this.#settings;
    if (this.#queue.length >= maxQueue && !this.#memberFor(task))
      throw new IpcError(
        `${this.#queue.length} tasks wait for a process of the pool already: await some of them first, or ` +
          'raise maxQueue',
        undefined,
        'limit-exceeded',
      );
    this.#queue.push(task);
    if (diagnostics.taskQueue.isOn)
      diagnostics.taskQueue.publish({ queueSize: this.#queue.length });
    this.#dispatch();
  }

  #giveUp(task: Task): void {
    const at = this.#queue.indexOf(task);
    if (at >= 0) this.#queue.splice(at, 1);
    task.giveUp.abort();
    this.#counts.givenUp += 1;
    this.#noteDrained();
  }

  /** Gives waiting tasks to processes that are free, in order. */
  #dispatch(): void {
    for (let at = 0; at < this.#queue.length && this.#members.some(({ isFree }) => isFree); ) {
      const task = this.#queue[at] as Task;
      const member = this.#memberFor(task);
      if (member) {
        this.#queue.splice(at, 1);
        void this.#run(task, member);
      } else at += 1;
    }
  }

  /** Returns a process that is free, with as few tasks as possible. */
  #memberFor({ device }: Task): Member | undefined {
    const count = this.#members.length;
    let found: Member | undefined;
    for (let step = 1; step <= count; step += 1) {
      const member = this.#members[(this.#last + step) % count] as Member;
      if (!member.isFree || (device !== undefined && member.place.device.uuid !== device)) continue;
      if (!found || member.running < found.running) found = member;
    }
    return found;
  }

  async #run(task: Task, member: Member): Promise<void> {
    this.#last = member.place.index;
    this.#running.add(task);
    const { signal } = task.giveUp;
    const note = this.#noteTask(task, member);
    try {
      const answer = await member.run({ value: task.value, signal });
      this.#counts.completed += 1;
      note?.(undefined);
      task.resolve(answer);
    } catch (error) {
      note?.(error);
      if (!signal.aborted) this.#counts.failed += 1;
      task.reject(error);
    }
    this.#running.delete(task);
    this.#noteDrained();
  }

  /** Says that a process takes a task, if somebody subscribes. Returns a function to call at its end. */
  #noteTask(task: Task, { place, pid }: Member): ((error: unknown) => void) | undefined {
    if (!diagnostics.taskBegin.isOn && !diagnostics.taskEnd.isOn) return undefined;
    const begin = performance.now();
    const queueSize = this.#queue.length;
    const message = { index: place.index, pid, queueSize, waitedMs: begin - task.since };
    diagnostics.taskBegin.publish(message);
    return (error) =>
      diagnostics.taskEnd.publish({ ...message, durationMs: performance.now() - begin, error });
  }

  // ---- Processes ----

  /** Rejects the tasks that no process will take. */
  #onGivenUp(): void {
    for (const task of this.#queue.filter((each) => this.#isHopeless(each))) {
      this.#queue.splice(this.#queue.indexOf(task), 1);
      this.#counts.failed += 1;
      task.reject(this.#noProcess(task.device));
    }
    this.#noteDrained();
  }

  #membersOn(device: string | undefined): readonly Member[] {
    return this.#members.filter(
      (member) => device === undefined || member.place.device.uuid === device,
    );
  }

  #isHopeless({ device }: Task): boolean {
    return this.#membersOn(device).every(({ isGivenUp }) => isGivenUp);
  }

  #noProcess(device: string | undefined): IpcError {
    const { reason } = this.#membersOn(device).at(-1) as Member;
    const cause = reason instanceof Error ? reason : new Error(messageOf(reason));
    const where = device === undefined ? '' : ` on ${device}`;
    return new IpcError(`no process of the pool is left${where}`, cause, 'spawn-failed');
  }

  /** What a task waits for. */
  #hint(device: string | undefined): string | undefined {
    const members = this.#membersOn(device);
    if (members.some(({ state }) => state === 'serving')) {
      const { size } = this.#running;
      return `${size} ${size === 1 ? 'task runs' : 'tasks run'}, and ${this.#queue.length} wait`;
    }
    const ended = members.find(({ reason }) => reason !== undefined);
    return ended
      ? `no process serves: ${messageOf(ended.reason)}`
      : 'no process serves yet: does its script call serve()?';
  }

  // ---- The end ----

  async #drain(): Promise<void> {
    if (this.#queue.length > 0 || this.#running.size > 0)
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    await Promise.all(this.#members.map((member) => member.close()));
  }

  #noteDrained(): void {
    if (this.#queue.length === 0 && this.#running.size === 0) this.#onDrained?.();
  }
}

const closedError = (): ClosedError => new ClosedError('this PeerPool is closed');

// ---- Options ----

const POOL_OPTIONS = [
  'script',
  'devices',
  'perDevice',
  'visibleDevices',
  'concurrency',
  'maxQueue',
  'restart',
  'closeTimeoutMs',
  'setup',
  'args',
  'execArgv',
  'python',
  'env',
  'cwd',
  'stdio',
  'busyPollUs',
  'startTimeoutMs',
] as const satisfies readonly (keyof PeerPoolOptions)[];

/** @throws TypeError, RangeError */
function checkPoolOptions(options: PeerPoolOptions) {
  const {
    script,
    devices = 'all',
    perDevice = 1,
    visibleDevices = 'own',
    concurrency = 1,
    maxQueue = 1024,
    restart,
    closeTimeoutMs = 5000,
    setup,
    execArgv,
    python,
    env = process.env,
    ...child
  } = checkOptions(options, POOL_OPTIONS, 'PeerPool.create');
  const { limit = 5, backoffMs = 100 } = checkOptions(
    restart,
    ['limit', 'backoffMs'],
    'PeerPool.create, in restart',
  );
  if (visibleDevices !== 'own' && visibleDevices !== 'all')
    throw new TypeError(
      `visibleDevices must be 'own' or 'all', not ${formatValue(visibleDevices)}`,
    );
  if (setup !== undefined && typeof setup !== 'function')
    throw new TypeError(`setup must be a function, not ${formatValue(setup)}`);
  if (typeof env !== 'object' || env === null)
    throw new TypeError(`env must be an object, not ${formatValue(env)}`);
  if (typeof script !== 'function') checkScript(script);
  return {
    devices: checkDevices(devices),
    perDevice: checkInteger(perDevice, 'perDevice', 1, MAX_PER_DEVICE),
    concurrency: checkInteger(concurrency, 'concurrency', 1, MAX_CONCURRENCY),
    maxQueue:
      maxQueue === Number.POSITIVE_INFINITY ? maxQueue : checkInteger(maxQueue, 'maxQueue', 0),
    restartLimit:
      limit === Number.POSITIVE_INFINITY ? limit : checkInteger(limit, 'restart.limit', 0),
    backoffMs: checkInteger(backoffMs, 'restart.backoffMs', 0, MAX_TIMER_MS),
    closeTimeoutMs: checkInteger(closeTimeoutMs, 'closeTimeoutMs', 0, MAX_TIMER_MS),
    setup: (peer: ChildPeer, member: PoolMember) => setup?.(peer, member),
    start(member: PoolMember): ChildPeer {
      const program = checkScript(typeof script === 'function' ? script(member) : script);
      const own = { CUDA_VISIBLE_DEVICES: member.device.uuid };
      const how = { ...child, env: visibleDevices === 'own' ? { ...env, ...own } : env };
      return isPython(program)
        ? spawnPython(program, { ...how, ...(python !== undefined && { python }) })
        : spawnPeer(program, {
            ...how,
            ...(execArgv !== undefined && { execArgv }),
          });
    },
  };
}

const MAX_PER_DEVICE = 1024;
/** As many requests as a connection may have pending. */
const MAX_CONCURRENCY = 1024;

/** @throws TypeError for what is no script */
function checkScript(script: PoolScript | undefined): PoolScript {
  if (typeof script !== 'object' || script === null || !('module' in script)) scriptPath(script);
  return script as PoolScript;
}

const isPython = (script: PoolScript): script is PoolScript & { readonly module: string } =>
  (typeof script === 'object' && 'module' in script) || String(script).endsWith('.py');

function checkDevices(devices: unknown): readonly Device[] {
  if (devices === 'all') return allDevices();
  if (!Array.isArray(devices) || devices.length === 0)
    throw new TypeError(`devices must be 'all' or a list of devices, not ${formatValue(devices)}`);
  return devices.map((device, at) => checkDevice(device, `devices[${at}]`));
}

/** @throws TypeError, RangeError for anything but a device or the ordinal of one */
function checkDevice(device: unknown, name: string): Device {
  if (device instanceof Device) return device;
  if (typeof device === 'number') return Device.get(device);
  throw new TypeError(`${name} must be a Device or an ordinal, not ${formatValue(device)}`);
}
