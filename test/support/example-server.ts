/** An HTTP server of docs/examples, pasted into a folder, in a process of its own. */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { request } from 'node:http';
import { until } from './iterations.ts';
import { childrenOf, isRunning, killed, startProcess } from './program.ts';

export interface Answer {
  readonly status: number;
  readonly text: string;
}

/** The server. Dispose kills it, and waits for the ends of its workers. */
export class ExampleServer implements AsyncDisposable {
  readonly process: ChildProcess;
  readonly url: string;
  printed: string;

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
    return childrenOf(this.process.pid as number).filter(isRunning);
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
    const { workers } = this;
    await killed(this.process);
    // A worker ends when its connection does.
    await until(() => !workers.some(isRunning));
  }
}
