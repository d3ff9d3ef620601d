/** Checked by tsc alone: handles of the driver are numbers that are not each other. */
import { expectTypeOf } from 'expect-type';
import type { Driver, FunctionName } from '../../ffi/functions.ts';
import type { CUresult } from '../../ffi/results.ts';
import type {
  Address,
  CUcontext,
  CUdevice,
  CUdeviceptr,
  CUevent,
  CUstream,
  IpcHandleBytes,
} from '../../ffi/types.ts';

// A handle is a number, but no number is a handle, and no handle is another's.
expectTypeOf<CUstream>().toExtend<number>();
expectTypeOf<number>().not.toExtend<CUdeviceptr>();
expectTypeOf<number>().not.toExtend<CUstream>();
expectTypeOf<CUstream>().not.toExtend<CUevent>();
expectTypeOf<CUevent>().not.toExtend<CUstream>();
expectTypeOf<CUdeviceptr>().not.toExtend<Address>();
expectTypeOf<Address>().not.toExtend<CUdeviceptr>();
expectTypeOf<CUdevice>().not.toExtend<CUcontext>();

// Arithmetic gives a plain number back.
declare const address: CUdeviceptr;
expectTypeOf(address + 8).toEqualTypeOf<number>();

// The driver's functions have the types that the table says.
expectTypeOf<Parameters<Driver['cuMemAlloc_v2']>>().toEqualTypeOf<[Address, number]>();
expectTypeOf<Parameters<Driver['cuMemFree_v2']>>().toEqualTypeOf<[CUdeviceptr]>();
expectTypeOf<Parameters<Driver['cuCtxSynchronize']>>().toEqualTypeOf<[]>();
expectTypeOf<Parameters<Driver['cuEventRecord']>>().toEqualTypeOf<[CUevent, CUstream]>();
expectTypeOf<Parameters<Driver['cuMemcpyHtoDAsync_v2']>>().toEqualTypeOf<
  [CUdeviceptr, Address, number, CUstream]
>();
expectTypeOf<Parameters<Driver['cuMemcpyDtoHAsync_v2']>>().toEqualTypeOf<
  [Address, CUdeviceptr, number, CUstream]
>();
expectTypeOf<Parameters<Driver['cuIpcOpenMemHandle_v2']>>().toEqualTypeOf<
  [Address, IpcHandleBytes, number]
>();
expectTypeOf<ReturnType<Driver[FunctionName]>>().toEqualTypeOf<CUresult>();
expectTypeOf<keyof Driver>().toEqualTypeOf<FunctionName>();

// Names without the version suffix are other functions, and are not there.
expectTypeOf<'cuMemAlloc'>().not.toExtend<FunctionName>();

declare const driver: Driver;
declare const stream: CUstream;
declare const event: CUevent;
// @ts-expect-error an event is no stream
driver.cuStreamQuery(event);
// @ts-expect-error a number is no address
driver.cuMemFree_v2(5);
// @ts-expect-error the bytes of a handle are wrapped: koffi would pass 64 zeros
driver.cuIpcOpenMemHandle_v2(0 as Address, new Uint8Array(64), 0);
// @ts-expect-error an argument is missing
driver.cuEventRecord(event);
// @ts-expect-error the table is not to be changed
driver.cuStreamQuery = () => 0;
driver.cuEventRecord(event, stream);
