/* The GPU's own clock: two events, and a gate before them that opens when all is queued. */
#include "driver.h"

static volatile unsigned long long *gate;
static CUdeviceptr gate_address;
static unsigned long long opened;
static CUevent begin, end;

static void open_gpu_time(void) {
  void *page;
  if (gate) return;
  CHECK(cuMemHostAlloc, &page, sizeof *gate, CU_MEMHOSTALLOC_DEVICEMAP);
  CHECK(cuMemHostGetDevicePointer_v2, &gate_address, page, 0);
  CHECK(cuEventCreate, &begin, CU_EVENT_DEFAULT);
  CHECK(cuEventCreate, &end, CU_EVENT_DEFAULT);
  gate = page;
  *gate = opened;
}

long long gpu_time(CUresult (*queue)(long calls, size_t bytes), long calls, size_t bytes) {
  float milliseconds;
  open_gpu_time();
  /* At least one: what is loaded at its first use would wait for the gate. */
  check(queue(1, bytes), "a call that is timed by the GPU");
  CHECK(cuStreamSynchronize, stream);
  if (calls == 0) return 0;
  opened += 1;
  CHECK(cuStreamWaitValue64_v2, stream, gate_address, opened, CU_STREAM_WAIT_VALUE_GEQ);
  CHECK(cuEventRecord, begin, stream);
  CUresult status = queue(calls, bytes);
  CHECK(cuEventRecord, end, stream);
  *gate = opened;
  check(status, "a call that is timed by the GPU");
  CHECK(cuStreamSynchronize, stream);
  CHECK(cuEventElapsedTime, &milliseconds, begin, end);
  return (long long)(milliseconds * 1e6);
}

void close_gpu_time(void) {
  if (!gate) return;
  CHECK(cuEventDestroy_v2, begin);
  CHECK(cuEventDestroy_v2, end);
  CHECK(cuMemFreeHost, (void *)gate);
}
