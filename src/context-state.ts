import { OUT0, OUT1, readInt32, readSize } from '../ffi/arena.ts';
import { type LimitName, limits } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { checkInteger } from './arguments.ts';
import { check } from './check.ts';
import type { ContextMemory } from './context-memory.ts';

/** Free and total memory of a device, in bytes. */
export interface MemoryInfo {
  readonly free: number;
  readonly total: number;
}

/** A context as the driver keeps its accounts: its memory, its limits, its priorities. */
export abstract class ContextState {
  /** @internal The memory manager that serves it, where one was set. */
  abstract get memory(): ContextMemory | undefined;

  abstract run<T>(use: () => T): T;

  /**
   * Free and total memory of the device, in bytes; other processes' use counts. A memory manager
   * that was set answers instead.
   */
  memoryInfo(): MemoryInfo {
    return this.memory?.getMemoryInfo() ?? this.deviceMemoryInfo();
  }

  /** @internal What the driver says of the device's memory. */
  deviceMemoryInfo(): MemoryInfo {
    this.run(() => check(cu.cuMemGetInfo_v2(OUT0, OUT1), 'cuMemGetInfo_v2'));
    return { free: readSize(OUT0), total: readSize(OUT1) };
  }

  /** A limit of the context, e.g. `stackSize`, in bytes (depths and counts as such). */
  limit(name: LimitName): number {
    const number = limitNumber(name);
    this.run(() => check(cu.cuCtxGetLimit(OUT0, number), 'cuCtxGetLimit', () => `reading ${name}`));
    return readSize(OUT0);
  }

  /** Asks for another limit; the driver may round it. Answers what it is now. */
  setLimit(name: LimitName, value: number): number {
    const number = limitNumber(name);
    checkInteger(value, name);
    this.run(() =>
      check(cu.cuCtxSetLimit(number, value), 'cuCtxSetLimit', () => `setting ${name} to ${value}`),
    );
    return this.limit(name);
  }

  /** The priorities that streams can have; a lower number is a higher priority. */
  streamPriorityRange(): { readonly least: number; readonly greatest: number } {
    this.run(() =>
      check(cu.cuCtxGetStreamPriorityRange(OUT0, OUT1), 'cuCtxGetStreamPriorityRange'),
    );
    return { least: readInt32(OUT0), greatest: readInt32(OUT1) };
  }
}

function limitNumber(name: LimitName): number {
  if (!Object.hasOwn(limits, name))
    throw new TypeError(
      `there is no limit '${String(name)}'; known: ${Object.keys(limits).join(', ')}`,
    );
  return limits[name];
}
