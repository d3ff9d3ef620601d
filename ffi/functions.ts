/**
 * THE table: one row per driver function. `Driver`, koffi's declarations, the emulated driver's
 * obligations and the proof against cuda.h are all derived from it.
 *
 * The names are the exported symbols, version suffix included: an unsuffixed `cuMemAlloc` is
 * another, older function with 32-bit sizes.
 */
import type { CUresult } from './results.ts';
import type { Arguments, CType } from './types.ts';
import {
  CUcontext,
  CUdevice,
  CUdevice_attribute,
  CUdeviceptr,
  CUevent,
  CUipcEventHandle,
  CUipcMemHandle,
  CUlimit,
  CUpointer_attribute,
  CUresultType,
  CUstream,
  CUuuid,
  char,
  constPointer,
  constString,
  float,
  int,
  out,
  pointer,
  size_t,
  uint,
  uint8,
  uint16,
  uint32,
} from './types.ts';

/**
 * Whether a call wants a current context: never, always, or only when its stream argument is one
 * of the default streams (0, 1, 2), which are names that the current context gives a meaning to.
 * Settled row by row on hardware (docs/hardware.md).
 */
export type Needs = 'nothing' | 'context' | 'context for a default stream';

/** One driver function. */
export interface Row<P extends readonly CType[] = readonly CType[]> {
  readonly needs: Needs;
  readonly params: P;
  /** Where the number of elements that the call moves or sets stands, and an element's bytes. */
  readonly bytes?: readonly [parameter: number, unit: number];
}

const row = <const P extends readonly CType[]>(
  needs: Needs,
  params: P,
  bytes?: readonly [number, number],
): Row<P> => (bytes ? { needs, params, bytes } : { needs, params });

const anywhere = <const P extends readonly CType[]>(...params: P): Row<P> => row('nothing', params);
const inContext = <const P extends readonly CType[]>(...params: P): Row<P> =>
  row('context', params);
const onStream = <const P extends readonly CType[]>(...params: P): Row<P> =>
  row('context for a default stream', params);
const moving = <P extends readonly CType[]>(base: Row<P>, parameter: number, unit = 1): Row<P> =>
  row(base.needs, base.params, [parameter, unit]);

export const functions = {
  // Initialisation, version, errors
  cuInit: anywhere(uint),
  cuDriverGetVersion: anywhere(out(int)),
  cuGetErrorString: anywhere(CUresultType, out(constString)),

  // Devices
  cuDeviceGetCount: anywhere(out(int)),
  cuDeviceGet: anywhere(out(CUdevice), int),
  cuDeviceGetName: anywhere(out(char), int, CUdevice),
  cuDeviceGetUuid_v2: anywhere(out(CUuuid), CUdevice),
  cuDeviceGetAttribute: anywhere(out(int), CUdevice_attribute, CUdevice),
  cuDeviceTotalMem_v2: anywhere(out(size_t), CUdevice),

  // Contexts
  cuDevicePrimaryCtxRetain: anywhere(out(CUcontext), CUdevice),
  cuDevicePrimaryCtxRelease_v2: anywhere(CUdevice),
  cuDevicePrimaryCtxReset_v2: anywhere(CUdevice),
  cuDevicePrimaryCtxGetState: anywhere(CUdevice, out(uint), out(int)),
  cuCtxCreate_v2: anywhere(out(CUcontext), uint, CUdevice),
  cuCtxDestroy_v2: anywhere(CUcontext),
  cuCtxGetCurrent: anywhere(out(CUcontext)),
  cuCtxPushCurrent_v2: anywhere(CUcontext),
  cuCtxPopCurrent_v2: inContext(out(CUcontext)),
  cuCtxGetDevice: inContext(out(CUdevice)),
  cuCtxSynchronize: inContext(),
  cuCtxGetLimit: inContext(out(size_t), CUlimit),
  cuCtxSetLimit: inContext(CUlimit, size_t),
  cuCtxGetStreamPriorityRange: inContext(out(int), out(int)),

  // Streams
  cuStreamCreateWithPriority: inContext(out(CUstream), uint, int),
  cuStreamDestroy_v2: anywhere(CUstream),
  cuStreamGetPriority: onStream(CUstream, out(int)),
  cuStreamGetFlags: onStream(CUstream, out(uint)),
  cuStreamGetCtx: onStream(CUstream, out(CUcontext)),
  cuStreamQuery: onStream(CUstream),
  cuStreamSynchronize: onStream(CUstream),
  cuStreamWaitEvent: onStream(CUstream, CUevent, uint),
  cuStreamWaitValue32_v2: onStream(CUstream, CUdeviceptr, uint32, uint),
  cuStreamWriteValue32_v2: onStream(CUstream, CUdeviceptr, uint32, uint),

  // Events
  cuEventCreate: inContext(out(CUevent), uint),
  cuEventDestroy_v2: anywhere(CUevent),
  cuEventRecord: onStream(CUevent, CUstream),
  cuEventQuery: anywhere(CUevent),
  cuEventSynchronize: anywhere(CUevent),
  cuEventElapsedTime: anywhere(out(float), CUevent, CUevent),

  // Memory
  cuMemGetInfo_v2: inContext(out(size_t), out(size_t)),
  cuMemAlloc_v2: inContext(out(CUdeviceptr), size_t),
  cuMemFree_v2: anywhere(CUdeviceptr),
  cuMemGetAddressRange_v2: inContext(out(CUdeviceptr), out(size_t), CUdeviceptr),
  cuPointerGetAttribute: anywhere(pointer, CUpointer_attribute, CUdeviceptr),
  cuMemHostRegister_v2: inContext(pointer, size_t, uint),
  cuMemHostUnregister: anywhere(pointer),
  cuMemHostGetDevicePointer_v2: inContext(out(CUdeviceptr), pointer, uint),

  // Copies and fills
  cuMemcpyHtoD_v2: moving(inContext(CUdeviceptr, constPointer, size_t), 2),
  cuMemcpyDtoH_v2: moving(inContext(pointer, CUdeviceptr, size_t), 2),
  cuMemcpyHtoDAsync_v2: moving(onStream(CUdeviceptr, constPointer, size_t, CUstream), 2),
  cuMemcpyDtoHAsync_v2: moving(onStream(pointer, CUdeviceptr, size_t, CUstream), 2),
  cuMemcpyDtoDAsync_v2: moving(onStream(CUdeviceptr, CUdeviceptr, size_t, CUstream), 2),
  cuMemsetD8Async: moving(onStream(CUdeviceptr, uint8, size_t, CUstream), 2),
  cuMemsetD16Async: moving(onStream(CUdeviceptr, uint16, size_t, CUstream), 2, 2),
  cuMemsetD32Async: moving(onStream(CUdeviceptr, uint, size_t, CUstream), 2, 4),

  // Interprocess communication
  cuIpcGetMemHandle: inContext(out(CUipcMemHandle), CUdeviceptr),
  cuIpcOpenMemHandle_v2: inContext(out(CUdeviceptr), CUipcMemHandle, uint),
  cuIpcCloseMemHandle: inContext(CUdeviceptr),
  cuIpcGetEventHandle: inContext(out(CUipcEventHandle), CUevent),
  cuIpcOpenEventHandle: inContext(out(CUevent), CUipcEventHandle),
} as const;

/** The name of a driver function, version suffix included. */
export type FunctionName = keyof typeof functions;

/** The driver as callable functions: every call answers with its status and throws nothing. */
export type Driver = {
  readonly [K in FunctionName]: (...args: Arguments<(typeof functions)[K]['params']>) => CUresult;
};

/** The rows without their individual types, for code that walks the whole table. */
export const rows: Readonly<Record<FunctionName, Row>> = functions;
export const functionNames = Object.keys(functions) as FunctionName[];
