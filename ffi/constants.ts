/** The driver's flags and enumerators, as cuda.h 13.0 numbers them (test/abi proves each). */

/** Bytes of an IPC handle, of memory or of an event. */
export const CU_IPC_HANDLE_SIZE = 64;

export const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

export const CU_STREAM_NON_BLOCKING = 1;
/** Stream handles that name the default streams of the current context. */
export const CU_STREAM_LEGACY = 1;
export const CU_STREAM_PER_THREAD = 2;

export const CU_STREAM_WAIT_VALUE_GEQ = 0;
export const CU_STREAM_WAIT_VALUE_EQ = 1;
export const CU_STREAM_WAIT_VALUE_AND = 2;
export const CU_STREAM_WAIT_VALUE_NOR = 3;

export const CU_EVENT_BLOCKING_SYNC = 1;
export const CU_EVENT_DISABLE_TIMING = 2;
export const CU_EVENT_INTERPROCESS = 4;

export const CU_MEMHOSTREGISTER_PORTABLE = 1;
export const CU_MEMHOSTREGISTER_DEVICEMAP = 2;

export const CU_POINTER_ATTRIBUTE_CONTEXT = 1;
export const CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
export const CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
export const CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
export const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
export const CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
export const CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
export const CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
export const CU_POINTER_ATTRIBUTE_MAPPED = 13;

export const CU_MEMORYTYPE_HOST = 1;
export const CU_MEMORYTYPE_DEVICE = 2;

/** Limits of a context, by the names that `Context.limit` takes. */
export const limits = {
  stackSize: 0,
  printfFifoSize: 1,
  mallocHeapSize: 2,
  devRuntimeSyncDepth: 3,
  devRuntimePendingLaunchCount: 4,
  maxL2FetchGranularity: 5,
  persistingL2CacheSize: 6,
} as const;

/** The name of a limit of a context. */
export type LimitName = keyof typeof limits;
