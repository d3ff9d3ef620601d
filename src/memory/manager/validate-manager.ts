/** Checks what a memory manager returns: no result of a plugin is trusted. */

import type { Context, MemoryInfo } from '../../context.ts';
import { NotSupportedError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { type ClassOf, checkInstance, classNameOf, formatBytes } from '../../validate.ts';
import type { BaseMemoryManager } from './host-only-manager.ts';
import { IpcHandle } from './ipc-handle.ts';
import { MemoryPointer, PinnedPointer } from './memory-pointer.ts';

/** The version of the interface that cuffi supports. */
const INTERFACE_VERSION = 1;

const METHODS = [
  'initialize',
  'memalloc',
  'memhostalloc',
  'mempin',
  'getIpcHandle',
  'getMemoryInfo',
  'reset',
  'deferCleanup',
] as const;

/** @throws NotSupportedError for any other version */
export function checkVersion(name: string, version: unknown): void {
  if (version !== INTERFACE_VERSION)
    throw new NotSupportedError(
      `${name} implements version ${String(version)} of the memory manager interface: version ${INTERFACE_VERSION} is required`,
    );
}

/** @throws TypeError for a missing method, NotSupportedError for another version */
export function checkManager(manager: BaseMemoryManager): BaseMemoryManager {
  const name = classNameOf(manager);
  const missing = METHODS.filter((method) => typeof manager[method] !== 'function');
  if (missing.length > 0) throw new TypeError(`${name} lacks ${missing.join(', ')}`);
  checkVersion(name, manager.interfaceVersion);
  return manager;
}

type Pointer = MemoryPointer | PinnedPointer;

/**
 * Every pointer that a manager returned. If it were returned again, one user's close would free the
 * other's memory.
 */
const returnedPointers = new WeakSet<Pointer>();

/** What a returned pointer must satisfy. */
interface PointerRequirements<P extends Pointer> {
  readonly type: ClassOf<P>;
  readonly context: Context;
  readonly byteLength: number;
}

/**
 * Checks a pointer that a manager returned. Closes an unsuitable one.
 *
 * @param call the method, with the manager's name
 * @throws TypeError that says what must be returned
 */
export function checkPointer<P extends Pointer>(
  call: string,
  result: unknown,
  required: PointerRequirements<P>,
): P {
  const isPointer = result instanceof MemoryPointer || result instanceof PinnedPointer;
  if (isPointer && returnedPointers.has(result))
    throw new TypeError(
      `${call} must return a new pointer for each call, not one that it returned before`,
    );
  if (isPointer) returnedPointers.add(result);
  try {
    const pointer = checkInstance(result, required.type, `what ${call} returns`);
    assertFits(call, pointer, required);
    return pointer;
  } catch (error) {
    if (isPointer) releaseOrWarn(() => result.close());
    throw error;
  }
}

function assertFits(
  call: string,
  pointer: Pointer,
  { context, byteLength }: PointerRequirements<Pointer>,
): void {
  if (pointer.closed) throw new TypeError(`${call} must return an open pointer, not a closed one`);
  if (pointer.context !== context)
    throw new TypeError(`${call} must return memory of its own context, not of another`);
  if (pointer.byteLength < byteLength)
    throw new TypeError(
      `${call} must return at least ${formatBytes(byteLength)}, not ${pointer.byteLength}`,
    );
}

/** @throws TypeError unless both are sizes and `free` is at most `total` */
export function checkMemoryInfo(call: string, result: unknown): MemoryInfo {
  const { free, total } = (result ?? {}) as { readonly free?: unknown; readonly total?: unknown };
  const isSize = (value: unknown): value is number =>
    Number.isSafeInteger(value) && (value as number) >= 0;
  if (!isSize(free) || !isSize(total) || free > total)
    throw new TypeError(
      `${call} must return { free, total }, both in bytes and free at most total, not { ${String(free)}, ${String(total)} }`,
    );
  return { free, total };
}

/** @throws TypeError for a value that is not a Disposable */
export function checkDisposable(call: string, result: unknown): Disposable {
  if (typeof (result as Partial<Disposable> | undefined)?.[Symbol.dispose] !== 'function')
    throw new TypeError(`${call} must return a Disposable`);
  return result as Disposable;
}

/** What a handle must contain for the requested memory. */
export interface ExpectedHandle {
  readonly byteLength: number;
  readonly device: string;
  /** Where the memory starts in its allocation, according to the driver. */
  readonly offset: number;
}

/** @throws TypeError for a handle of other memory */
export function checkIpcHandle(call: string, result: unknown, expected: ExpectedHandle): IpcHandle {
  const handle = checkInstance(result, IpcHandle, `what ${call} returns`);
  const wrong =
    (handle.byteLength !== expected.byteLength &&
      `byteLength ${expected.byteLength}, not ${handle.byteLength}`) ||
    (handle.offset !== expected.offset && `offset ${expected.offset}, not ${handle.offset}`) ||
    (handle.sourceInfo !== expected.device &&
      `sourceInfo ${expected.device}, not ${handle.sourceInfo}`);
  if (wrong) throw new TypeError(`${call} must return a handle with ${wrong}`);
  return handle;
}
