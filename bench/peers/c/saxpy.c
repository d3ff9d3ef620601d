/* A kernel that does something, y = a x + y, by the GPU's clock: SAXPY_PTX, as the compiler is told. */
#include <stdlib.h>

#include "ptx.h"

#define BLOCK 256
/* x is read, y is read and written: the bytes of a batch are all three. */
#define VECTORS_MOVED 3
/* What x holds, again and again: integers, of which all that is computed is exact. */
#define PERIOD 1024

static CUmodule module;
static CUfunction saxpy;
static CUdeviceptr x, y;
static float *host;
static unsigned int count;
static float factor = 2.5f;

static void close_vectors(void) {
  if (!count) return;
  CHECK(cuMemFree_v2, x);
  CHECK(cuMemFree_v2, y);
  free(host);
  count = 0;
}

static void load(void) {
  char *ptx = read_ptx(SAXPY_PTX);
  CHECK(cuModuleLoadDataEx, &module, ptx, 0, NULL, NULL);
  CHECK(cuModuleGetFunction, &saxpy, module, "saxpy");
  free(ptx);
}

static void open_saxpy(size_t bytes) {
  size_t vector = bytes / VECTORS_MOVED;
  if (!module) load();
  if (count == vector / sizeof(float)) return;
  close_vectors();
  CHECK(cuMemAlloc_v2, &x, vector);
  CHECK(cuMemAlloc_v2, &y, vector);
  host = malloc(vector);
  if (!host) fail("malloc found no room");
  count = (unsigned int)(vector / sizeof(float));
  for (unsigned int at = 0; at < count; at++) host[at] = (float)(at % PERIOD);
  CHECK(cuMemcpyHtoD_v2, x, host, vector);
  CHECK(cuMemsetD8Async, y, 0, vector, stream);
  CHECK(cuStreamSynchronize, 0);
  CHECK(cuStreamSynchronize, stream);
}

static CUresult launch(long calls, size_t bytes) {
  CUresult status = 0;
  void *arguments[] = { &factor, &x, &y, &count };
  CUlaunchConfig config = { (count + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, NULL, 0 };
  (void)bytes;
  for (long call = 0; call < calls; call++)
    status |= cuLaunchKernelEx(&config, saxpy, arguments, NULL);
  return status;
}

static long long time_saxpy(long calls, size_t bytes) { return gpu_time(launch, calls, bytes); }

static void verify_saxpy(size_t bytes) {
  size_t vector = bytes / VECTORS_MOVED;
  CHECK(cuMemsetD8Async, y, 0, vector, stream);
  check(launch(1, bytes), "cuLaunchKernelEx");
  CHECK(cuStreamSynchronize, stream);
  CHECK(cuMemcpyDtoH_v2, host, y, vector);
  for (unsigned int at = 0; at < count; at++)
    if (host[at] != factor * (float)(at % PERIOD)) fail("saxpy came to another sum");
}

const struct batch saxpy_batches[] = {
  { "gpu.saxpy", open_saxpy, .timed = time_saxpy, .verify = verify_saxpy },
  { NULL, NULL, NULL },
};

void close_saxpy(void) {
  close_vectors();
  if (module) CHECK(cuModuleUnload, module);
}
