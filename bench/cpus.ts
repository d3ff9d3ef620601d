/**
 * Which CPUs what is measured runs on. On a shared machine one CPU may take twice the time of
 * another, whose other half nobody uses: left to itself, what a contestant comes to is which one it
 * was given. So the contestants of a case, which take turns, share one CPU, and the other processes
 * of all of them another one. Only main threads are held there: what a library does beside them
 * stays beside them.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';

/** Suites of single calls and short ways: what takes threads, or many processes, takes all CPUs. */
const PINNED = new Set(['hand-over', 'calls', 'memory', 'arrays', 'kernels']);
/** One for each side, and as many for the rest of the machine. */
const MIN_CPUS = 4;
const TRIES = 5;
const STEPS = 2_000_000;

/** The two CPUs of a pass. */
export class Cpus {
  readonly #all: string;
  readonly #here: number;
  readonly #there: number;
  /** Where each process was put last. */
  readonly #places = new Map<number, string>();

  private constructor(all: string, here: number, there: number) {
    this.#all = all;
    this.#here = here;
    this.#there = there;
  }

  /** The two that are quickest now; undefined where there are few, or no `taskset`. */
  static choose(): Cpus | undefined {
    const status = readFileSync('/proc/self/status', 'utf8');
    const all = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status)?.[1] ?? '';
    const cpus = numbersOf(all);
    if (cpus.length < MIN_CPUS || !put(process.pid, all)) return undefined;
    spin();
    const timed = cpus.map((cpu) => {
      put(process.pid, String(cpu));
      return { cpu, ms: spin() };
    });
    put(process.pid, all);
    timed.sort((a, b) => a.ms - b.ms);
    const here = timed[0]?.cpu as number;
    const halves = siblingsOf(here);
    const there = timed.find(({ cpu }) => !halves.includes(cpu))?.cpu;
    return there === undefined ? undefined : new Cpus(all, here, there);
  }

  /** Puts this process, those that take turns with it, and the children of each in their places. */
  arrange(suite: string, others: readonly number[]): void {
    const isPinned = PINNED.has(suite);
    const sides = [process.pid, ...others];
    for (const pid of sides) this.#put(pid, isPinned ? String(this.#here) : this.#all);
    for (const { pid, parent } of processes())
      if (sides.includes(parent) && !sides.includes(pid))
        this.#put(pid, isPinned ? String(this.#there) : this.#all);
  }

  #put(pid: number, place: string): void {
    if (this.#places.get(pid) === place) return;
    // All threads of a child begin where the one was that started it.
    if (!this.#places.has(pid)) put(pid, this.#all, '-acp');
    // One that has ended meanwhile needs none.
    put(pid, place);
    this.#places.set(pid, place);
  }
}

/** Holds the main thread of a process to a list of CPUs, or by `-acp` all that it has now. */
const put = (pid: number, place: string, flags = '-cp'): boolean =>
  spawnSync('taskset', [flags, place, String(pid)], { stdio: 'ignore' }).status === 0;

/** How long the same sum takes, in milliseconds: the median of some tries. */
function spin(): number {
  const times = Array.from({ length: TRIES }, () => {
    const begin = performance.now();
    let sum = 0;
    for (let step = 0; step < STEPS; step += 1) sum = (sum * 31 + step) | 0;
    return performance.now() - begin + (sum === 1 ? 1 : 0);
  });
  return times.sort((a, b) => a - b)[TRIES >> 1] as number;
}

/** `0-2,5` as 0, 1, 2, 5. */
export const numbersOf = (list: string): number[] =>
  list.split(',').flatMap((range) => {
    const [first, last = first] = (range.match(/\d+/g) ?? []).map(Number);
    if (first === undefined || last === undefined) return [];
    return Array.from({ length: last - first + 1 }, (_, at) => first + at);
  });

/** The CPU itself, and the other halves of its core. */
function siblingsOf(cpu: number): number[] {
  try {
    const path = `/sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`;
    return [cpu, ...numbersOf(readFileSync(path, 'utf8').trim())];
  } catch {
    return [cpu];
  }
}

function* processes(): Generator<{ readonly pid: number; readonly parent: number }> {
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8');
      // Behind the program's name, which may hold anything.
      const [, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      yield { pid: Number(name), parent: Number(parent) };
    } catch {
      // It has ended.
    }
  }
}
