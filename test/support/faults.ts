/** Drivers for tests of what happens when a call fails, and of what is left behind. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { type Driver, type FunctionName, functionNames } from '../../ffi/functions.ts';
import type { CUresult } from '../../ffi/results.ts';

type AnyCall = (...args: unknown[]) => CUresult;

/** A driver like another, but for some functions. */
const withCalls = (driver: Driver, calls: Partial<Record<FunctionName, AnyCall>>): Driver =>
  ({ ...driver, ...calls }) as Driver;

/** A driver like another, whose `nth` call of one function answers `status` and does nothing. */
export function failing(driver: Driver, name: FunctionName, nth: number, status: CUresult): Driver {
  const call = driver[name] as AnyCall;
  let count = 0;
  return withCalls(driver, {
    [name]: (...args: unknown[]) => {
      count += 1;
      return count === nth ? status : call(...args);
    },
  });
}

/** A driver like another, of which single calls are made to fail while it is in use. */
export function withFaults(
  driver: Driver,
  names: Iterable<FunctionName>,
): {
  readonly driver: Driver;
  /** From now on the `nth` call of a function answers `status` and does nothing, once. */
  fail(name: FunctionName, nth: number, status: CUresult): void;
} {
  const planned = new Map<FunctionName, { left: number; readonly status: CUresult }>();
  const calls: Partial<Record<FunctionName, AnyCall>> = {};
  for (const name of names) {
    const call = driver[name] as AnyCall;
    calls[name] = (...args) => {
      const plan = planned.get(name);
      if (plan) plan.left -= 1;
      if (plan?.left !== 0) return call(...args);
      planned.delete(name);
      return plan.status;
    };
  }
  return {
    driver: withCalls(driver, calls),
    fail: (name, nth, status) => planned.set(name, { left: nth, status }),
  };
}

/** A driver like another, whose every call of one function answers `status` and does nothing. */
export const broken = (driver: Driver, name: FunctionName, status: CUresult): Driver =>
  withCalls(driver, { [name]: () => status });

/** A driver like another that loses its device when told to: then every call that works on it fails. */
export function losing(
  driver: Driver,
  status: CUresult,
): { readonly driver: Driver; lose(): void } {
  let lost = false;
  const calls: Partial<Record<FunctionName, AnyCall>> = {};
  for (const name of functionNames) {
    if (name.startsWith('cuGet') || name.startsWith('cuDevice') || name.startsWith('cuCtx'))
      continue;
    const call = driver[name] as AnyCall;
    calls[name] = (...args) => (lost ? status : call(...args));
  }
  return {
    driver: withCalls(driver, calls),
    lose() {
      lost = true;
    },
  };
}

/** Which functions give a handle through their first argument, and which take it back. */
const pairs: readonly (readonly [opens: FunctionName, closes: FunctionName])[] = [
  ['cuMemAlloc_v2', 'cuMemFree_v2'],
  ['cuMemAlloc_v2', 'cuMemFreeAsync'],
  ['cuMemAllocPitch_v2', 'cuMemFree_v2'],
  ['cuMemPoolCreate', 'cuMemPoolDestroy'],
  ['cuMemAllocFromPoolAsync', 'cuMemFreeAsync'],
  ['cuMemAddressReserve', 'cuMemAddressFree'],
  ['cuMemCreate', 'cuMemRelease'],
  ['cuStreamCreateWithPriority', 'cuStreamDestroy_v2'],
  ['cuEventCreate', 'cuEventDestroy_v2'],
  ['cuIpcOpenMemHandle_v2', 'cuIpcCloseMemHandle'],
  ['cuMemPoolImportFromShareableHandle', 'cuMemPoolDestroy'],
  ['cuMemPoolImportPointer', 'cuMemFreeAsync'],
  ['cuMemPoolImportPointer', 'cuMemFree_v2'],
  ['cuMemImportFromShareableHandle', 'cuMemRelease'],
  ['cuMemHostAlloc', 'cuMemFreeHost'],
  ['cuMemHostRegister_v2', 'cuMemHostUnregister'],
  ['cuMemAllocManaged', 'cuMemFree_v2'],
  ['cuModuleLoadDataEx', 'cuModuleUnload'],
  ['cuStreamEndCapture', 'cuGraphDestroy'],
  ['cuGraphInstantiateWithFlags', 'cuGraphExecDestroy'],
];

/** A driver like another that writes down what is open. */
export function keepingBooks(driver: Driver): {
  readonly driver: Driver;
  /** What was opened and not closed, as `cuMemAlloc_v2 139637976727552`. */
  readonly open: ReadonlySet<string>;
} {
  const open = new Set<string>();
  const calls: Partial<Record<FunctionName, AnyCall>> = {};
  for (const [opens, closes] of pairs) {
    calls[opens] = (...args) => {
      const status = (driver[opens] as AnyCall)(...args);
      // Every caller in src/ passes OUT0; what is registered was there before.
      const handle = opens === 'cuMemHostRegister_v2' ? args[0] : readHandle(OUT0);
      if (status === 0) open.add(`${opens} ${String(handle)}`);
      return status;
    };
    calls[closes] = (...args) => {
      const status = (driver[closes] as AnyCall)(...args);
      if (status !== 0) return status;
      for (const [opened, closed] of pairs)
        if (closed === closes) open.delete(`${opened} ${String(args[0])}`);
      return status;
    };
  }
  return { driver: withCalls(driver, calls), open };
}
