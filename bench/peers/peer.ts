/**
 * A program of another language that takes its turns in a run. It says `ready UUID` or
 * `skip REASON`, and answers each line `BATCH CALLS BYTES UNTIMED` with `ns NANOSECONDS`, after as many
 * calls that are not timed; 0 calls ask whether the batch can be made, which is answered with
 * `ns ANYTHING` or `skip REASON`. `verify` in place of `CALLS` has it look whether what the calls did is
 * right, which is answered with `ns ANYTHING`.
 */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';

/** A contestant that cannot take part, and why. */
export interface Skipped {
  readonly name: string;
  readonly reason: string;
}

/** How a peer is started: the same for every language. */
export interface PeerProgram {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
}

/** What it is to do. */
export interface Batch {
  readonly batch: string;
  readonly calls: number;
  /** How many come before them. */
  readonly untimed: number;
  readonly byteLength: number;
}

/** Long enough to load PyTorch from a cold disk. */
const DEADLINE_MS = 120_000;

/** A started program, ready to measure. */
export class Peer {
  readonly name: string;
  readonly #process: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: AsyncIterator<string>;
  readonly #exited: Promise<unknown>;

  private constructor(name: string, process: ChildProcessByStdio<Writable, Readable, null>) {
    this.name = name;
    this.#process = process;
    this.#lines = createInterface({ input: process.stdout })[Symbol.asyncIterator]();
    this.#exited = new Promise((resolve) => process.once('exit', resolve));
    // A program that died is told of by the answer that does not come.
    process.stdin.on('error', () => {});
    // So is one that was killed.
    process.on('error', () => {});
  }

  /**
   * Starts a program; answers with the reason if it cannot run here.
   *
   * @param uuid the GPU that it must have found, in nvidia-smi's form
   * @param signal kills it when aborted
   * @throws Error if it fails, or measures another GPU
   */
  static async start(
    { name, command, args }: PeerProgram,
    uuid: string,
    signal: AbortSignal,
  ): Promise<Peer | Skipped> {
    const stdio = ['pipe', 'pipe', 'inherit'] as const;
    const process = spawn(command, args, { stdio: [...stdio], signal, killSignal: 'SIGKILL' });
    try {
      await once(process, 'spawn');
    } catch (error) {
      return { name, reason: `${command} cannot be started: ${(error as Error).message}` };
    }
    const peer = new Peer(name, process);
    try {
      const [word, text] = await peer.#next();
      if (word === 'skip') {
        await peer.close();
        return { name, reason: text };
      }
      if (word !== 'ready') throw new Error(`${name}: ${word} ${text}`);
      if (text !== uuid.replace(/^GPU-|-/g, ''))
        throw new Error(`${name} would measure GPU ${text}, and this process ${uuid}`);
      return peer;
    } catch (error) {
      await peer.close();
      throw error;
    }
  }

  /** Its process. */
  get pid(): number {
    return this.#process.pid as number;
  }

  /** Why it cannot make a batch; undefined where it can. */
  async lacks(batch: string, byteLength: number): Promise<string | undefined> {
    const { exitCode, signalCode } = this.#process;
    if (exitCode !== null || signalCode !== null) return 'its program has ended';
    const [word, text] = await this.#ask(`${batch} 0 ${byteLength} 0`);
    if (word === 'skip') return text;
    if (word !== 'ns') throw new Error(`${this.name}: ${word} ${text}`);
    return undefined;
  }

  /** How many nanoseconds `calls` calls of a batch took there. */
  async run({ batch, calls, untimed, byteLength }: Batch): Promise<number> {
    const [word, text] = await this.#ask(`${batch} ${calls} ${byteLength} ${untimed}`);
    if (word !== 'ns') throw new Error(`${this.name}: ${word} ${text}`);
    return Number(text);
  }

  /** Has it look whether what the calls of a batch did is right. @throws Error where it is not */
  async verify(batch: string, byteLength: number): Promise<void> {
    const [word, text] = await this.#ask(`${batch} verify ${byteLength} 0`);
    if (word !== 'ns') throw new Error(`${this.name}: ${batch}: ${word} ${text}`);
  }

  /** Lets it free what it has and end; kills it if it does not. */
  async close(): Promise<void> {
    const deadline = setTimeout(() => this.#process.kill('SIGKILL'), DEADLINE_MS);
    this.#process.stdin.end();
    await this.#exited;
    clearTimeout(deadline);
  }

  #ask(line: string): Promise<readonly [word: string, text: string]> {
    this.#process.stdin.write(`${line}\n`);
    return this.#next();
  }

  async #next(): Promise<readonly [word: string, text: string]> {
    const deadline = setTimeout(() => this.#process.kill('SIGKILL'), DEADLINE_MS);
    const { value, done } = await this.#lines.next();
    clearTimeout(deadline);
    if (done) throw new Error(`the ${this.name} program ended without an answer`);
    const [word = '', ...rest] = value.split(' ');
    return [word, rest.join(' ')];
  }
}
