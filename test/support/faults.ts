/** Drivers for tests of what happens when a call fails, and of what is left behind. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import type { Driver, FunctionName } from '../../ffi/functions.ts';
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

/** A driver like another, whose every call of one function answers `status` and does nothing. */
export const broken = (driver: Driver, name: FunctionName, status: CUresult): Driver =>
  withCalls(driver, { [name]: () => status });

/** Which functions give a handle through their first argument, and which take it back. */
const pairs: readonly (readonly [opens: FunctionName, closes: FunctionName])[] = [
  ['cuMemAlloc_v2', 'cuMemFree_v2'],
  ['cuMemAllocPitch_v2', 'cuMemFree_v2'],
  ['cuMemPoolCreate', 'cuMemPoolDestroy'],
  ['cuMemAllocFromPoolAsync', 'cuMemFreeAsync'],
  ['cuMemAddressReserve', 'cuMemAddressFree'],
  ['cuMemCreate', 'cuMemRelease'],
  ['cuStreamCreateWithPriority', 'cuStreamDestroy_v2'],
  ['cuEventCreate', 'cuEventDestroy_v2'],
  ['cuIpcOpenMemHandle_v2', 'cuIpcCloseMemHandle'],
  ['cuMemHostAlloc', 'cuMemFreeHost'],
  ['cuMemHostRegister_v2', 'cuMemHostUnregister'],
  ['cuMemAllocManaged', 'cuMemFree_v2'],
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
