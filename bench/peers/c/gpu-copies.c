/* Copies of page-locked memory, on the device, and of rows with gaps there, by the GPU's clock. */
#include <string.h>

#include "copies.h"

/* Of a row, what is copied and what is not. */
#define WIDTH 256
#define STRIDE 512

static CUdeviceptr rows;
static size_t rows_bytes;

static CUresult to_device(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++)
    status |= cuMemcpyHtoDAsync_v2(memory, pinned, bytes, stream);
  return status;
}

static CUresult to_host(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++)
    status |= cuMemcpyDtoHAsync_v2(pinned, memory, bytes, stream);
  return status;
}

static CUresult on_device(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++)
    status |= cuMemcpyDtoDAsync_v2(other, memory, bytes, stream);
  return status;
}

static long long time_to_device(long calls, size_t bytes) { return gpu_time(to_device, calls, bytes); }
static long long time_to_host(long calls, size_t bytes) { return gpu_time(to_host, calls, bytes); }
static long long time_on_device(long calls, size_t bytes) { return gpu_time(on_device, calls, bytes); }

static void verify_transfer_to_device(size_t bytes) {
  verify_to_device(pinned, PINNED, to_device, bytes);
}

static void verify_transfer_to_host(size_t bytes) { verify_to_host(pinned, PINNED, to_host, bytes); }

static void verify_copy(size_t bytes) { verify_on_device(on_device, bytes); }

void close_rows(void) {
  if (!rows_bytes) return;
  CHECK(cuMemFree_v2, rows);
  rows_bytes = 0;
}

static void open_rows(size_t bytes) {
  if (rows_bytes == bytes) return;
  close_rows();
  open_memory(bytes);
  CHECK(cuMemAlloc_v2, &rows, bytes / WIDTH * STRIDE);
  rows_bytes = bytes;
}

static CUresult copy_rows(long calls, CUDA_MEMCPY2D copy) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) status |= cuMemcpy2DAsync_v2(&copy, stream);
  return status;
}

static CUDA_MEMCPY2D rows_to(CUdeviceptr to, size_t bytes) {
  return (CUDA_MEMCPY2D){
    .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = rows, .srcPitch = STRIDE,
    .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = WIDTH,
    .WidthInBytes = WIDTH, .Height = bytes / WIDTH,
  };
}

static CUresult gather(long calls, size_t bytes) { return copy_rows(calls, rows_to(other, bytes)); }

static long long time_rows(long calls, size_t bytes) { return gpu_time(gather, calls, bytes); }

/* The rows are written as they are read: from what lies without gaps. */
static void verify_rows(size_t bytes) {
  fill(pinned, bytes, PINNED);
  write_device(memory, pinned, bytes);
  clear_device(other, bytes);
  CUDA_MEMCPY2D scatter = {
    .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .srcPitch = WIDTH,
    .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = rows, .dstPitch = STRIDE,
    .WidthInBytes = WIDTH, .Height = bytes / WIDTH,
  };
  check(copy_rows(1, scatter), "cuMemcpy2DAsync_v2");
  check(gather(1, bytes), "cuMemcpy2DAsync_v2");
  CHECK(cuStreamSynchronize, stream);
  memset(pinned, 0, bytes);
  CHECK(cuMemcpyDtoH_v2, pinned, other, bytes);
  require_filled(pinned, bytes, PINNED);
}

const struct batch gpu_copy_batches[] = {
  { "gpu.toDevice", open_memory, .timed = time_to_device, .verify = verify_transfer_to_device },
  { "gpu.toHost", open_memory, .timed = time_to_host, .verify = verify_transfer_to_host },
  { "gpu.onDevice", open_memory, .timed = time_on_device, .verify = verify_copy },
  { "gpu.rows", open_rows, .timed = time_rows, .verify = verify_rows },
  { NULL, NULL, NULL },
};
