/** The folders that a run of the tests gives its processes, and what those leave behind. */
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';

/** How long a process may take to vanish that was killed: the kernel frees its memory first. */
const VANISHES_MS = 5_000;

/**
 * Where tsx keeps what it has compiled, a folder for each user, and Node from 22.1 on for programs
 * that ask for it, as npm and tsc do. The next run uses it, too.
 */
const CACHE = /^(tsx-\d+|node-compile-cache)$/;

export class RunFolders implements Disposable {
  readonly #base: string;

  constructor() {
    const outside = tmpdir();
    // The path of a socket has 107 bytes at most, so this one is short.
    this.#base = mkdtempSync(join(outside, 'cuffi-'));
    const { TMPDIR, XDG_RUNTIME_DIR } = this.environment;
    mkdirSync(XDG_RUNTIME_DIR, { mode: 0o700 });
    // Some tests are two users, as who may both write to /tmp.
    mkdirSync(TMPDIR);
    chmodSync(TMPDIR, 0o1777);
    chmodSync(this.#base, 0o711);
    for (const name of readdirSync(outside).filter((name) => CACHE.test(name))) {
      symlinkSync(join(outside, name), join(TMPDIR, name));
    }
  }

  get environment(): { readonly TMPDIR: string; readonly XDG_RUNTIME_DIR: string } {
    return { TMPDIR: join(this.#base, 'tmp'), XDG_RUNTIME_DIR: join(this.#base, 'run') };
  }

  /** Returns what is still there, a line each. Processes are killed. */
  left(): string[] {
    const { TMPDIR, XDG_RUNTIME_DIR } = this.environment;
    const files = readdirSync(TMPDIR).filter((name) => !CACHE.test(name));
    // The folder of its sockets stays where cuffi has made it.
    const sockets = readdirSync(XDG_RUNTIME_DIR, { recursive: true, withFileTypes: true })
      .filter((entry) => !entry.isDirectory())
      .map((entry) => relative(XDG_RUNTIME_DIR, join(entry.parentPath, entry.name)));
    return [
      ...files.map((name) => `TMPDIR/${name}`),
      ...sockets.map((name) => `XDG_RUNTIME_DIR/${name}`),
      ...this.#killProcesses(),
    ];
  }

  [Symbol.dispose](): void {
    rmSync(this.#base, { recursive: true, force: true, maxRetries: 5 });
  }

  /** Kills the processes that left their group. Those that were in it are dead, or about to be. */
  #killProcesses(): string[] {
    const end = performance.now() + VANISHES_MS;
    let found = this.#processes();
    while (found.length > 0 && performance.now() < end) {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
      found = this.#processes();
    }
    for (const { pid } of found) process.kill(pid, 'SIGKILL');
    return found.map(({ pid, command }) => `process ${pid}: ${command}`);
  }

  /** The processes that were given these folders. */
  #processes(): { readonly pid: number; readonly command: string }[] {
    return readdirSync('/proc')
      .map(Number)
      .filter((pid) => pid > 0 && pid !== process.pid)
      .flatMap((pid) => {
        try {
          if (!readFileSync(`/proc/${pid}/environ`, 'latin1').includes(this.#base)) return [];
          const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
          return [{ pid, command }];
        } catch {
          // It has ended, or is another user's.
          return [];
        }
      });
  }
}
