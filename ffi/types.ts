/**
 * C types as values that carry TypeScript types. The rows of the function table consist of them. The
 * argument types, koffi's declarations and the tests against cuda.h follow from them.
 */

declare const brand: unique symbol;
declare const carried: unique symbol;

/**
 * A driver handle or address as a number that cannot be mistaken for another kind. Values stay
 * below 2^53: the arena's readers refuse what is above.
 */
export type Handle<Name extends string> = number & { readonly [brand]: Name };

/** The koffi type of a parameter: an integer, or the one struct that is passed by value. */
export type FfiType = 'int32' | 'uint32' | 'int64' | 'uint64' | 'handle64';

/** A C type: its spelling in cuda.h, its width, and (in `T`) what TypeScript passes for it. */
export interface CType<T = unknown> {
  readonly c: string;
  readonly ffi: FfiType;
  readonly byteLength: number;
  readonly [carried]?: T;
}

/** The TypeScript arguments of a parameter list. */
export type Arguments<P extends readonly CType[]> = {
  -readonly [K in keyof P]: P[K] extends CType<infer T> ? T : never;
};

const type = <T>(c: string, ffi: FfiType, byteLength: number): CType<T> => ({ c, ffi, byteLength });
/** A handle by its name in cuda.h, e.g. `handle('CUarray')`: a number of its own kind. */
export const handle = <const Name extends string>(name: Name): CType<Handle<Name>> =>
  type(name, 'uint64', 8);
/** A pointer to a struct that the driver reads: `readStruct('CUDA_MEMCPY2D')`. */
export const readStruct = (name: string): CType<Address> => type(`const ${name} *`, 'uint64', 8);
/** An opaque struct, or one that the header does not declare const, behind a pointer. */
const opaque = (name: string, byteLength: number): CType<Address> =>
  type(name, 'uint64', byteLength);
/** An enum by its name in cuda.h, e.g. `enumeration('CUlimit')`. */
export const enumeration = (name: string): CType<number> => type(name, 'uint32', 4);

/** An address in host memory. */
export type Address = Handle<'address'>;

/** A parameter that points to where the driver writes (or reads) a value of type `t`. */
export const out = (t: CType): CType<Address> => type(`${t.c} *`, 'uint64', 8);

export const int = type<number>('int', 'int32', 4);
export const uint = type<number>('unsigned int', 'uint32', 4);
export const uint8 = type<number>('unsigned char', 'uint32', 1);
export const uint16 = type<number>('unsigned short', 'uint32', 2);
export const uint32 = type<number>('cuuint32_t', 'uint32', 4);
/** A 64-bit value (not an address). A bigint if it may exceed a safe integer. */
export const uint64 = type<number | bigint>('cuuint64_t', 'uint64', 8);
export const ulonglong = type<number>('unsigned long long', 'uint64', 8);
export const float = type<number>('float', 'uint32', 4);
export const size_t = type<number>('size_t', 'uint64', 8);
export const char = type<number>('char', 'uint32', 1);
/** `void *`: host memory that the driver writes. */
export const pointer = type<Address>('void *', 'uint64', 8);
/** `const void *`: host memory that the driver reads. */
export const constPointer = type<Address>('const void *', 'uint64', 8);
export const constString = type<Address>('const char *', 'uint64', 8);

export const CUdevice = type<CUdevice>('CUdevice', 'int32', 4);
/** A device ordinal; not an address. */
export type CUdevice = Handle<'CUdevice'>;
export const CUcontext = handle('CUcontext');
export type CUcontext = Handle<'CUcontext'>;
export const CUstream = handle('CUstream');
export type CUstream = Handle<'CUstream'>;
export const CUevent = handle('CUevent');
export type CUevent = Handle<'CUevent'>;
export const CUdeviceptr = handle('CUdeviceptr');
/** An address in device memory. */
export type CUdeviceptr = Handle<'CUdeviceptr'>;

export const CUmemoryPool = handle('CUmemoryPool');
export type CUmemoryPool = Handle<'CUmemoryPool'>;
export const CUmemGenericAllocationHandle = handle('CUmemGenericAllocationHandle');
/** Physical memory of virtual memory management. */
export type CUmemGenericAllocationHandle = Handle<'CUmemGenericAllocationHandle'>;
export const CUmodule = handle('CUmodule');
export type CUmodule = Handle<'CUmodule'>;
export const CUfunction = handle('CUfunction');
export type CUfunction = Handle<'CUfunction'>;
export const CUgraph = handle('CUgraph');
export type CUgraph = Handle<'CUgraph'>;
export const CUgraphExec = handle('CUgraphExec');
export type CUgraphExec = Handle<'CUgraphExec'>;
export const CUgraphNode = handle('CUgraphNode');
export type CUgraphNode = Handle<'CUgraphNode'>;
/** `void (*)(void *)`, called on a thread of the driver: never JavaScript. */
export const CUhostFn = type<Address>('CUhostFn', 'uint64', 8);

export const CUdevice_attribute = enumeration('CUdevice_attribute');
export const CUpointer_attribute = enumeration('CUpointer_attribute');
export const CUlimit = enumeration('CUlimit');
export const CUmemPool_attribute = enumeration('CUmemPool_attribute');
export const CUmemAccess_flags = enumeration('CUmemAccess_flags');
export const CUmemAllocationHandleType = enumeration('CUmemAllocationHandleType');
export const CUmemAllocationGranularity_flags = enumeration('CUmemAllocationGranularity_flags');
export const CUmem_advise = enumeration('CUmem_advise');
export const CUdevice_P2PAttribute = enumeration('CUdevice_P2PAttribute');
export const CUlinkState = handle('CUlinkState');
export type CUlinkState = Handle<'CUlinkState'>;
export const CUjit_option = enumeration('CUjit_option');
export const CUjitInputType = enumeration('CUjitInputType');
export const CUfunction_attribute = enumeration('CUfunction_attribute');
export const CUfunc_cache = enumeration('CUfunc_cache');
export const CUstreamCaptureMode = enumeration('CUstreamCaptureMode');
export const CUstreamCaptureStatus = enumeration('CUstreamCaptureStatus');
export const CUgraphExecUpdateResult = enumeration('CUgraphExecUpdateResult');
export const CUresultType = enumeration('CUresult');

/**
 * The 64 bytes of an IPC handle, passed by value. The property is koffi's name for the struct's
 * only member: a bare Uint8Array would be read as a struct without it and pass 64 zero bytes.
 */
export interface IpcHandleBytes {
  readonly reserved: Uint8Array;
}
export const CUipcMemHandle = type<IpcHandleBytes>('CUipcMemHandle', 'handle64', 64);
export const CUipcEventHandle = type<IpcHandleBytes>('CUipcEventHandle', 'handle64', 64);
export const CUuuid = type<Address>('CUuuid', 'uint64', 16);

export const CUmemPoolProps = readStruct('CUmemPoolProps');
export const CUmemLocation = readStruct('CUmemLocation');
export const CUmemAccessDesc = readStruct('CUmemAccessDesc');
export const CUmemAllocationProp = readStruct('CUmemAllocationProp');
export const CUDA_MEMCPY2D = readStruct('CUDA_MEMCPY2D');
export const CUDA_MEMCPY3D = readStruct('CUDA_MEMCPY3D');
export const CUDA_MEMCPY3D_PEER = readStruct('CUDA_MEMCPY3D_PEER');
export const CUlaunchConfig = readStruct('CUlaunchConfig');
export const CUDA_KERNEL_NODE_PARAMS_v1 = readStruct('CUDA_KERNEL_NODE_PARAMS_v1');
export const CUDA_KERNEL_NODE_PARAMS_v2 = readStruct('CUDA_KERNEL_NODE_PARAMS_v2');
/** `void **`: host memory that the driver reads addresses or values from. */
export const pointers = type<Address>('void **', 'uint64', 8);
/** A function that the driver calls back: never JavaScript, so always 0. */
export const CUoccupancyB2DSize = type<Address>('CUoccupancyB2DSize', 'uint64', 8);
/** Receives the address of an array of node handles in the driver's memory. */
export const CUgraphNodes = type<Address>('const CUgraphNode **', 'uint64', 8);
/** Receives what cuGraphExecUpdate could not update. */
export const CUgraphExecUpdateResultInfo = opaque('CUgraphExecUpdateResultInfo', 24);
/** cuMemPoolGetAccess only reads it, but does not declare it const. */
export const CUmemLocationNotConst = opaque('CUmemLocation', 8);
/** 64 bytes that identify an allocation of a pool to a process that has imported the pool. */
export const CUmemPoolPtrExportData = opaque('CUmemPoolPtrExportData', 64);
