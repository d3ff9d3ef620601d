/**
 * Pins what is measured to CPUs. On a shared machine one CPU may be twice as slow as the next, so a
 * contestant's time would depend on the CPU that it happens to get. All contestants of a case of
 * short calls therefore share one CPU, and all their child processes another one.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';

/** Suites of short calls; all others use threads or many processes, and get all CPUs. */
const PINNED = new Set(['hand-over', 'calls', 'memory', 'arrays', 'kernels']);
/** Two for the contestants, and as many for the rest of the machine. */
const MIN_CPUS = 4;
/** A CPU counts as slow if the same sum takes so many times as long as before. */
const SLOW = 1.25;
const TRIES = 7;
const STEPS = 200_000;
/** Timing all CPUs takes a tenth of this. */
const MIN_MS_BETWEEN_LOOKS = 1000;

/** The two CPUs of a pass. They are replaced when they become slow. */
export class Cpus {
  readonly #all: string;
  /** The CPUs that each process was given last. */
  readonly #places = new Map<number, string>();
  /** For this process and the peers. */
  #here = 0;
  /** For the children of all of these. */
  #there = 0;
  /** How long the sum takes on a fast CPU. */
  #fastMs = Number.POSITIVE_INFINITY;
  #lookedAt = 0;
  #pinned: { readonly suite: string; readonly peers: readonly number[] } | undefined;
  #hasChildren = false;

  private constructor(all: string) {
    this.#all = all;
  }

  /** Chooses the two fastest CPUs; undefined if there are fewer than four, or no `taskset`. */
  static choose(): Cpus | undefined {
    const status = readFileSync('/proc/self/status', 'utf8');
    const all = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status)?.[1] ?? '';
    if (numbersOf(all).length < MIN_CPUS || !setAffinity(process.pid, all)) return undefined;
    const cpus = new Cpus(all);
    // V8 compiles it.
    timeSum();
    return cpus.#chooseTwo() ? cpus : undefined;
  }

  /** Moves this process, the peers and the children of each to their CPUs. */
  arrange(suite: string, peers: readonly number[]): void {
    const isPinned = PINNED.has(suite);
    const sides = [process.pid, ...peers];
    for (const pid of sides) this.#place(pid, isPinned ? String(this.#here) : this.#all);
    const children = childrenOf(sides);
    for (const pid of children) this.#place(pid, isPinned ? String(this.#there) : this.#all);
    this.#hasChildren = children.length > 0;
    this.#pinned = isPinned ? { suite, peers } : undefined;
  }

  /** Replaces a CPU that became slow. Call it between two rounds, so that a round has one CPU. */
  replaceSlow(): void {
    if (!this.#pinned) return;
    const isFast = this.#isFast(this.#here) && (!this.#hasChildren || this.#isFast(this.#there));
    if (!isFast && performance.now() - this.#lookedAt > MIN_MS_BETWEEN_LOOKS) this.#chooseTwo();
    this.arrange(this.#pinned.suite, this.#pinned.peers);
  }

  #chooseTwo(): boolean {
    const timed = numbersOf(this.#all).map((cpu) => ({ cpu, ms: this.#timeOn(cpu) }));
    timed.sort((a, b) => a.ms - b.ms);
    const [first] = timed;
    const siblings = first && siblingsOf(first.cpu);
    const second = timed.find(({ cpu }) => !siblings?.includes(cpu));
    if (!first || !second) return false;
    [this.#here, this.#there] = [first.cpu, second.cpu];
    this.#fastMs = second.ms;
    this.#lookedAt = performance.now();
    return true;
  }

  #isFast(cpu: number): boolean {
    const ms = this.#timeOn(cpu);
    this.#fastMs = Math.min(this.#fastMs, ms);
    return ms < SLOW * this.#fastMs;
  }

  #timeOn(cpu: number): number {
    this.#place(process.pid, String(cpu));
    return timeSum();
  }

  #place(pid: number, cpus: string): void {
    if (this.#places.get(pid) === cpus) return;
    // All threads of a new child inherited the CPU of the thread that started it.
    if (!this.#places.has(pid)) setAffinity(pid, this.#all, '-acp');
    setAffinity(pid, cpus);
    this.#places.set(pid, cpus);
  }
}

/** Pins the main thread of a process; with `-acp` all threads that it has now. */
const setAffinity = (pid: number, cpus: string, flags = '-cp'): boolean =>
  spawnSync('taskset', [flags, cpus, String(pid)], { stdio: 'ignore' }).status === 0;

/** The median time of the same sum, in milliseconds. */
function timeSum(): number {
  const times = Array.from({ length: TRIES }, () => {
    const begin = performance.now();
    let sum = 0;
    for (let step = 0; step < STEPS; step += 1) sum = (sum * 31 + step) | 0;
    return performance.now() - begin + (sum === 1 ? 1 : 0);
  });
  return times.sort((a, b) => a - b)[TRIES >> 1] as number;
}

/** Parses the kernel's lists: `0-2,5` is 0, 1, 2, 5. */
export const numbersOf = (list: string): number[] =>
  list.split(',').flatMap((range) => {
    const [first, last = first] = (range.match(/\d+/g) ?? []).map(Number);
    if (first === undefined || last === undefined) return [];
    return Array.from({ length: last - first + 1 }, (_, at) => first + at);
  });

/** The CPU itself and its hyperthreads. */
function siblingsOf(cpu: number): number[] {
  try {
    const path = `/sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`;
    return [cpu, ...numbersOf(readFileSync(path, 'utf8').trim())];
  } catch {
    return [cpu];
  }
}

function childrenOf(parents: readonly number[]): number[] {
  return readdirSync('/proc').flatMap((name) => {
    if (!/^\d+$/.test(name) || parents.includes(Number(name))) return [];
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8');
      // After the name of the program, which may contain anything.
      const [, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      return parents.includes(Number(parent)) ? [Number(name)] : [];
    } catch {
      // The process has ended.
      return [];
    }
  });
}
