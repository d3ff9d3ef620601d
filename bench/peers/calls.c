/*
 * The driver calls that the bench measures, from C: what they cost without cuffi.
 *
 *     calls PATH    the libcuda to open
 *
 * Says "ready UUID" (or "skip REASON"), then answers each line "CASE CALLS" of its standard input
 * with "ns NANOSECONDS" (or "error WHAT"). Declares what it needs of cuda.h itself, so that it
 * builds without a toolkit.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUevent;
typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;

#define CU_STREAM_NON_BLOCKING 1
#define CU_EVENT_DISABLE_TIMING 2
#define BUFFER_BYTES (4 << 20)

static CUresult (*cuInit)(unsigned int);
static CUresult (*cuDeviceGet)(CUdevice *, int);
static CUresult (*cuDeviceGetUuid_v2)(CUuuid *, CUdevice);
static CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
static CUresult (*cuDevicePrimaryCtxRelease_v2)(CUdevice);
static CUresult (*cuCtxPushCurrent_v2)(CUcontext);
static CUresult (*cuStreamCreate)(CUstream *, unsigned int);
static CUresult (*cuStreamDestroy_v2)(CUstream);
static CUresult (*cuStreamQuery)(CUstream);
static CUresult (*cuStreamSynchronize)(CUstream);
static CUresult (*cuEventCreate)(CUevent *, unsigned int);
static CUresult (*cuEventDestroy_v2)(CUevent);
static CUresult (*cuEventRecord)(CUevent, CUstream);
static CUresult (*cuMemAlloc_v2)(CUdeviceptr *, size_t);
static CUresult (*cuMemFree_v2)(CUdeviceptr);
static CUresult (*cuIpcGetMemHandle)(CUipcMemHandle *, CUdeviceptr);

static CUstream stream;
static CUevent event;
static CUdeviceptr buffer;

static void say(const char *word, const char *text) {
  printf("%s %s\n", word, text);
  fflush(stdout);
}

static void check(CUresult status, const char *call) {
  char text[128];
  if (status == 0) return;
  snprintf(text, sizeof text, "%s answered %d", call, status);
  say("error", text);
  exit(1);
}
#define CHECK(call, ...) check(call(__VA_ARGS__), #call)

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found) return found;
  say("skip", dlerror());
  exit(0);
}
#define BIND(name) *(void **)&name = symbol(library, #name)

static void bind_all(void *library) {
  BIND(cuInit);
  BIND(cuDeviceGet);
  BIND(cuDeviceGetUuid_v2);
  BIND(cuDevicePrimaryCtxRetain);
  BIND(cuDevicePrimaryCtxRelease_v2);
  BIND(cuCtxPushCurrent_v2);
  BIND(cuStreamCreate);
  BIND(cuStreamDestroy_v2);
  BIND(cuStreamQuery);
  BIND(cuStreamSynchronize);
  BIND(cuEventCreate);
  BIND(cuEventDestroy_v2);
  BIND(cuEventRecord);
  BIND(cuMemAlloc_v2);
  BIND(cuMemFree_v2);
  BIND(cuIpcGetMemHandle);
}

/* Each makes `calls` calls and answers with the bits of every status. */
static CUresult stream_done(long calls) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) status |= cuStreamQuery(stream);
  return status;
}

static CUresult event_record(long calls) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) status |= cuEventRecord(event, stream);
  return status;
}

static CUresult get_ipc_handle(long calls) {
  CUresult status = 0;
  CUipcMemHandle handle;
  for (long call = 0; call < calls; call++) status |= cuIpcGetMemHandle(&handle, buffer);
  return status;
}

static const struct {
  const char *name;
  CUresult (*loop)(long);
} cases[] = {
  { "stream.done", stream_done },
  { "event.record", event_record },
  { "getIpcHandle", get_ipc_handle },
};

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void answer(const char *name, long calls) {
  for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
    if (strcmp(cases[at].name, name) != 0) continue;
    /* Untimed, as after another contestant's turn the first calls are slower. */
    check(cases[at].loop((calls + 9) / 10), name);
    CHECK(cuStreamSynchronize, stream);
    long long start = now();
    CUresult status = cases[at].loop(calls);
    long long end = now();
    check(status, name);
    CHECK(cuStreamSynchronize, stream);
    printf("ns %lld\n", end - start);
    fflush(stdout);
    return;
  }
  say("error", "no such case");
}

int main(int argc, char **argv) {
  char line[128], name[64], hex[33];
  CUdevice device;
  CUcontext context;
  CUuuid uuid;
  long calls;

  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) {
    say("skip", argc == 2 ? dlerror() : "usage: calls PATH");
    return 0;
  }
  bind_all(library);
  CHECK(cuInit, 0);
  CHECK(cuDeviceGet, &device, 0);
  CHECK(cuDeviceGetUuid_v2, &uuid, device);
  CHECK(cuDevicePrimaryCtxRetain, &context, device);
  CHECK(cuCtxPushCurrent_v2, context);
  CHECK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  CHECK(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  CHECK(cuMemAlloc_v2, &buffer, BUFFER_BYTES);

  for (int at = 0; at < 16; at++) sprintf(hex + 2 * at, "%02x", (unsigned char)uuid.bytes[at]);
  say("ready", hex);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "%63s %ld", name, &calls) == 2 && calls > 0) answer(name, calls);
    else say("error", "a line is CASE CALLS");
  }

  CHECK(cuMemFree_v2, buffer);
  CHECK(cuEventDestroy_v2, event);
  CHECK(cuStreamDestroy_v2, stream);
  CHECK(cuDevicePrimaryCtxRelease_v2, device);
  return 0;
}
