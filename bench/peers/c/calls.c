/* Single calls on a non-blocking stream, an event without timing, 4 MiB of cuMemAlloc memory. */
#include "driver.h"

#define BUFFER_BYTES (4 << 20)

static CUevent event;
static CUdeviceptr buffer;

static void open_objects(size_t bytes) {
  (void)bytes;
  if (buffer) return;
  CHECK(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  CHECK(cuMemAlloc_v2, &buffer, BUFFER_BYTES);
}

static CUresult stream_done(long calls, size_t bytes) {
  CUresult status = 0;
  (void)bytes;
  for (long call = 0; call < calls; call++) status |= cuStreamQuery(stream);
  return status;
}

static CUresult event_record(long calls, size_t bytes) {
  CUresult status = 0;
  (void)bytes;
  for (long call = 0; call < calls; call++) status |= cuEventRecord(event, stream);
  return status;
}

static CUresult get_ipc_handle(long calls, size_t bytes) {
  CUresult status = 0;
  CUipcMemHandle handle;
  (void)bytes;
  for (long call = 0; call < calls; call++) status |= cuIpcGetMemHandle(&handle, buffer);
  return status;
}

const struct batch call_batches[] = {
  { "stream.done", NULL, stream_done },
  { "event.record", open_objects, event_record },
  { "getIpcHandle", open_objects, get_ipc_handle },
  { NULL, NULL, NULL },
};

void close_calls(void) {
  if (!buffer) return;
  CHECK(cuMemFree_v2, buffer);
  CHECK(cuEventDestroy_v2, event);
}
