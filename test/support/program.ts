/** Programs of a test in processes of their own: started, asked, and surely ended. */
import {
  type ChildProcess,
  type ChildProcessWithoutNullStreams,
  type SpawnOptions,
  spawn,
} from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

const DEADLINE_MS = 60_000;

const running = new Set<ChildProcess>();
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/**
 * Starts a process, which is killed after `timeout` (default 60 s) and when this process exits. What
 * becomes of this process otherwise, the runner kills the whole group. Its type has the streams that
 * `stdio` asks to be pipes.
 */
export function startProcess(
  file: string,
  args: readonly string[] = [],
  { timeout = DEADLINE_MS, ...options }: SpawnOptions = {},
): ChildProcessWithoutNullStreams {
  const child = spawn(file, args, { stdio: 'ignore', ...options });
  running.add(child);
  const deadline = setTimeout(() => child.kill('SIGKILL'), timeout).unref();
  const forget = (): void => {
    clearTimeout(deadline);
    running.delete(child);
  };
  child.once('exit', forget).once('error', forget);
  return child as ChildProcessWithoutNullStreams;
}

/** Starts a program of the project with Node: see {@link startProcess}. */
export function startProgram(
  url: URL,
  args: readonly string[] = [],
  { execArgv = [], ...options }: SpawnOptions & { readonly execArgv?: readonly string[] } = {},
): ChildProcessWithoutNullStreams {
  const program = programFile(url);
  return startProcess(
    process.execPath,
    [...program.execArgv, ...execArgv, program.path, ...args],
    options,
  );
}

/** Kills a process, unless it has exited, and waits until it has. */
export async function killed(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  child.kill('SIGKILL');
  await exited;
}

/** The state of a process and its parent, as /proc says; undefined if there is none. */
function statusOf(pid: number): { readonly state: string; readonly parent: number } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // The name before it may have any characters.
    const [state = '', parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ', 2);
    return { state, parent: Number(parent) };
  } catch {
    return undefined;
  }
}

/** The child processes of a process that exist, also those that have exited and were not waited for. */
export const childrenOf = (parent: number): number[] =>
  readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0 && statusOf(pid)?.parent === parent);

/** Whether a process has not exited. */
export const isRunning = (pid: number): boolean => !'ZX'.includes(statusOf(pid)?.state ?? 'X');

/** A program in its own process, which answers each message with one. */
export class Program implements AsyncDisposable {
  readonly process: ChildProcess;
  readonly #answers: unknown[] = [];
  readonly #waiting: { resolve(value: unknown): void; reject(error: Error): void }[] = [];
  #ended: Error | undefined;

  constructor(url: URL, args: readonly string[] = [], options: SpawnOptions = {}) {
    this.process = startProgram(url, args, {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      ...options,
    });
    this.process.on('message', (message) => {
      const next = this.#waiting.shift();
      if (next) next.resolve(message);
      else this.#answers.push(message);
    });
    this.process.once('exit', (code, signal) => {
      this.#ended = new Error(`${url.pathname} ended with ${signal ?? code}`);
      for (const waiting of this.#waiting) waiting.reject(this.#ended);
    });
  }

  get pid(): number {
    return this.process.pid as number;
  }

  /** The program's next message. */
  next<T>(): Promise<T> {
    return new Promise((resolve, reject) => {
      const answer = this.#answers.shift();
      if (answer !== undefined) resolve(answer as T);
      else if (this.#ended) reject(this.#ended);
      else this.#waiting.push({ resolve: (value) => resolve(value as T), reject });
    });
  }

  /** Sends a message and awaits the answer. */
  ask<T>(message: object): Promise<T> {
    const answer = this.next<T>();
    this.process.send(message);
    return answer;
  }

  /** Ends the program from without, and waits until its process is gone. */
  kill(): Promise<void> {
    return killed(this.process);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }
}

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The environment variable that names the folder of what the suite has compiled. */
export const COMPILED = 'CUFFI_TEST_COMPILED';

/** How node starts a program of the project: as the suite or the build has compiled it, else by tsx. */
export function programFile(url: URL): { readonly path: string; readonly execArgv: string[] } {
  const path = fileURLToPath(url);
  const compiled = compiledFile(relative(root, path).replace(/\.ts$/, ''));
  return compiled === undefined
    ? { path, execArgv: ['--import', 'tsx'] }
    : { path: compiled, execArgv: [] };
}

/** The build is only relied on where the suite runs, which has made it anew. */
function compiledFile(name: string): string | undefined {
  const folder = process.env[COMPILED];
  if (!folder) return undefined;
  return [join(folder, `${name}.mjs`), join(root, 'dist', `${name}.js`)].find(existsSync);
}

// Node 20 does not give worker threads the loader of `--import tsx`.
const LOADED_BY_TSX = `
  const { workerData: { path, data } } = require('node:worker_threads');
  require('node:worker_threads').workerData = data;
  require('tsx/cjs');
  import('tsx/esm/api').then(({ register }) => {
    register();
    return import(path);
  });`;

/** A worker thread of a program of the tests, as the suite has compiled it or through tsx. */
export function startWorker(url: URL, data: unknown): Worker {
  const { path } = programFile(url);
  if (path.endsWith('.mjs')) return new Worker(path, { workerData: data });
  return new Worker(LOADED_BY_TSX, { eval: true, workerData: { path, data } });
}
