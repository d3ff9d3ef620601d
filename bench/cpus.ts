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
/** How many times as long the same sum may take before another CPU is looked for. */
const SLOW = 1.25;
const TRIES = 7;
const STEPS = 200_000;
/** Looking for another takes a tenth of it. */
const MIN_MS_BETWEEN_LOOKS = 1000;

/** The two CPUs of a pass, which others take their place of when they become slow. */
export class Cpus {
  readonly #all: string;
  /** Where each process was put last. */
  readonly #places = new Map<number, string>();
  #here = 0;
  #there = 0;
  /** How long the sum takes on a quick one. */
  #quickMs = Number.POSITIVE_INFINITY;
  #lookedAt = 0;
  /** What was arranged last, where it holds anything to a CPU. */
  #pinned: { readonly suite: string; readonly others: readonly number[] } | undefined;
  /** Whether those that take turns have processes of their own. */
  #hasChildren = false;

  private constructor(all: string) {
    this.#all = all;
  }

  /** The two that are quickest now; undefined where there are few, or no `taskset`. */
  static choose(): Cpus | undefined {
    const status = readFileSync('/proc/self/status', 'utf8');
    const all = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status)?.[1] ?? '';
    if (numbersOf(all).length < MIN_CPUS || !put(process.pid, all)) return undefined;
    const cpus = new Cpus(all);
    // The first time it is not compiled yet.
    spin();
    return cpus.#chooseTwo() ? cpus : undefined;
  }

  /** Puts this process, those that take turns with it, and the children of each in their places. */
  arrange(suite: string, others: readonly number[]): void {
    const isPinned = PINNED.has(suite);
    const sides = [process.pid, ...others];
    for (const pid of sides) this.#put(pid, isPinned ? String(this.#here) : this.#all);
    this.#hasChildren = false;
    for (const { pid, parent } of processes()) {
      if (!sides.includes(parent) || sides.includes(pid)) continue;
      this.#hasChildren = true;
      this.#put(pid, isPinned ? String(this.#there) : this.#all);
    }
    this.#pinned = isPinned ? { suite, others } : undefined;
  }

  /**
   * Where one of the two has become slow, as somebody else on the machine uses it, all that is there
   * goes to a quick one. For between two rounds: all who take turns in one have the same.
   */
  keepQuick(): void {
    if (!this.#pinned) return;
    const isQuick = this.#isQuick(this.#here) && (!this.#hasChildren || this.#isQuick(this.#there));
    if (!isQuick && performance.now() - this.#lookedAt > MIN_MS_BETWEEN_LOOKS) this.#chooseTwo();
    this.arrange(this.#pinned.suite, this.#pinned.others);
  }

  /** Answers whether there are two; this process is then anywhere. */
  #chooseTwo(): boolean {
    const timed = numbersOf(this.#all).map((cpu) => ({ cpu, ms: this.#time(cpu) }));
    timed.sort((a, b) => a.ms - b.ms);
    const [first] = timed;
    if (!first) return false;
    const halves = siblingsOf(first.cpu);
    const second = timed.find(({ cpu }) => !halves.includes(cpu));
    if (!second) return false;
    this.#here = first.cpu;
    this.#there = second.cpu;
    // Where none is as quick as one was before, there is nothing to look for.
    this.#quickMs = second.ms;
    this.#lookedAt = performance.now();
    return true;
  }

  #isQuick(cpu: number): boolean {
    const ms = this.#time(cpu);
    this.#quickMs = Math.min(this.#quickMs, ms);
    return ms < SLOW * this.#quickMs;
  }

  /** How long the sum takes on a CPU, where this process is left. */
  #time(cpu: number): number {
    this.#put(process.pid, String(cpu));
    return spin();
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
