/** Drivers for tests of what happens when a call fails, and of what is left behind. */
import { readUint64 } from '../../ffi/arena.ts';
import { type Driver, type FunctionName, functionNames, rows } from '../../ffi/functions.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { Address } from '../../ffi/types.ts';

import { leaves } from './left-open.ts';

type AnyCall = (...args: unknown[]) => CUresult;

/** A driver like another, but for some functions. */
const withCalls = (driver: Driver, calls: Partial<Record<FunctionName, AnyCall>>): Driver =>
  ({ ...driver, ...calls }) as Driver;

/** A release that fails leaves what it should have released; a lost device releases nothing. */
function leavesUnreleased(name: FunctionName): void {
  if (closing.has(name)) leaves(/^driver: /, `${name} was made to fail`, Number.POSITIVE_INFINITY);
}

/** A driver like another, whose `nth` call of one function answers `status` and does nothing. */
export function failing(driver: Driver, name: FunctionName, nth: number, status: CUresult): Driver {
  const call = driver[name] as AnyCall;
  let count = 0;
  return withCalls(driver, {
    [name]: (...args: unknown[]) => {
      count += 1;
      if (count !== nth) return call(...args);
      leavesUnreleased(name);
      return status;
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
  /** From now on no call fails. */
  mend(): void;
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
      leavesUnreleased(name);
      return plan.status;
    };
  }
  return {
    driver: withCalls(driver, calls),
    fail: (name, nth, status) => planned.set(name, { left: nth, status }),
    mend: () => planned.clear(),
  };
}

/** A driver like another, whose every call of one function answers `status` and does nothing. */
export const broken = (driver: Driver, name: FunctionName, status: CUresult): Driver =>
  withCalls(driver, {
    [name]: () => {
      leavesUnreleased(name);
      return status;
    },
  });

/**
 * What needs no context that works: asking about the driver and its devices, and getting in and out
 * of a context. All else fails in one that was lost, waiting for it included.
 */
const worksWhenLost = (name: FunctionName): boolean =>
  name.startsWith('cuGet') ||
  name.startsWith('cuDevice') ||
  (name.startsWith('cuCtx') && rows[name].needs === 'nothing') ||
  name === 'cuCtxPopCurrent_v2' ||
  name === 'cuCtxGetDevice';

/** A driver like another that loses its device when told to: then every call that works on it fails. */
export function losing(
  driver: Driver,
  status: CUresult,
): { readonly driver: Driver; lose(): void } {
  let lost = false;
  const calls: Partial<Record<FunctionName, AnyCall>> = {};
  for (const name of functionNames) {
    if (worksWhenLost(name)) continue;
    const call = driver[name] as AnyCall;
    calls[name] = (...args) => (lost ? status : call(...args));
  }
  return {
    driver: withCalls(driver, calls),
    lose() {
      lost = true;
      leaves(/^driver: |latch|#tick/, 'a lost device releases nothing', Number.POSITIVE_INFINITY);
    },
  };
}

/** Which functions open something, and which close it. */
const pairs: readonly (readonly [opens: FunctionName, closes: FunctionName])[] = [
  ['cuCtxCreate_v2', 'cuCtxDestroy_v2'],
  ['cuMemAlloc_v2', 'cuMemFree_v2'],
  ['cuMemAlloc_v2', 'cuMemFreeAsync'],
  ['cuMemAllocPitch_v2', 'cuMemFree_v2'],
  ['cuMemPoolCreate', 'cuMemPoolDestroy'],
  ['cuMemAllocAsync', 'cuMemFreeAsync'],
  ['cuMemAllocAsync', 'cuMemFree_v2'],
  ['cuMemAllocFromPoolAsync', 'cuMemFreeAsync'],
  ['cuMemAllocFromPoolAsync', 'cuMemFree_v2'],
  ['cuMemAddressReserve', 'cuMemAddressFree'],
  ['cuMemCreate', 'cuMemRelease'],
  ['cuMemMap', 'cuMemUnmap'],
  ['cuStreamCreateWithPriority', 'cuStreamDestroy_v2'],
  ['cuEventCreate', 'cuEventDestroy_v2'],
  ['cuIpcOpenEventHandle', 'cuEventDestroy_v2'],
  ['cuIpcOpenMemHandle_v2', 'cuIpcCloseMemHandle'],
  ['cuMemPoolImportFromShareableHandle', 'cuMemPoolDestroy'],
  ['cuMemPoolImportPointer', 'cuMemFreeAsync'],
  ['cuMemPoolImportPointer', 'cuMemFree_v2'],
  ['cuMemImportFromShareableHandle', 'cuMemRelease'],
  ['cuMemHostAlloc', 'cuMemFreeHost'],
  ['cuMemHostRegister_v2', 'cuMemHostUnregister'],
  ['cuMemAllocManaged', 'cuMemFree_v2'],
  ['cuModuleLoadDataEx', 'cuModuleUnload'],
  ['cuLinkCreate_v2', 'cuLinkDestroy'],
  ['cuStreamEndCapture', 'cuGraphDestroy'],
  ['cuGraphInstantiateWithFlags', 'cuGraphExecDestroy'],
];

/** Functions that return something that must be released. */
export const opening: ReadonlySet<FunctionName> = new Set(pairs.map(([opens]) => opens));
const closing = new Set(pairs.map(([, closes]) => closes));

/** Functions that open at a given address, their first argument. */
const TOLD: ReadonlySet<FunctionName> = new Set<FunctionName>(['cuMemHostRegister_v2', 'cuMemMap']);

/** Where a function writes its result; undefined if the function takes an address. */
function outOf(name: FunctionName): number | undefined {
  if (TOLD.has(name)) return undefined;
  const given = /^(CU(?!device \*)\w+|void \*) \*$/;
  const at = rows[name].params.findIndex(({ c }) => given.test(c));
  if (at < 0) throw new Error(`${name} gives nothing out`);
  return at;
}

/** A driver like another that writes down what is open. */
export function keepingBooks(driver: Driver): {
  readonly driver: Driver;
  /**
   * What was opened and not closed, as `cuMemAlloc_v2 139637976727552`; what was opened once more
   * at the same address as `cuMemPoolImportPointer 139637976727552 again`.
   */
  readonly open: ReadonlySet<string>;
} {
  const open = new Set<string>();
  const calls: Partial<Record<FunctionName, AnyCall>> = {};
  for (const opens of opening) {
    const at = outOf(opens);
    calls[opens] = (...args) => {
      const status = (driver[opens] as AnyCall)(...args);
      if (status !== 0) return status;
      const handle = at === undefined ? Number(args[0]) : Number(readUint64(args[at] as Address));
      let entry = `${opens} ${handle}`;
      while (open.has(entry)) entry += ' again';
      // Nothing, or no memory at all, is nothing to be given back.
      if (handle !== 0) open.add(entry);
      return status;
    };
  }
  for (const closes of closing)
    calls[closes] = (...args) => {
      const status = (driver[closes] as AnyCall)(...args);
      if (status !== 0) return status;
      const entries = pairs
        .filter(([, closed]) => closed === closes)
        .map(([opens]) => `${opens} ${String(args[0])}`);
      const last = [...open].findLast((each) =>
        entries.some((entry) => each === entry || each.startsWith(`${entry} again`)),
      );
      if (last !== undefined) open.delete(last);
      return status;
    };
  return { driver: withCalls(driver, calls), open };
}
