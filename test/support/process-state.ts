/** What this process holds: compared before and after, so that nothing is left behind. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { countPendingCloses } from '../../ffi/linux/close-fd.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { Context } from '../../src/context.ts';
import { onHardware } from './driver.ts';

export interface ProcessState {
  readonly descriptors: number;
  /** Mapped ranges of memfds and of the driver's devices. */
  readonly mappings: number;
  /** Free device memory, in bytes. */
  readonly free: number;
}

const isShared = (line: string): boolean => /memfd:|\/dev\/nvidia/.test(line);

/**
 * As {@link processState}, but for the memory that the driver keeps for code and graphs once it has
 * had some: on hardware the device's memory is left aside.
 */
export function stateBesideCode(): Partial<ProcessState> {
  const { free, ...rest } = processState();
  return onHardware ? rest : { ...rest, free };
}

/**
 * The state of this process; a context is opened for it.
 *
 * @param of what the link of each descriptor that is counted must match
 */
export function processState(context: Context = Context.primary(), of?: RegExp): ProcessState {
  return {
    descriptors: openDescriptors(of),
    mappings: readFileSync('/proc/self/maps', 'utf8').split('\n').filter(isShared).length,
    free: context.memoryInfo().free,
  };
}

/** What a driver takes at a time. */
const CHUNK = 2 << 20;

/** On hardware a driver keeps one chunk more, once, whenever it likes: that is left aside. */
export const withoutChunk = (now: ProcessState, before: ProcessState): ProcessState =>
  onHardware && now.free < before.free && now.free + CHUNK >= before.free
    ? { ...now, free: before.free }
    : now;

/**
 * Waits until this process holds what it held before; a driver may need a moment for what a process
 * had that was killed.
 */
export async function comesBackTo(
  before: ProcessState,
  what?: string,
  ask: () => ProcessState | Promise<ProcessState> = processState,
): Promise<void> {
  let now = withoutChunk(await ask(), before);
  for (let tries = 0; tries < 500 && !isDeepStrictEqual(now, before); tries++) {
    // Mostly it is only a moment.
    await delay(tries < 20 ? 1 : 10);
    now = withoutChunk(await ask(), before);
  }
  assert.deepEqual(now, before, what);
}

/**
 * Whether a descriptor is of a file with a name, as `/dev/nvidiactl` and memfds are not, or the one
 * by which a thread watches all others, which is opened at its first use and stays.
 */
function isUncounted(fd: string, of = /./): boolean {
  try {
    const link = readlinkSync(`/proc/self/fd/${fd}`);
    return /^\/(?!memfd:|dev\/)|eventpoll/.test(link) || !of.test(link);
  } catch {
    // Closed since, as is the one that the folder was read through.
    return true;
  }
}

const MAX_TRIES = 2000;

/** Blocks until what is discarded is closed, unless that takes for ever. */
export function discardsDone(): void {
  const word = new Int32Array(new SharedArrayBuffer(4));
  for (let tries = 0; countPendingCloses() > 0 && tries < MAX_TRIES; tries++)
    Atomics.wait(word, 0, 0, 1);
}

/** All descriptors that this process has open. */
export function descriptorNumbers(): ReadonlySet<string> {
  discardsDone();
  return new Set(readdirSync('/proc/self/fd'));
}

/** What was opened since, and is: where each leads to. See {@link openDescriptors}. */
export const openedSince = (before: ReadonlySet<string>): string[] =>
  [...descriptorNumbers()]
    .filter((fd) => !before.has(fd) && !isUncounted(fd))
    .map((fd) => readlinkSync(`/proc/self/fd/${fd}`));

/**
 * How many descriptors this process has open, other than epolls and files on disk: the thread that
 * loads TypeScript opens and closes those of its cache when it likes.
 *
 * @param of what the link of each must match
 */
export function openDescriptors(of?: RegExp): number {
  discardsDone();
  return readdirSync('/proc/self/fd').filter((fd) => !isUncounted(fd, of)).length;
}

/**
 * Waits until as many descriptors are open as before. A connection that is closed keeps its socket
 * until what was begun to be sent has gone out, which takes turns of the event loop.
 */
export async function descriptorsReturnTo(before: number): Promise<void> {
  const until = performance.now() + 10_000;
  while (openDescriptors() !== before && performance.now() < until)
    await new Promise((resolve) => setTimeout(resolve, 1));
  assert.equal(openDescriptors(), before, 'descriptors');
}

/** Which anonymous mappings of ours are open: counted where they are made and unmade. */

const MAP_PRIVATE_ANONYMOUS = 0x22;
type Call = (...args: number[]) => unknown;

/** Puts another function in the place of one of libc, for all that call it. */
export function replaceLibc(name: keyof typeof libc, value: Call): void {
  Object.defineProperty(libc, name, { configurable: true, enumerable: true, value });
}

/** Writes down every private anonymous mapping from now on; dispose stops. */
export function watchMappings(): Disposable & { readonly open: ReadonlyMap<number, number> } {
  const open = new Map<number, number>();
  const { mmap, munmap } = libc;
  replaceLibc('mmap', (...args) => {
    const address = mmap(...args);
    const [at, byteLength = 0, , flags] = args;
    if (at === 0 && flags === MAP_PRIVATE_ANONYMOUS && typeof address === 'number')
      open.set(address, byteLength);
    return address;
  });
  replaceLibc('munmap', (...args) => {
    const [address = 0, byteLength] = args;
    if (open.get(address) === byteLength) open.delete(address);
    return munmap(...args);
  });
  return {
    open,
    [Symbol.dispose]: () => {
      replaceLibc('mmap', mmap);
      replaceLibc('munmap', munmap);
    },
  };
}

/** Garbage, collected when a test asks for it; and what is mapped where. */

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;

/** Collects garbage until `condition` holds; returns whether it came to hold. */
export async function collectUntil(condition: () => boolean): Promise<boolean> {
  // A finalizer runs in a turn of its own after the collection, its release in another.
  for (let turns = 0; turns < 100 && !condition(); turns += 1) {
    gc();
    await turn();
  }
  return condition();
}

/** Collects garbage, and runs what finalizers queue. */
export async function collectGarbage(): Promise<void> {
  let turns = 0;
  await collectUntil(() => {
    turns += 1;
    return turns > 20;
  });
}

/** Whether an address of this process is mapped. */
export const isMapped = (address: number): boolean =>
  readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .some((line) => {
      const [begin = '', end = ''] = line.split(' ', 1)[0]?.split('-') ?? [];
      return address >= Number.parseInt(begin, 16) && address < Number.parseInt(end, 16);
    });
