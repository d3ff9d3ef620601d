/**
 * Runs programs one after the other in one process. To start Node and to load cuffi takes ten times as
 * long as most of the programs of the documents do. The processes that they start are their own.
 */
import type { ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { isSoak } from './iterations.ts';
import { leaves } from './left-open.ts';
import { killed, startProgram } from './program.ts';

/** On a GPU, and in the soak, each program has a process of its own: what one leaves there cannot help another. */
const canShare = process.env['CUFFI_DRIVER'] === 'emulated' && !isSoak;

/**
 * Whether a program can run after others, and others after it: a memory manager must be set before the first
 * context exists, and what subscribes goes on.
 */
export const canShareProcess = (code: string): boolean =>
  canShare && !/\b(setMemoryManager|subscribe)\(/.test(code);

const LIFE_MS = 300_000;

/** A program to run. */
export interface Order {
  /** JavaScript, or TypeScript that tsx loads. */
  readonly path: string;
  readonly args?: readonly string[];
  readonly directory: string;
  /** In addition to the environment of the process. */
  readonly env: NodeJS.ProcessEnv;
}

/** What a program has printed, and its exit code or the signal that killed it. */
export interface Printed {
  readonly text: string;
  readonly complaints: string;
  readonly ending: number | string;
}

/** What the process prints after a program, on both streams. */
const END = /\0(.*)\n/;

/** The process, with what it has printed since the last program began. */
interface Started {
  readonly child: ChildProcessWithoutNullStreams;
  readonly closed: Promise<readonly (number | string | null)[]>;
  printed: [text: string, complaints: string];
  hear: () => void;
}

/** The process. It is started for the first program, and again after one that has ended it. */
export class InTurn implements AsyncDisposable {
  readonly #env: NodeJS.ProcessEnv;
  readonly #execArgv: readonly string[];
  #started: Started | undefined;

  /** @param options the environment in addition to that of this process, and options of Node */
  constructor({
    env = {},
    execArgv = [],
  }: { readonly env?: NodeJS.ProcessEnv; readonly execArgv?: readonly string[] } = {}) {
    this.#env = env;
    this.#execArgv = execArgv;
  }

  /** Runs a program to its end, or for so long. One at a time. */
  async run(order: Order, timeoutMs: number): Promise<Printed> {
    this.#started ??= this.#start();
    const started = this.#started;
    const { child, closed } = started;
    started.printed = ['', ''];
    const ended = new Promise<void>((resolve) => {
      started.hear = resolve;
    });
    const deadline = setTimeout(() => child.kill('SIGKILL'), timeoutMs);
    child.stdin.write(`${JSON.stringify(order)}\n`);
    const [code, signal] = (await Promise.race([ended, closed])) ?? [];
    clearTimeout(deadline);
    const [text, complaints] = started.printed.map((each) =>
      each.replace(END, ''),
    ) as Started['printed'];
    const [, said] = END.exec(started.printed[0]) ?? [];
    if (said !== undefined) return { text, complaints, ending: Number(said) };
    this.#started = undefined;
    return { text, complaints, ending: signal ?? code ?? 'nothing' };
  }

  #start(): Started {
    const why = 'later programs run in the process, too';
    leaves(/^(active (Pipe|Process)Wrap|descriptor of (socket|pipe|\/dev\/null))$/, why, 8);
    leaves(/^child process|calls \(\) => child\.kill/, why);
    const child = startProgram(new URL('./fixtures/in-turn.ts', import.meta.url), [], {
      stdio: 'pipe',
      env: { ...process.env, ...this.#env },
      execArgv: this.#execArgv,
      timeout: LIFE_MS,
    });
    const closed = once(child, 'close') as Started['closed'];
    const started: Started = { child, closed, printed: ['', ''], hear() {} };
    for (const [at, stream] of [child.stdout, child.stderr].entries())
      stream.setEncoding('utf8').on('data', (data: string) => {
        started.printed[at] += data;
        if (started.printed.every((each) => END.test(each))) started.hear();
      });
    // A program that ends the process does not read the next order.
    child.stdin.on('error', () => {});
    return started;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#started) await killed(this.#started.child);
  }
}
