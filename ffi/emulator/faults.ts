/** Calls that fail because they were told to. */
import { type FunctionName, functionNames } from '../functions.ts';
import type { CUresult } from '../results.ts';

interface InjectedFault {
  readonly name: FunctionName;
  /** Which call of the function, from 1; every call where undefined. */
  readonly call: number | undefined;
  readonly status: CUresult;
}

/** Counts the calls of a function; answers with a status where this one is to fail. */
export type FaultInjector = (name: FunctionName) => CUresult | undefined;

/**
 * Reads `cuMemAlloc_v2:3=2`: the third call of that function answers 2 and does nothing. Several
 * are comma-separated; `*` in place of the number means every call.
 *
 * @throws RangeError for anything else
 */
export function parseFaults(text: string): FaultInjector {
  const faults: InjectedFault[] = text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '')
    .map((entry) => {
      const [, name, call, status] = /^(\w+):(\d+|\*)=(\d+)$/.exec(entry) ?? [];
      if (!functionNames.includes(name as FunctionName))
        throw new RangeError(
          `CUFFI_EMULATED_FAULTS: ${entry}: expected FUNCTION:CALL=STATUS, as cuMemAlloc_v2:3=2`,
        );
      return {
        name: name as FunctionName,
        call: call === '*' ? undefined : Number(call),
        status: Number(status),
      };
    });
  const counts = new Map<FunctionName, number>();
  return (name) => {
    if (faults.length === 0) return undefined;
    const count = (counts.get(name) ?? 0) + 1;
    counts.set(name, count);
    return faults.find(
      (fault) => fault.name === name && (fault.call === undefined || fault.call === count),
    )?.status;
  };
}
