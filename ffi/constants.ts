/** The driver's flags and enumerators, as cuda.h 13.0 numbers them (test/abi proves each). */

import type { CUstream } from './types.ts';

/** Bytes of an IPC handle, of memory or of an event. */
export const CU_IPC_HANDLE_SIZE = 64;

export const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

export const CU_STREAM_NON_BLOCKING = 1;
/** Stream handles that name the default streams of the current context. */
export const CU_STREAM_LEGACY = 1 as CUstream;
export const CU_STREAM_PER_THREAD = 2 as CUstream;

export const CU_STREAM_WAIT_VALUE_GEQ = 0;
export const CU_STREAM_WAIT_VALUE_EQ = 1;
export const CU_STREAM_WAIT_VALUE_AND = 2;
export const CU_STREAM_WAIT_VALUE_NOR = 3;

export const CU_EVENT_BLOCKING_SYNC = 1;
export const CU_EVENT_DISABLE_TIMING = 2;
export const CU_EVENT_INTERPROCESS = 4;

export const CU_MEMHOSTREGISTER_PORTABLE = 1;
export const CU_MEMHOSTREGISTER_DEVICEMAP = 2;

export const CU_MEMHOSTALLOC_PORTABLE = 1;
export const CU_MEMHOSTALLOC_DEVICEMAP = 2;
export const CU_MEMHOSTALLOC_WRITECOMBINED = 4;

export const CU_MEM_ATTACH_GLOBAL = 1;
export const CU_MEM_ATTACH_HOST = 2;
export const CU_MEM_ATTACH_SINGLE = 4;

/** In place of a device ordinal: host memory. */
export const CU_DEVICE_CPU = -1;

export const CU_MEM_ADVISE_SET_READ_MOSTLY = 1;
export const CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2;
export const CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3;
export const CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4;
export const CU_MEM_ADVISE_SET_ACCESSED_BY = 5;
export const CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6;

export const CU_MEM_LOCATION_TYPE_DEVICE = 1;
export const CU_MEM_LOCATION_TYPE_HOST = 2;
export const CU_MEM_LOCATION_TYPE_HOST_NUMA = 3;

export const CU_MEM_ALLOCATION_TYPE_PINNED = 1;

export const CU_MEM_HANDLE_TYPE_NONE = 0;
export const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
export const CU_MEM_HANDLE_TYPE_FABRIC = 8;

export const CU_MEM_ACCESS_FLAGS_PROT_NONE = 0;
export const CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
export const CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;

export const CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
export const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;

/** Attributes of a pool: the first three are ints, the others 64-bit counts of bytes. */
export const CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1;
export const CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2;
export const CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3;
export const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4;
export const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5;
export const CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6;
export const CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7;
export const CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8;

export const CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1;
export const CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2;
export const CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3;
export const CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED = 4;

export const CU_POINTER_ATTRIBUTE_CONTEXT = 1;
export const CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
export const CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
export const CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;
export const CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
export const CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
export const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
export const CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
export const CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
export const CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
export const CU_POINTER_ATTRIBUTE_MAPPED = 13;
export const CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
export const CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16;
export const CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17;

export const CU_MEMORYTYPE_HOST = 1;
export const CU_MEMORYTYPE_DEVICE = 2;
export const CU_MEMORYTYPE_ARRAY = 3;
/** The driver determines whether the address is in host or device memory. */
export const CU_MEMORYTYPE_UNIFIED = 4;

export const CU_JIT_INPUT_CUBIN = 0;
export const CU_JIT_INPUT_PTX = 1;
export const CU_JIT_INPUT_FATBINARY = 2;
export const CU_JIT_MAX_REGISTERS = 0;
export const CU_JIT_INFO_LOG_BUFFER = 3;
export const CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4;
export const CU_JIT_ERROR_LOG_BUFFER = 5;
export const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6;
export const CU_JIT_OPTIMIZATION_LEVEL = 7;
export const CU_JIT_GENERATE_DEBUG_INFO = 11;
export const CU_JIT_LOG_VERBOSE = 12;
export const CU_JIT_GENERATE_LINE_INFO = 13;

export const CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0;
export const CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
export const CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2;
export const CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3;
export const CU_FUNC_ATTRIBUTE_NUM_REGS = 4;
export const CU_FUNC_ATTRIBUTE_PTX_VERSION = 5;
export const CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6;
export const CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
export const CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9;
export const CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14;

/** The on-chip memory that a kernel prefers, by the names that `setCachePreference` takes. */
export const CU_FUNC_CACHE_PREFER_NONE = 0;
export const CU_FUNC_CACHE_PREFER_SHARED = 1;
export const CU_FUNC_CACHE_PREFER_L1 = 2;
export const CU_FUNC_CACHE_PREFER_EQUAL = 3;

export const CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2;
export const CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4;

export const CU_STREAM_CAPTURE_MODE_RELAXED = 2;
export const CU_STREAM_CAPTURE_STATUS_NONE = 0;
export const CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
export const CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;

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
