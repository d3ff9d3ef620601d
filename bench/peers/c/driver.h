/*
 * What the C program needs of cuda.h, declared here so that it builds without a toolkit; the
 * functions are found in the libcuda that it is told to open.
 */
#ifndef CUFFI_BENCH_DRIVER_H
#define CUFFI_BENCH_DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUmemoryPool;
typedef void *CUmodule;
typedef void *CUfunction;
typedef void *CUgraph;
typedef void *CUgraphExec;
typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { unsigned char reserved[64]; } CUmemPoolPtrExportData;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
  int allocType, handleTypes;
  CUmemLocation location;
  void *win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
} CUmemPoolProps;
typedef struct {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  void *attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

typedef struct {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void *srcHost;
  CUdeviceptr srcDevice;
  void *srcArray;
  size_t srcPitch, dstXInBytes, dstY;
  int dstMemoryType;
  void *dstHost;
  CUdeviceptr dstDevice;
  void *dstArray;
  size_t dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;

#define CU_MEMORYTYPE_DEVICE 2
#define CU_EVENT_DEFAULT 0
#define CU_STREAM_NON_BLOCKING 1
#define CU_EVENT_DISABLE_TIMING 2
#define CU_MEM_ALLOCATION_TYPE_PINNED 1
#define CU_MEM_LOCATION_TYPE_DEVICE 1
#define CU_MEMPOOL_ATTR_RELEASE_THRESHOLD 4
#define CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR 1
#define CU_MEM_ACCESS_FLAGS_PROT_READWRITE 3
#define CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS 1
#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_MEMHOSTREGISTER_DEVICEMAP 2
#define CU_STREAM_WAIT_VALUE_GEQ 0

#define DRIVER_FUNCTIONS(row) \
  row(cuInit, (unsigned int)) \
  row(cuDeviceGet, (CUdevice *, int)) \
  row(cuDeviceGetUuid_v2, (CUuuid *, CUdevice)) \
  row(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
  row(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
  row(cuCtxPushCurrent_v2, (CUcontext)) \
  row(cuStreamCreate, (CUstream *, unsigned int)) \
  row(cuStreamDestroy_v2, (CUstream)) \
  row(cuStreamQuery, (CUstream)) \
  row(cuStreamSynchronize, (CUstream)) \
  row(cuStreamWaitEvent, (CUstream, CUevent, unsigned int)) \
  row(cuLaunchHostFunc, (CUstream, void (*)(void *), void *)) \
  row(cuEventCreate, (CUevent *, unsigned int)) \
  row(cuEventDestroy_v2, (CUevent)) \
  row(cuEventRecord, (CUevent, CUstream)) \
  row(cuEventElapsedTime, (float *, CUevent, CUevent)) \
  row(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
  row(cuMemFree_v2, (CUdeviceptr)) \
  row(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr)) \
  row(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int)) \
  row(cuIpcCloseMemHandle, (CUdeviceptr)) \
  row(cuMemPoolExportToShareableHandle, (void *, CUmemoryPool, int, unsigned long long)) \
  row(cuMemPoolImportFromShareableHandle, (CUmemoryPool *, void *, int, unsigned long long)) \
  row(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr)) \
  row(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *)) \
  row(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, int)) \
  row(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, \
                    unsigned long long)) \
  row(cuMemRelease, (CUmemGenericAllocationHandle)) \
  row(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, int, \
                                     unsigned long long)) \
  row(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, int)) \
  row(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
  row(cuMemAddressFree, (CUdeviceptr, size_t)) \
  row(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
  row(cuMemUnmap, (CUdeviceptr, size_t)) \
  row(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
  row(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *)) \
  row(cuMemPoolDestroy, (CUmemoryPool)) \
  row(cuMemPoolSetAttribute, (CUmemoryPool, unsigned int, void *)) \
  row(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
  row(cuMemFreeAsync, (CUdeviceptr, CUstream)) \
  row(cuMemHostAlloc, (void **, size_t, unsigned int)) \
  row(cuMemFreeHost, (void *)) \
  row(cuMemHostRegister_v2, (void *, size_t, unsigned int)) \
  row(cuMemHostUnregister, (void *)) \
  row(cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned int)) \
  row(cuMemsetD32Async, (CUdeviceptr, unsigned int, size_t, CUstream)) \
  row(cuStreamWaitValue64_v2, (CUstream, CUdeviceptr, unsigned long long, unsigned int)) \
  row(cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, unsigned long long, unsigned int)) \
  row(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
  row(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
  row(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
  row(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
  row(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  row(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *, CUstream)) \
  row(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
  row(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned int, int *, void **)) \
  row(cuModuleUnload, (CUmodule)) \
  row(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
  row(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **)) \
  row(cuStreamBeginCapture_v2, (CUstream, int)) \
  row(cuStreamEndCapture, (CUstream, CUgraph *)) \
  row(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
  row(cuGraphLaunch, (CUgraphExec, CUstream)) \
  row(cuGraphDestroy, (CUgraph)) \
  row(cuGraphExecDestroy, (CUgraphExec))

#define DECLARE(name, parameters) extern CUresult(*name) parameters;
DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

/* The libcuda that was opened. */
extern const char *library_path;
/* Where everything happens: device 0's primary context is current. */
extern CUdevice device;
extern CUstream stream;

/* One thing that is measured. */
struct batch {
  const char *name;
  /* Makes what the calls need, untimed; may find it from the time before. NULL: nothing. */
  void (*open)(size_t bytes);
  /* Makes the calls and answers with the bits of every status. */
  CUresult (*loop)(long calls, size_t bytes);
  /* Instead, where not all of a call is timed: makes the calls and answers with the nanoseconds. */
  long long (*timed)(long calls, size_t bytes);
  /* Looks, after the last turn, whether what the calls did is right, and fails where not. */
  void (*verify)(size_t bytes);
};

/* Each ends with a batch without a name. */
extern const struct batch floor_batches[], call_batches[], memory_batches[], copy_batches[],
  gpu_copy_batches[], hand_over_batches[], point_batches[], kernel_batches[], saxpy_batches[],
  waiting_batches[];
/* Free what the batches made. */
void close_floors(void);
void close_calls(void);
void close_memory(void);
void close_copies(void);
void close_rows(void);
void close_kernels(void);
void close_saxpy(void);
void close_gpu_time(void);
void close_hand_over(void);
void close_points(void);
void close_waiting(void);
/* What the other process of a hand-over does, until its socket is closed. */
void serve_hand_over(int socket);

/*
 * The GPU's time of `calls` calls, in nanoseconds, between two events: none of it begins before the last
 * of it is queued, so that it is the GPU's work alone. One call goes before, untimed.
 */
long long gpu_time(CUresult (*queue)(long calls, size_t bytes), long calls, size_t bytes);

void say(const char *word, const char *text);
/* Says the error and ends the program. */
void fail(const char *text);
void check(CUresult status, const char *call);
/* The monotonic clock, in nanoseconds. */
long long now(void);
#define CHECK(call, ...) check(call(__VA_ARGS__), #call)

#endif
