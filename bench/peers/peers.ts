/**
 * Programs in C and Python that take turns with cuffi. A program prints `ready UUID` or
 * `skip REASON`. It then answers each line `BATCH CALLS BYTES UNTIMED` with `ns NANOSECONDS`, the
 * time of CALLS calls after UNTIMED ones. With 0 CALLS it says whether it has the batch (`ns` or
 * `skip REASON`). With `verify` for CALLS it checks what its calls did (`ns`, or an error).
 */
import { type ChildProcessByStdio, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { Device } from 'cuffi';
import type { PeerBatch } from '../cases/case.ts';
import type { DriverChoice, Skipped } from '../results.ts';

/** The names of the programs. */
export type PeerName = 'C' | 'ctypes' | 'cuda.bindings' | 'cuda.core' | 'cupy' | 'numba' | 'torch';

const PYTHON_PROGRAMS = {
  ctypes: 'ctypes_calls.py',
  'cuda.bindings': 'cuda_bindings.py',
  'cuda.core': 'cuda_core.py',
  cupy: 'cupy_memory.py',
  numba: 'numba_arrays.py',
  torch: 'torch_memory.py',
} as const;
const COMPILERS = ['cc', 'gcc', 'clang'];
/** Loading PyTorch from a cold disk takes a minute. */
const DEADLINE_MS = 120_000;

/** How a program is started. */
export interface PeerProgram {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
}

/** The calls that a program makes. */
export interface Batch {
  readonly batch: string;
  readonly calls: number;
  readonly untimed: number;
  readonly byteLength: number;
}

/** A running program. */
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
    // The missing answer reports a program that died.
    process.stdin.on('error', () => {});
    process.on('error', () => {});
  }

  /**
   * Starts a program; returns the reason if it cannot run here.
   *
   * @param uuid the GPU that it must use, as nvidia-smi prints it
   * @param signal aborting kills it
   * @throws Error if it fails, or uses another GPU
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
      if (text !== bare(uuid))
        throw new Error(`${name} would measure GPU ${text}, and this process ${uuid}`);
      return peer;
    } catch (error) {
      await peer.close();
      throw error;
    }
  }

  get pid(): number {
    return this.#process.pid as number;
  }

  /** Returns why it cannot run a batch; undefined if it can. */
  async lacks(batch: string, byteLength: number): Promise<string | undefined> {
    const { exitCode, signalCode } = this.#process;
    if (exitCode !== null || signalCode !== null) return 'its program has ended';
    const [word, text] = await this.#ask(`${batch} 0 ${byteLength} 0`);
    if (word === 'skip') return text;
    if (word !== 'ns') throw new Error(`${this.name}: ${word} ${text}`);
    return undefined;
  }

  /** Returns the nanoseconds of the timed calls together. */
  async run({ batch, calls, untimed, byteLength }: Batch): Promise<number> {
    const [word, text] = await this.#ask(`${batch} ${calls} ${byteLength} ${untimed}`);
    if (word !== 'ns') throw new Error(`${this.name}: ${word} ${text}`);
    return Number(text);
  }

  /** Makes the program check what the calls of a batch did. @throws Error if that is wrong */
  async verify(batch: string, byteLength: number): Promise<void> {
    const [word, text] = await this.#ask(`${batch} verify ${byteLength} 0`);
    if (word !== 'ns') throw new Error(`${this.name}: ${batch}: ${word} ${text}`);
  }

  /** Closes its input, which ends it; kills it after a deadline. */
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

/** A UUID as the programs print it. */
const bare = (uuid = ''): string => uuid.replace(/^GPU-|-/g, '');

const folder = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The peers of a run. */
export interface Peers {
  readonly running: readonly Peer[];
  readonly skipped: Skipped[];
  close(): Promise<void>;
}

/** Starts the programs of some batches, as far as they can run here. @throws Error if a program starts and then fails */
export async function startPeers(
  driver: DriverChoice,
  batches: readonly PeerBatch[],
  signal: AbortSignal,
): Promise<Peers> {
  const { uuid } = Device.get(0);
  const running: Peer[] = [];
  const skipped: Skipped[] = [];
  const built = mkdtempSync(join(tmpdir(), 'cuffi-bench-'));
  const close = async (): Promise<void> => {
    await Promise.all(running.map((peer) => peer.close()));
    rmSync(built, { recursive: true, force: true });
  };
  // All at once, because Python's packages take seconds to load.
  const names = new Set(batches.map(({ peer }) => peer));
  const withoutGpu = batches.some(({ needsNoGpu = false }) => needsNoGpu) ? uuid : undefined;
  const starts = await Promise.allSettled(
    [...names].map((name) => {
      const program =
        name === 'C' ? cProgram(driver, built, withoutGpu) : pythonProgram(driver, name);
      return 'reason' in program ? program : Peer.start(program, uuid, signal);
    }),
  );
  const errors: unknown[] = [];
  for (const start of starts) {
    if (start.status === 'rejected') errors.push(start.reason);
    else if (start.value instanceof Peer) running.push(start.value);
    else skipped.push(start.value);
  }
  if (errors.length > 0) {
    await close();
    throw errors[0];
  }
  return { running, skipped, close };
}

const NO_GPU = 'it needs a GPU: there is no libcuda behind the emulated driver';

/** @param withoutGpu the UUID to say without a driver; undefined if all of its batches need one */
function cProgram(
  driver: DriverChoice,
  built: string,
  withoutGpu: string | undefined,
): PeerProgram | Skipped {
  const name = 'C';
  if (driver.emulated && withoutGpu === undefined) return { name, reason: NO_GPU };
  const compiler = COMPILERS.find((command) => spawnSync(command, ['--version']).status === 0);
  if (!compiler) return { name, reason: `no C compiler is here (${COMPILERS.join(', ')})` };
  const command = join(built, 'peer');
  const sources = readdirSync(folder('c'))
    .filter((file) => file.endsWith('.c'))
    .map((file) => join(folder('c'), file));
  const ptx = ['kernels', 'saxpy'].map(
    (file) => `-D${file.toUpperCase()}_PTX=${JSON.stringify(folder(`${file}.ptx`))}`,
  );
  const args = ['-O2', ...ptx, '-o', command, ...sources, '-ldl'];
  const { status, stderr } = spawnSync(compiler, args, { encoding: 'utf8' });
  if (status !== 0) return { name, reason: `${compiler} could not build it: ${stderr.trim()}` };
  return { name, command, args: driver.emulated ? ['none', bare(withoutGpu)] : [driver.library] };
}

function pythonProgram(
  driver: DriverChoice,
  name: keyof typeof PYTHON_PROGRAMS,
): PeerProgram | Skipped {
  if (driver.emulated) return { name, reason: NO_GPU };
  // It opens libcuda itself; a different one here would not be comparable.
  if (driver.name !== 'cuda')
    return { name, reason: `it opens its own libcuda, not ${driver.library}` };
  // -B: leaves no __pycache__ in the tree.
  const program = join(folder('python'), PYTHON_PROGRAMS[name]);
  return { name, command: 'python3', args: ['-B', program] };
}
