import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, fstatSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { closeFd, setCloseOnExec } from '../../../ffi/linux/libc.ts';
import { peerCredentials, socketPair } from '../../../ffi/linux/socket.ts';
import { isMainThread } from '../../../ffi/thread.ts';
import { checkDeadline, MAX_TIMER_MS } from '../../deadline.ts';
import { IpcError, PeerGoneError } from '../../errors.ts';
import type { Details } from '../../inspect.ts';
import {
  assertInternal,
  checkInteger,
  checkOptions,
  checkStrings,
  formatValue,
} from '../../validate.ts';
import { PeerProcess } from '../lease/peer-process.ts';
import { PARENT_VARIABLE } from '../protocol.ts';
import { ChildOutput, ignoreBrokenStderr } from './child-output.ts';
import { Peer } from './peer.ts';
import {
  assertCanConnect,
  checkPeerOptions,
  type PeerOptions,
  type WaitingOptions,
} from './peer-options.ts';
import type { Anything } from './sendable.ts';

/** How a child is started, in either language. */
export interface ChildOptions extends WaitingOptions {
  /** Default: the environment of this process. */
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string | URL;
  /**
   * Aborting ends the child by SIGTERM, as of `child_process.spawn`. Its peer then ends with a
   * {@link PeerGoneError} that names the signal. If it is aborted before, no child is started, and the
   * call throws its reason.
   */
  readonly signal?: AbortSignal;
  /**
   * How long the child may take until it asks for its parent. Then it is killed, and its peer ends with an
   * {@link IpcError} with the code `spawn-failed`. Default: no limit.
   */
  readonly startTimeoutMs?: number;
  /**
   * As of `child_process.spawn`. Default: 'inherit'. An inherited stderr is a pipe, which this process
   * passes on to its own: so the {@link PeerGoneError} of a child has the end of it. Pass the file
   * descriptor 2 for the terminal itself, or for a child that outlives this process.
   */
  readonly stdio?: SpawnOptions['stdio'];
}

/** Options of {@link spawnPeer}: how the child is started. */
export interface SpawnPeerOptions extends ChildOptions {
  /** The script's arguments, from `process.argv[2]` on. */
  readonly args?: readonly string[];
  /**
   * Node's own arguments. Default: those of this process, so that TypeScript still runs. With
   * `[...process.execArgv, '--always-sparkplug']` the first hand-overs of a child are quicker.
   */
  readonly execArgv?: readonly string[];
}

/**
 * Starts a Node process that is connected to this one. In the child, `parentPeer()` is this
 * process.
 *
 * `peer.process` is the child. When the child exits for any reason, the peer's values end. When the
 * peer is closed, the child's `parentPeer()` ends; the child itself continues until it exits.
 *
 * @param script a file, as of `child_process.fork`
 * @throws NotSupportedError in Bun and Deno
 * @throws TypeError for invalid arguments; a script that cannot run ends the peer
 * @example
 * using child = spawnPeer(new URL('./worker.js', import.meta.url));
 * await child.send({ task: 1, input: buffer });
 * const answer = await child.receive();
 */
export function spawnPeer<Receives = unknown, Sends = Anything>(
  script: string | URL,
  options?: SpawnPeerOptions,
): ChildPeer<Receives, Sends> {
  assertCanConnect('spawnPeer');
  const {
    args = [],
    execArgv = ownExecArgv(),
    busyPollUs,
    requestTimeoutMs,
    startTimeoutMs,
    ...others
  } = checkOptions(options, ['args', 'execArgv', ...CHILD_OPTIONS], 'spawnPeer');
  const init = checkConnectionOptions({ busyPollUs, requestTimeoutMs, startTimeoutMs });
  const given = checkStrings(args, 'args');
  const ownArgs = checkStrings(execArgv, 'execArgv');
  const { passesOnStderr, ...how } = checkChildOptions(others, 'spawnPeer');
  const { cwd } = how;
  const path = scriptPath(script);
  return startChild(
    { ...how, file: process.execPath, args: [...ownArgs, path, ...given] },
    (socket, child) => {
      const file = resolve(isUrl(cwd) ? fileURLToPath(cwd) : (cwd ?? '.'), path);
      const findFault = (): string | undefined => missingScript(file);
      const parentCall = 'parentPeer()';
      return new ChildPeer(socket, child, { findFault, parentCall, passesOnStderr }, init);
    },
  );
}

/** Whether it is a URL of Node, or of a DOM in JavaScript, such as jsdom's. */
export const isUrl = (value: unknown): value is URL =>
  value instanceof URL ||
  (Object.prototype.toString.call(value) === '[object URL]' &&
    typeof (value as URL).href === 'string');

/**
 * Returns the path of a script as an argument that no interpreter takes for an option or a command.
 *
 * @throws TypeError for anything but a path or a file URL
 */
export function scriptPath(script: unknown): string {
  const path = isUrl(script) ? fileURLToPath(script) : script;
  if (typeof path === 'string' && path.startsWith('file:'))
    throw new TypeError(`the script is a file URL as a string: pass new URL(${formatValue(path)})`);
  if (typeof path !== 'string' || path === '')
    throw new TypeError(`the script must be a path or a file URL, not ${formatValue(script)}`);
  // An option of Node or Python, or the debugger of Node.
  return /^(-|inspect$|debug$)/.test(path) ? `./${path}` : path;
}

/** The names of {@link ChildOptions}. */
export const CHILD_OPTIONS = [
  'env',
  'stdio',
  'cwd',
  'signal',
  'busyPollUs',
  'requestTimeoutMs',
  'startTimeoutMs',
] as const;

/** Options of the connection to a child. */
interface ChildConnectionOptions extends PeerOptions {
  readonly startTimeoutMs?: number | undefined;
}

/** @throws TypeError, RangeError for invalid times */
export function checkConnectionOptions({
  startTimeoutMs,
  ...options
}: ChildConnectionOptions): ChildConnectionOptions {
  if (startTimeoutMs !== undefined) checkInteger(startTimeoutMs, 'startTimeoutMs', 0, MAX_TIMER_MS);
  return { ...checkPeerOptions(options), startTimeoutMs };
}

/** Checked options of a child. */
interface ChildEnvironment {
  readonly env: NodeJS.ProcessEnv;
  readonly stdio: readonly unknown[];
  readonly cwd: string | URL | undefined;
  readonly signal: AbortSignal | undefined;
}

/**
 * Returns how a child is started, and whether its stderr is a pipe that is to be passed on.
 *
 * @throws TypeError for invalid options; the signal's reason if it is aborted
 */
export function checkChildOptions(
  {
    env = process.env,
    stdio = 'inherit',
    cwd,
    signal,
  }: { readonly [K in keyof ChildOptions]: ChildOptions[K] | undefined },
  call: string,
): ChildEnvironment & { readonly passesOnStderr: boolean } {
  if (typeof env !== 'object' || env === null)
    throw new TypeError(`env must be an object, not ${formatValue(env)}`);
  const streams: unknown[] = Array.isArray(stdio) ? [...stdio] : [stdio, stdio, stdio];
  while (streams.length < 3) streams.push('inherit');
  const passesOnStderr = streams[2] === 'inherit';
  if (passesOnStderr) streams[2] = 'pipe';
  checkDeadline({ signal }, call).signal?.throwIfAborted();
  return { env, stdio: streams, cwd, signal, passesOnStderr };
}

/** How a connected child is started. */
interface ChildCommand extends ChildEnvironment {
  readonly file: string;
  readonly args: readonly string[];
}

/** Starts a child that inherits its end of a connection, behind its other descriptors. */
export function startChild<P>(
  { file, args, env, stdio, cwd, signal }: ChildCommand,
  connect: (socket: number, child: ChildProcess) => P,
): P {
  const [own, other] = socketPair();
  let isOwned = false;
  try {
    const child = spawn(file, args, {
      env: { ...env, [PARENT_VARIABLE]: `${stdio.length}:${fstatSync(other).ino}` },
      stdio: [...stdio, other] as SpawnOptions['stdio'],
      ...(cwd === undefined ? {} : { cwd }),
      ...(signal && { signal }),
    });
    isOwned = true;
    return connect(own, child);
  } finally {
    if (!isOwned) closeFd(own);
    closeFd(other);
  }
}

/** Returns that a child's script does not exist, if so. Loaders of TypeScript take x.ts for x.js. */
function missingScript(file: string): string | undefined {
  const others = ['', '.js', '.cjs', '.mjs', '.ts', '/index.js'].map((ending) => file + ending);
  const typed = file.replace(/\.([cm]?)js(x?)$/, '.$1ts$2');
  return [...others, typed, `${typed}x`].some((path) => existsSync(path))
    ? undefined
    : `there is no script ${file}`;
}

/** Omits a program from the command line, because the child has its script. */
function ownExecArgv(): string[] {
  const at = process.execArgv.findIndex((arg) => /^(-e|-p|-pe|--eval|--print)$/.test(arg));
  const args = at < 0 ? process.execArgv : process.execArgv.toSpliced(at, 2);
  return args.filter((arg) => !arg.startsWith('--input-type'));
}

/** What is known of a child besides its process. */
interface ChildInit {
  /** Returns why it could not run, if a reason is found. */
  findFault(): string | undefined;
  /** What a program of its language calls for its connection. */
  readonly parentCall: string;
  /** Whether its stderr is a pipe, which is passed on to that of this process. */
  readonly passesOnStderr: boolean;
  /** What to do if it cannot be started. */
  readonly remedy?: string;
}

/**
 * A child process that {@link spawnPeer} started. Its exit ends the peer, after the last values
 * that it sent. That holds even if a process of its own still holds the connection.
 */
export class ChildPeer<Receives = unknown, Sends = Anything>
  extends Peer<Receives, Sends>
  implements AsyncDisposable
{
  /** The child itself: its exit code, its standard streams, `kill()`. */
  readonly process: ChildProcess;
  readonly #output: ChildOutput | undefined;

  /** @internal */
  constructor(
    socket: number,
    child: ChildProcess,
    init: ChildInit,
    options: ChildConnectionOptions,
  ) {
    assertInternal(child, Object, 'ChildPeer', 'spawnPeer');
    const pid = child.pid ?? 0;
    const peerProcess = PeerProcess.ofChild(pid);
    const { startTimeoutMs, ...rest } = options;
    super(socket, { pid, uid: process.getuid?.() ?? 0 }, { process: peerProcess, ...rest });
    this.process = child;
    const { connection } = this;
    connection.awaitExit(init.findFault, init.parentCall);
    if (startTimeoutMs !== undefined) this.#expectStart(startTimeoutMs);
    // None if it could not be started.
    const output = init.passesOnStderr && child.stderr ? new ChildOutput(child) : undefined;
    this.#output = output;
    child.once('exit', (exitCode, signal) => {
      const report = (stderr?: string): void => {
        peerProcess.exit = { exitCode: exitCode ?? undefined, signal: signal ?? undefined, stderr };
        peerProcess.markGone();
        connection.onExitKnown();
      };
      if (output) void output.whenEnded().then(report);
      else report();
    });
    child.on('error', (error) => {
      // This event also reports a failed kill, and an abort.
      if (child.pid !== undefined) return;
      connection.fail(
        new IpcError(
          `the child could not be started: ${error.message}${init.remedy ?? ''}`,
          undefined,
          'spawn-failed',
        ),
      );
      peerProcess.markGone();
    });
  }

  #expectStart(timeoutMs: number): void {
    const { connection } = this;
    const timer = setTimeout(() => {
      if (connection.hasMet || connection.end) return;
      connection.fail(
        new IpcError(
          `${connection.peerName} has not connected within ${timeoutMs} ms: ${connection.silenceHint}`,
          undefined,
          'spawn-failed',
        ),
      );
      this.process.kill('SIGKILL');
    }, timeoutMs).unref();
    void this.ended.then(() => clearTimeout(timer));
  }

  /** @internal */
  protected override displayName(): string {
    return 'ChildPeer';
  }

  /** @internal */
  protected override describe(): Details {
    const { exitCode, signalCode } = this.process;
    return [
      ...super.describe(),
      exitCode !== null && `exited with ${exitCode}`,
      signalCode !== null && `killed by ${signalCode}`,
    ];
  }

  /**
   * Closes the connection and waits until the child has exited, for `await using`. A child whose loop
   * over `parentPeer()` ends exits by itself; it waits for any other for as long as it runs.
   *
   * @example
   * await using child = spawnPeer(new URL('./worker.js', import.meta.url));
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]();
    if (!this.isRunning) return;
    // The process must not exit while it waits.
    this.process.ref();
    await this.whenExited();
    // What it has written is passed on before this process may exit.
    await this.#output?.whenEnded();
  }

  /** @internal Whether the child was started and has not exited. */
  get isRunning(): boolean {
    const { pid, exitCode, signalCode } = this.process;
    return pid !== undefined && exitCode === null && signalCode === null;
  }

  /** @internal Resolves when the child has exited, and at once if it is not running. */
  async whenExited(): Promise<void> {
    if (this.isRunning) await once(this.process, 'exit');
  }

  /** @internal Kills the child if it has not exited by then. Returns the timer; undefined if it is not running. */
  killLater(timeoutMs: number): NodeJS.Timeout | undefined {
    if (!this.isRunning) return undefined;
    const timer = setTimeout(() => this.process.kill('SIGKILL'), timeoutMs);
    this.process.once('exit', () => clearTimeout(timer));
    return timer;
  }

  override ref(): void {
    super.ref();
    this.process.ref();
  }

  /** Allows this process to exit while the child and the peer are open. */
  override unref(): void {
    super.unref();
    this.process.unref();
  }
}

let parent: Peer | undefined;

/**
 * Returns the process that started this one with `spawnPeer`, always as the same object. The
 * options of the last call apply. The peer ends when the parent closes it or exits.
 *
 * @throws NotSupportedError in Bun and Deno
 * @throws IpcError in a process without such a parent, and in a worker thread
 * @example
 * for await (const task of parentPeer()) await parentPeer().send(work(task));
 */
export function parentPeer<Receives = unknown, Sends = Anything>(
  options?: WaitingOptions,
): Peer<Receives, Sends> {
  assertCanConnect('parentPeer');
  const { busyPollUs, requestTimeoutMs } = checkPeerOptions(
    checkOptions(options, ['busyPollUs', 'requestTimeoutMs'], 'parentPeer'),
  );
  parent ??= connectToParent();
  if (busyPollUs !== undefined) parent.connection.busyPollUs = busyPollUs;
  if (requestTimeoutMs !== undefined) parent.connection.requestTimeoutMs = requestTimeoutMs;
  return parent as Peer<Receives, Sends>;
}

function connectToParent(): Peer {
  if (!isMainThread())
    throw new IpcError(
      'parentPeer() only works in the main thread: a worker thread has no connection',
      undefined,
      'no-parent',
    );
  const { [PARENT_VARIABLE]: value } = process.env;
  // Children of this process would inherit the variable but not the descriptor.
  delete process.env[PARENT_VARIABLE];
  const [, fd, inode] = /^(\d{1,9}):(\d+)$/.exec(value ?? '') ?? [];
  if (fd === undefined || !isSocket(Number(fd), Number(inode)))
    throw new IpcError(
      'this process was not started by spawnPeer(): it has no parentPeer()',
      undefined,
      'no-parent',
    );
  setCloseOnExec(Number(fd));
  const peer = new Peer(Number(fd), peerCredentials(Number(fd)));
  endQuietlyWith(peer);
  return peer;
}

/**
 * Makes the end of the parent, if nothing here handles it, end this process without a stack in each
 * child: no line of this program is wrong. An orderly end needs no word, as that of Node's own channel:
 * if it comes of an error of the parent, that must not stand behind the words of its children.
 */
function endQuietlyWith(peer: Peer): void {
  process.on('uncaughtExceptionMonitor', (error) => {
    const { end, isEndedByPeer } = peer.connection;
    const isTheEnd = isEndedByPeer && error.name === end?.name && error.message === end.message;
    if (!isTheEnd || process.env['CUFFI_TRACE'] === '1' || handlesUncaught()) return;
    if (end instanceof PeerGoneError)
      process.stderr.write(
        `cuffi: this process ends because its parent has ended: ${error.message}\n`,
      );
    process.exit(1);
  });
  // Its stderr is mostly a pipe to the parent: writing to it must not fail while the parent ends.
  if (isPipe(2)) ignoreBrokenStderr();
}

function isPipe(fd: number): boolean {
  try {
    return fstatSync(fd).isFIFO() || fstatSync(fd).isSocket();
  } catch {
    return false;
  }
}

/** Whether the program handles uncaught errors itself. */
const handlesUncaught = (): boolean =>
  process.listenerCount('uncaughtException') > 0 || process.hasUncaughtExceptionCaptureCallback();

function isSocket(fd: number, inode: number): boolean {
  try {
    const found = fstatSync(fd);
    return found.isSocket() && found.ino === inode;
  } catch {
    return false;
  }
}
