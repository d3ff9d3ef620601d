/** What this process holds: compared before and after, so that nothing is left behind. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { Context } from '../../src/context.ts';
import { openDescriptors } from './descriptors.ts';
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

/** The state of this process; a context is opened for it. */
export function processState(context: Context = Context.primary()): ProcessState {
  return {
    descriptors: openDescriptors(),
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
    await delay(10);
    now = withoutChunk(await ask(), before);
  }
  assert.deepEqual(now, before, what);
}
