/** A copy of the project in which one file at a time is changed, and commands with a time limit run. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join, relative } from 'node:path';
import { createInterface } from 'node:readline';

/** The folders of a copy. It makes others for itself. */
const FOLDERS: readonly string[] = ['.github', 'bench', 'docs', 'ffi', 'src', 'test'];

/** By this variable the processes of a run are found, wherever they were moved to. */
const MARK = 'CUFFI_MUTANT_RUN';

export interface Outcome {
  /** The exit code; null where the run was ended from here. */
  readonly code: number | null;
  readonly timedOut: boolean;
  /** The line at which the run was ended. */
  readonly stoppedAt: string | undefined;
  /** The last lines that it wrote. */
  readonly tail: readonly string[];
}

export class TreeCopy {
  readonly folder: string;
  #restore: (() => void) | undefined;

  constructor(root: string, folder: string) {
    this.folder = folder;
    cpSync(root, folder, {
      recursive: true,
      filter: (file) => {
        const place = relative(root, file);
        const [top = '', ...rest] = place.split('/');
        if (place === 'bench/results') return false;
        return (
          place === '' || FOLDERS.includes(top) || (rest.length === 0 && statSync(file).isFile())
        );
      },
    });
    symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  }

  /** Puts another text in the place of a file's, until `restore()`. */
  plant(file: string, text: string): void {
    this.plantAll(new Map([[file, text]]));
  }

  /** Puts other texts in the places of some files', until `restore()`. */
  plantAll(texts: ReadonlyMap<string, string>): void {
    this.restore();
    const originals = [...texts.keys()].map((file): [string, string] => {
      const path = join(this.folder, file);
      return [path, readFileSync(path, 'utf8')];
    });
    for (const [file, text] of texts) replace(join(this.folder, file), text);
    this.#restore = () => {
      for (const [path, original] of originals) replace(path, original);
    };
  }

  restore(): void {
    this.#restore?.();
    this.#restore = undefined;
  }

  /**
   * Runs a command in the copy. No process that it started is left when the promise settles.
   *
   * @param stopAt a line of stdout that settles the outcome
   */
  async run(
    command: readonly string[],
    {
      limitMs,
      env = {},
      stopAt = () => false,
      signal,
    }: {
      readonly limitMs: number;
      readonly env?: NodeJS.ProcessEnv;
      readonly stopAt?: (line: string) => boolean;
      readonly signal?: AbortSignal;
    },
  ): Promise<Outcome> {
    signal?.throwIfAborted();
    // What earlier runs have left, of which some were killed; but for what tsx has compiled.
    const temporary = join(this.folder, 'tmp');
    mkdirSync(temporary, { recursive: true });
    const left = readdirSync(temporary).filter((name) => !name.startsWith('tsx-'));
    for (const name of ['.out', ...left.map((each) => join('tmp', each))])
      rmSync(join(this.folder, name), { recursive: true, force: true, maxRetries: 5 });

    const mark = randomUUID();
    const [file = '', ...args] = command;
    const child = spawn(file, args, {
      cwd: this.folder,
      // In a group of its own.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...cleanEnvironment(), TMPDIR: temporary, ...env, [MARK]: mark },
    });
    let timedOut = false;
    let stoppedAt: string | undefined;
    const tail: string[] = [];
    const stop = (): void => killAll(child, mark);
    const timer = setTimeout(() => {
      timedOut = true;
      stop();
    }, limitMs);
    signal?.addEventListener('abort', stop);
    for (const [stream, watched] of [
      [child.stdout, true],
      [child.stderr, false],
    ] as const)
      createInterface({ input: stream }).on('line', (line) => {
        if (line.trim() !== '') tail.push(line);
        if (tail.length > 20) tail.shift();
        if (watched && stoppedAt === undefined && stopAt(line)) {
          stoppedAt = line;
          stop();
        }
      });
    try {
      const code = await new Promise<number | null>((resolve, reject) => {
        child.once('error', reject);
        // Children of it may hold the pipes open: they go first.
        child.once('exit', stop);
        child.once('close', resolve);
      });
      return { code, timedOut, stoppedAt, tail };
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', stop);
      stop();
      signal?.throwIfAborted();
    }
  }
}

/** A new file, so that no other name of the old one shows the text. */
function replace(path: string, text: string): void {
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}

/** Without what would make a run of tests believe that it runs within another. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  const { NODE_TEST_CONTEXT, FORCE_COLOR, NODE_OPTIONS, CUFFI_TEST_COMPILED, ...env } = process.env;
  return env;
}

/** Ends a process, its group, and whatever else carries its mark, until nothing does. */
function killAll({ pid }: ChildProcess, mark: string): void {
  if (pid === undefined) return;
  kill(-pid);
  for (let round = 0; round < 5; round++) {
    const left = marked(mark);
    if (left.length === 0) return;
    for (const each of left) kill(each);
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** The processes that were started with a mark. Ended ones have no environment any more. */
function marked(mark: string): number[] {
  const wanted = `${MARK}=${mark}`;
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return (
          pid !== process.pid && readFileSync(`/proc/${pid}/environ`, 'latin1').includes(wanted)
        );
      } catch {
        return false;
      }
    });
}
