/** Programs of a test in processes of their own: started, asked, and surely ended. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

const DEADLINE_MS = 30_000;

/** A program in its own process, which answers each message with one. */
export class Program implements AsyncDisposable {
  readonly process: ChildProcess;
  readonly #answers: unknown[] = [];
  readonly #waiting: { resolve(value: unknown): void; reject(error: Error): void }[] = [];
  readonly #deadline: NodeJS.Timeout;
  #ended: Error | undefined;

  constructor(url: URL, args: readonly string[] = [], env: NodeJS.ProcessEnv = {}) {
    const { path, execArgv } = programFile(url);
    this.process = fork(path, [...args], {
      execArgv,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    this.#deadline = setTimeout(() => this.process.kill('SIGKILL'), DEADLINE_MS);
    this.process.on('message', (message) => {
      const next = this.#waiting.shift();
      if (next) next.resolve(message);
      else this.#answers.push(message);
    });
    this.process.once('exit', (code, signal) => {
      clearTimeout(this.#deadline);
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
  async kill(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const exit = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
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
