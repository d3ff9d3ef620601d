/** Checks what a memory manager returns: no result of a plugin is trusted. */

import type { Context, MemoryInfo } from '../../context.ts';
import { NotSupportedError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { type ClassOf, checkInstance, classNameOf } from '../../validate.ts';
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
  answer: unknown,
  asked: PointerRequirements<P>,
): P {
  const isPointer = answer instanceof MemoryPointer || answer instanceof PinnedPointer;
  if (isPointer && returnedPointers.has(answer))
    throw new TypeError(`${call} must return a pointer of its own for each call, not one again`);
  if (isPointer) returnedPointers.add(answer);
  try {
    const pointer = checkInstance(answer, asked.type, `what ${call} returns`);
    assertFits(call, pointer, asked);
    return pointer;
  } catch (error) {
    if (isPointer) releaseOrWarn(() => answer.close());
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
      `${call} must return at least ${byteLength} bytes, not ${pointer.byteLength}`,
    );
}

/** @throws TypeError unless both are sizes and `free` is at most `total` */
export function checkMemoryInfo(call: string, answer: unknown): MemoryInfo {
  const { free, total } = (answer ?? {}) as { readonly free?: unknown; readonly total?: unknown };
  const isSize = (value: unknown): value is number =>
    Number.isSafeInteger(value) && (value as number) >= 0;
  if (!isSize(free) || !isSize(total) || free > total)
    throw new TypeError(
      `${call} must return { free, total }, both in bytes and free at most total, not { ${String(free)}, ${String(total)} }`,
    );
  return { free, total };
}

/** @throws TypeError for a value that is not a Disposable */
export function checkDisposable(call: string, answer: unknown): Disposable {
  if (typeof (answer as Partial<Disposable> | undefined)?.[Symbol.dispose] !== 'function')
    throw new TypeError(`${call} must return a Disposable`);
  return answer as Disposable;
}

/** What a handle must contain for the requested memory. */
export interface ExpectedHandle {
  readonly byteLength: number;
  readonly device: string;
  /** Where the memory starts in its allocation, according to the driver. */
  readonly offset: number;
}

/** @throws TypeError for a handle of other memory */
export function checkIpcHandle(call: string, answer: unknown, named: ExpectedHandle): IpcHandle {
  const handle = checkInstance(answer, IpcHandle, `what ${call} returns`);
  const wrong =
    (handle.byteLength !== named.byteLength &&
      `byteLength ${named.byteLength}, not ${handle.byteLength}`) ||
    (handle.offset !== named.offset && `offset ${named.offset}, not ${handle.offset}`) ||
    (handle.sourceInfo !== named.device && `sourceInfo ${named.device}, not ${handle.sourceInfo}`);
  if (wrong) throw new TypeError(`${call} must return a handle with ${wrong}`);
  return handle;
}
