/** What the driver was told: the arguments of its calls, and the structs that they point to. */
import {
  OUT0,
  readBytes,
  readHandle,
  readInt32,
  readUint64,
  writeUint64,
} from '../../ffi/arena.ts';
import { CU_MEMPOOL_ATTR_RELEASE_THRESHOLD } from '../../ffi/constants.ts';
import { selectDriver } from '../../ffi/driver.ts';
import type { Driver, FunctionName } from '../../ffi/functions.ts';
import type { CUresult } from '../../ffi/results.ts';
import { decodeStruct, type StructName, structs } from '../../ffi/structs.ts';
import type { Address } from '../../ffi/types.ts';

/** Which argument of a function points to which struct. */
const pointed: Partial<Record<FunctionName, readonly [at: number, struct: StructName]>> = {
  cuMemCreate: [2, 'CUmemAllocationProp'],
  cuMemGetAllocationGranularity: [1, 'CUmemAllocationProp'],
  cuMemPoolCreate: [1, 'CUmemPoolProps'],
  cuMemPoolGetAccess: [2, 'CUmemLocation'],
  cuMemPoolSetAccess: [1, 'CUmemAccessDesc'],
  cuMemSetAccess: [2, 'CUmemAccessDesc'],
  cuMemcpy3DAsync_v2: [0, 'CUDA_MEMCPY3D'],
  cuMemcpy3DPeerAsync: [0, 'CUDA_MEMCPY3D_PEER'],
};

/** The value that an attribute of a pool is set to: flags are of 32 bits, sizes of 64. */
const attributeValue = (attribute: number, at: Address): number =>
  attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? readInt32(at) : Number(readUint64(at));

/** A call as it was made: each struct by its fields, and the value that an attribute is set to. */
export interface ToldCall {
  readonly name: FunctionName;
  readonly args: readonly unknown[];
  /** The context that was current. */
  readonly context: number;
}

/** Selects a driver like another that writes down its calls with their arguments. */
export function recordArguments(driver: Driver): {
  readonly driver: Driver;
  readonly calls: ToldCall[];
  /** The calls of one function. */
  of(name: FunctionName): readonly ToldCall[];
} {
  const calls: ToldCall[] = [];
  const current = (): number => {
    const before = readUint64(OUT0);
    driver.cuCtxGetCurrent(OUT0);
    const context = readHandle(OUT0);
    writeUint64(before, OUT0);
    return context;
  };
  const told = selectNoting(driver, Object.keys(driver) as FunctionName[], (name, args) => {
    const [place, struct] = pointed[name] ?? [];
    const values = args.map((value, at) =>
      struct && at === place
        ? decodeStruct(struct, readBytes(value as Address, structs[struct].byteLength))
        : value,
    );
    if (name === 'cuMemPoolSetAttribute')
      values[2] = attributeValue(args[1] as number, args[2] as Address);
    calls.push({ name, args: values, context: current() });
  });
  return { driver: told, calls, of: (name) => calls.filter((call) => call.name === name) };
}

/** A call as it was made: the name of the function, then its arguments as they are. */
export type PlainCall = readonly [name: FunctionName, ...args: unknown[]];

/** Selects a driver like another, which writes down what some functions are told from now on. */
export function recordCallsOf(driver: Driver, ...names: readonly FunctionName[]): PlainCall[] {
  const told: PlainCall[] = [];
  selectNoting(driver, names, (name, args) => told.push([name, ...args]));
  return told;
}

/** Selects a driver like another, of which some functions tell `note` of each call before it is made. */
function selectNoting(
  driver: Driver,
  names: readonly FunctionName[],
  note: (name: FunctionName, args: readonly unknown[]) => void,
): Driver {
  const noting = names.map((name) => {
    const call = driver[name] as (...args: unknown[]) => CUresult;
    const noted = (...args: unknown[]): CUresult => {
      note(name, args);
      return call(...args);
    };
    return [name, noted];
  });
  const told: Driver = { ...driver, ...Object.fromEntries(noting) };
  selectDriver(told);
  return told;
}
