/** An HTTP server of docs/examples, pasted into a folder, in a process of its own. */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { request } from 'node:http';
import { killed, startProcess } from './program.ts';

export interface Answer {
  readonly status: number;
  readonly text: string;
}

/** The server. Dispose kills it, and waits for the ends of its workers. */
export class ExampleServer implements AsyncDisposable {
  readonly process: ChildProcess;
  readonly url: string;
  printed: string;
  readonly #seen = new Set<number>();

  private constructor(child: ChildProcess, url: string, printed: string) {
    this.process = child;
    this.url = url;
    this.printed = printed;
    child.stdout?.on('data', (data) => {
      this.printed += data;
    });
  }

  /** Resolves when the program says where it listens. */
  static async start(folder: string, script: string, timeout: number): Promise<ExampleServer> {
    const child = startProcess(process.execPath, [script, '0'], {
      cwd: folder,
      stdio: ['ignore', 'pipe', 'inherit'],
      timeout,
    });
    let printed = '';
    for (;;) {
      const [data] = await once(child.stdout, 'data');
      printed += data;
      const [, url] = /^listening: .* (http:\S+)$/m.exec(printed) ?? [];
      if (url) return new ExampleServer(child, url, printed);
    }
  }

  /** The processes that it has started and that run. */
  get workers(): number[] {
    const found = readdirSync('/proc')
      .map(Number)
      .filter((pid) => pid > 0 && parentOf(pid) === this.process.pid);
    for (const pid of found) this.#seen.add(pid);
    return found;
  }

  get descriptors(): number {
    return readdirSync(`/proc/${this.process.pid}/fd`).length;
  }

  async ask(body: string): Promise<Answer> {
    const headers = { connection: 'close' };
    const response = await fetch(this.url, { method: 'POST', body, headers });
    return { status: response.status, text: await response.text() };
  }

  /** Sends a request, and returns how to leave without its answer. */
  async begin(body: string): Promise<() => void> {
    const sent = request(this.url, { method: 'POST', agent: false });
    sent.on('error', () => {});
    await new Promise<void>((resolve) => sent.end(body, resolve));
    return () => sent.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const pids = new Set([...this.workers, ...this.#seen]);
    await killed(this.process);
    // A worker ends when its connection does.
    for (const pid of pids)
      while (isRunning(pid)) await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** The state and the parent of a process; undefined if there is none. */
const statOf = (pid: number): readonly [state: string, parent: number] | undefined => {
  try {
    const [, state, parent] = /\) (\w) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    return state === undefined ? undefined : [state, Number(parent)];
  } catch {
    return undefined;
  }
};

function parentOf(pid: number): number | undefined {
  const [state = 'Z', parent] = statOf(pid) ?? [];
  return 'ZX'.includes(state) ? undefined : parent;
}

/** Whether a process runs: a zombie does not. */
export const isRunning = (pid: number): boolean => parentOf(pid) !== undefined;
