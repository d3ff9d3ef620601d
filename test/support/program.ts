/** Programs of a test in processes of their own: started, asked, and surely ended. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { programFile } from './program-file.ts';

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
