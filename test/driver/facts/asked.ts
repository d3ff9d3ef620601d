/**
 * Questions whose answer may be that the process crashes or never returns: each is asked in a
 * process of its own, every call has a time limit, and what ends the process is the answer.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { FunctionName } from '../../../ffi/functions.ts';
import {
  type Answer,
  type Argument,
  type Bytes,
  DriverProcess,
  enterContext,
  type Side,
} from '../../support/calls.ts';
import { emulated, onHardware } from '../../support/driver.ts';
import { LatchWord } from '../../support/latch.ts';
import type { FactValue, Note } from './facts.ts';
import { isAsked } from './record.ts';

/** How long a call may take by itself before what holds it up is let go. */
export const PATIENCE_MS = 1000;
/** After which a call that nothing holds up will never return. An emulated one says so itself. */
const LIMIT_MS = onHardware ? 5000 : 30_000;
/** Until a call of a question counts as one that does not return: a queue takes a thousand. */
const MOST_QUEUED = 3000;

/** How many processes ask at a time, where nothing depends on how long calls take. */
export const MANY = 4;

export const NON_BLOCKING = 1;

/** Kernels in as few bytes as may be: `k` does nothing, `write` writes a word, `trap` traps. */
const PTX =
  '.version 7.4\n.target sm_70\n.address_size 64\n.visible .entry k(){ret;}\n' +
  '.visible .entry trap(){trap;}\n.visible .entry write(.param .u64 a){.reg .b64 r;.reg .b32 v;\n' +
  'ld.param.u64 r,[a];mov.b32 v,7;st.global.b32 [r],v;ret;}\n';

export const text = (value: string): Bytes => ({
  bytes: Buffer.from(`${value}\0`).toString('base64'),
});

/** The process that was asked is gone, or waits for ever, with the word for it. */
class Ended extends Error {
  readonly value: string;

  constructor(value: string) {
    super(value);
    this.value = value;
  }
}

/** What a question needs was refused. */
class Refused extends Error {}

/** A device of which rows with wide pitches find room. */
const ENV = { CUFFI_EMULATED_MEMORY: '8G' };

/** What became of a call that was made again and again. */
interface Repeated {
  readonly made: number;
  /** Of the last one. */
  readonly status: number;
  readonly latchOpen: boolean;
}

/** A process that can be asked. */
interface Process {
  readonly peer: DriverProcess;
  readonly startedAt: number;
}

/** So long a process is given to others: it must be gone before its deadline. */
const REUSED_MS = 5000;
/** Processes with an emulated driver that nothing has happened to: they can have a new one. */
const idle: Process[] = [];

async function startProcess(): Promise<Process> {
  const process = idle.pop();
  if (process === undefined) return { peer: new DriverProcess(ENV), startedAt: Date.now() };
  await process.peer.ask({ renew: true });
  return process;
}

async function endProcess(process: Process): Promise<void> {
  if (emulated && Date.now() - process.startedAt < REUSED_MS) idle.push(process);
  else await process.peer.kill();
}

/** Ends the processes that are left. */
export async function endIdle(): Promise<void> {
  for (const { peer } of idle.splice(0)) await peer.kill();
}

/** A process that is asked, with a current context of device 0. */
export class Asked implements Side, AsyncDisposable {
  readonly #process: Process;
  readonly #peer: DriverProcess;
  readonly #note: Note;
  #latch: { readonly word: LatchWord; readonly devicePointer: number } | undefined;
  #isEnded = false;
  context = 0;

  private constructor(note: Note, process: Process) {
    this.#note = note;
    this.#process = process;
    this.#peer = process.peer;
  }

  /** Starts the process. Device -1 leaves it without a context. */
  static async start(note: Note, device = 0): Promise<Asked> {
    const asked = new Asked(note, await startProcess());
    if (device === 0) asked.context = await enterContext(asked);
    else await asked.made('cuInit', 0);
    if (device > 0) asked.context = await asked.enter(device);
    return asked;
  }

  get pid(): number {
    return this.#peer.pid;
  }

  /** Retains a device's primary context and makes it current. */
  async enter(device: number): Promise<number> {
    const context = await this.made('cuDevicePrimaryCtxRetain', 'OUT0', device);
    await this.made('cuCtxPushCurrent_v2', context);
    return context;
  }

  /** Sends a message that is answered, unless the process ends or takes too long. */
  async #send<T>(message: object): Promise<T> {
    if (this.#isEnded) throw new Ended('was not asked');
    const limit = new AbortController();
    try {
      const answer = await Promise.race([
        this.#peer.ask<T & { threw?: string }>({ ...message, mayThrow: true }).catch((error) => {
          throw new Ended(`crashes: ${/ended with (\w+)/.exec(String(error))?.[1]}`);
        }),
        delay(LIMIT_MS, undefined, { signal: limit.signal }).then(() => {
          throw new Ended('blocks');
        }),
      ]);
      if (answer.threw === undefined) return answer;
      // The emulated driver throws where a call would block for ever, and for what was destroyed.
      throw new Ended(/wait/i.test(answer.threw) ? 'blocks' : 'throws');
    } catch (error) {
      this.#isEnded = true;
      await this.#peer.kill();
      throw error;
    } finally {
      limit.abort();
    }
  }

  readonly call = (name: FunctionName, ...args: Argument[]): Promise<Answer> =>
    this.#send({ name, args });

  /** A call that a question needs: the first out-value. */
  async made(name: FunctionName, ...args: Argument[]): Promise<number> {
    const { status, out0 } = await this.call(name, ...args);
    if (status !== 0) throw new Refused(`${name} answers ${status}`);
    return out0;
  }

  /** Notes the status of a call. */
  async ask(what: string, name: FunctionName, ...args: Argument[]): Promise<Answer | undefined> {
    const answer = await this.call(name, ...args).catch((error: unknown) => {
      this.#note(what, error instanceof Ended ? error.value : String(error));
      throw error;
    });
    this.#note(what, answer.status);
    return answer;
  }

  /** Notes what `asking` answers; what ends the process is an answer, too. */
  async answers(what: string, asking: () => Promise<FactValue>): Promise<void> {
    try {
      this.#note(what, await asking());
    } catch (error) {
      this.#note(what, error instanceof Ended ? error.value : (error as Error).message);
      throw error;
    }
  }

  stream(flags: number = NON_BLOCKING): Promise<number> {
    return this.made('cuStreamCreateWithPriority', 'OUT0', flags, 0);
  }

  memory(byteLength: number): Promise<number> {
    return this.made('cuMemAlloc_v2', 'OUT0', byteLength);
  }

  /** Host memory of the process that no driver knows. */
  async map(byteLength: number, options: { isReadOnly?: boolean; file?: string } = {}) {
    return (await this.#send<{ address: number }>({ map: { byteLength, ...options } })).address;
  }

  /** The code of {@link kernels}. */
  readonly image: Bytes = text(PTX);

  async kernels(
    isLoaded = true,
  ): Promise<Readonly<Record<'k' | 'write' | 'trap', number>> & { module: number }> {
    const module = await this.made('cuModuleLoadDataEx', 'OUT0', this.image, 0, 0, 0);
    const named = (name: string): Promise<number> =>
      this.made('cuModuleGetFunction', 'OUT0', module, text(name));
    const found = {
      module,
      k: await named('k'),
      write: await named('write'),
      trap: await named('trap'),
    };
    // A kernel's first launch waits for all streams, unless it is loaded.
    if (isLoaded)
      for (const kernel of [found.k, found.write, found.trap])
        await this.made('cuFuncLoad', kernel);
    return found;
  }

  /** The arguments of a launch of one thread. */
  launch(kernel: number, stream: number, ...parameters: number[]): [FunctionName, ...Argument[]] {
    const given: Argument = parameters.length === 0 ? 0 : { parameters };
    return ['cuLaunchKernel', kernel, 1, 1, 1, 1, 1, 1, 0, stream, given, 0];
  }

  /** Holds a stream up, until {@link release}. */
  async hold(stream: number): Promise<void> {
    if (this.#latch === undefined) {
      const { fd, devicePointer } = await this.#send<{ fd: number; devicePointer: number }>({
        latch: true,
      });
      this.#latch = { word: LatchWord.of(this.pid, fd), devicePointer };
    }
    this.#latch.word.shut();
    await this.made('cuStreamWaitValue32_v2', stream, this.#latch.devicePointer, 1, 0);
  }

  /** Releases the work that is held up. */
  release(): void {
    this.#latch?.word.open();
  }

  /** Makes a call while something is held up: whether it waits for that, and its status. */
  async waits(name: FunctionName, ...args: Argument[]): Promise<string> {
    const opening = emulated ? undefined : setTimeout(() => this.release(), PATIENCE_MS);
    try {
      const { latchOpen, status } = await this.#send<Answer & { latchOpen: boolean }>({
        name,
        args,
        opensLatch: emulated,
      });
      return `${latchOpen ? 'waits' : 'returns'}, ${status}`;
    } finally {
      clearTimeout(opening);
    }
  }

  /** Makes a call so often, unless it fails or waits for what is held up, which it then ends. */
  repeat(times: number, name: FunctionName, ...args: Argument[]): Promise<Repeated> {
    return this.#send<Repeated>({ name, args, times, opensLatch: emulated });
  }

  /** How often a call can be made until it waits for what is held up, which it ends. */
  async countUntilItWaits(...call: [FunctionName, ...Argument[]]): Promise<FactValue> {
    const { made, status, latchOpen } = emulated
      ? await this.repeat(MOST_QUEUED, ...call)
      : await this.#repeatUntilItWaits(call);
    if (latchOpen) return made;
    return status === 0 ? `not within ${MOST_QUEUED}` : `status ${status} at ${made}`;
  }

  /** On hardware a clock tells that a call waits. */
  async #repeatUntilItWaits(call: [FunctionName, ...Argument[]]): Promise<Repeated> {
    for (let made = 1; ; made++) {
      let latchOpen = false;
      const opening = setTimeout(() => {
        latchOpen = true;
        this.release();
      }, PATIENCE_MS);
      const { status } = await this.call(...call);
      clearTimeout(opening);
      if (latchOpen || status !== 0 || made === MOST_QUEUED) return { made, status, latchOpen };
    }
  }

  /**
   * Has a second thread make calls in a while; `answers` says what each has answered by then, and
   * what comes after the first that has not is not asked.
   */
  async later(
    afterMs: number,
    calls: readonly [FunctionName, ...Argument[]][],
  ): Promise<{ answers(): (number | string)[] }> {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-asked-'));
    const file = join(folder, 'answers');
    await this.#send({ later: { context: this.context, afterMs, calls, file } });
    return {
      answers: () => {
        const given = existsSync(file) ? readFileSync(file, 'utf8').split('\n').slice(0, -1) : [];
        rmSync(folder, { recursive: true, force: true });
        return calls.map((_, n) =>
          n < given.length ? Number(given[n]) : n === given.length ? 'blocks' : 'was not asked',
        );
      },
    };
  }

  /** Sends a descriptor of this process to another one. */
  sendFd(fd: number, to: Asked): Promise<number> {
    return this.#peer.sendFd(fd, to.#peer);
  }

  /** Asks the process to exit; returns whether it does. */
  async exit(): Promise<string> {
    this.#isEnded = true;
    const [code] = await Promise.race([
      new Promise<[string]>((resolve) => {
        this.#peer.process.once('exit', (status, signal) => resolve([`${signal ?? status}`]));
        this.#peer.process.send({ exit: true });
      }),
      delay(LIMIT_MS, ['blocks'], { ref: false }),
    ]);
    return code as string;
  }

  kill(): Promise<void> {
    this.#isEnded = true;
    return this.#peer.kill();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // A driver ends sooner where nothing is held up.
    this.release();
    if (this.#isEnded) await this.kill();
    else await endProcess(this.#process);
    this.#latch?.word[Symbol.dispose]();
  }
}

/** Runs one question; what it cannot ask is noted by the reason. */
export async function question(
  note: Note,
  name: string,
  ask: (note: Note) => Promise<void>,
  what = '',
): Promise<void> {
  if (!isAsked(`${name}: `)) return;
  const named: Note = (what, value) => note(`${name}: ${what}`, value);
  try {
    await ask(named);
  } catch (error) {
    if (error instanceof Refused) named(`${what}cannot be asked`, error.message);
    else if (!(error instanceof Ended)) throw error;
  }
}

/**
 * Asks something in a process of its own for each of some names, in so many processes at a time:
 * more than one only where no answer depends on how long a call takes.
 */
export async function questions<T extends string>(
  note: Note,
  name: string,
  whats: readonly T[],
  ask: (asked: Asked, what: T, note: Note) => Promise<void>,
  atOnce = 1,
): Promise<void> {
  const answers = whats.map((): Parameters<Note>[] => []);
  const left = [...whats.entries()].filter(([, what]) => isAsked(`${name}: ${what}`));
  const askNext = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      const [n, what] = next;
      await question(
        (...fact) => answers[n]?.push(fact),
        name,
        async (named) => {
          await using asked = await Asked.start(named);
          await ask(asked, what, named);
        },
        `${what}: `,
      );
    }
  };
  await Promise.all(Array.from({ length: atOnce }, askNext));
  for (const fact of answers.flat()) note(...fact);
}

/** A call, made of what a process has. */
export type CallOf<M> = (made: M) => readonly [FunctionName, ...Argument[]];

/**
 * Asks calls one after the other in one process, as long as none ends it: the rest is asked in
 * others, made anew.
 */
export async function inTurn<M>(
  note: Note,
  name: string,
  make: (asked: Asked) => Promise<M>,
  calls: Readonly<Record<string, CallOf<M>>>,
): Promise<void> {
  const left = new Map(Object.entries(calls));
  while (left.size > 0)
    await question(note, name, async (named) => {
      await using asked = await Asked.start(named);
      const made = await make(asked).catch((error: unknown) => {
        left.clear();
        throw error;
      });
      for (const [what, call] of left) {
        left.delete(what);
        await asked.ask(what, ...call(made));
      }
    });
}
