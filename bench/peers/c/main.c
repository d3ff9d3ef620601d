/*
 * What the bench measures, from C: what it costs without cuffi.
 *
 *     PROGRAM PATH [SOCKET]    the libcuda to open; the socket, of the other process of a hand-over
 *     PROGRAM none UUID        without a driver: only what needs none; the UUID that it shall say
 *
 * Says "ready UUID" (or "skip REASON"), then answers each line "BATCH CALLS BYTES UNTIMED" of its
 * standard input with "ns NANOSECONDS" (or "error WHAT"), after as many calls that are not timed; 0
 * calls ask whether there is such a batch, which is answered with "ns ANYTHING" or "skip REASON".
 * "verify" in place of CALLS has it look whether what the calls did is right, which is answered with
 * "ns ANYTHING" (or "error WHAT").
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

#define DEFINE(name, parameters) CUresult(*name) parameters;
DRIVER_FUNCTIONS(DEFINE)

const char *library_path;
CUdevice device;
CUstream stream;
static int has_driver;

void say(const char *word, const char *text) {
  printf("%s %s\n", word, text);
  fflush(stdout);
}

void fail(const char *text) {
  say("error", text);
  exit(1);
}

void check(CUresult status, const char *call) {
  char text[128];
  if (status == 0) return;
  snprintf(text, sizeof text, "%s answered %d", call, status);
  fail(text);
}

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found) return found;
  say("skip", dlerror());
  exit(0);
}

static void bind_all(void *library) {
#define BIND(name, parameters) *(void **)&name = symbol(library, #name);
  DRIVER_FUNCTIONS(BIND)
}

static const struct batch *find(const char *name) {
  const struct batch *rooms[] = {
    floor_batches, call_batches, memory_batches, copy_batches, gpu_copy_batches,
    hand_over_batches, point_batches, kernel_batches, saxpy_batches, waiting_batches
  };
  size_t count = has_driver ? sizeof rooms / sizeof *rooms : 1;
  for (size_t room = 0; room < count; room++)
    for (const struct batch *batch = rooms[room]; batch->name; batch++)
      if (strcmp(batch->name, name) == 0) return batch;
  return NULL;
}

long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long long measure(const struct batch *batch, long calls, size_t bytes, long untimed) {
  if (batch->open) batch->open(bytes);
  /* After another contestant's turn the first calls are slower. */
  if (batch->timed) {
    batch->timed(untimed, bytes);
    return batch->timed(calls, bytes);
  }
  check(batch->loop(untimed, bytes), batch->name);
  CHECK(cuStreamSynchronize, stream);
  long long start = now();
  CUresult status = batch->loop(calls, bytes);
  long long end = now();
  check(status, batch->name);
  CHECK(cuStreamSynchronize, stream);
  return end - start;
}

static long long verify(const struct batch *batch, size_t bytes) {
  if (batch->open) batch->open(bytes);
  if (batch->verify) batch->verify(bytes);
  return 0;
}

static void answer(const char *line) {
  char name[64], what[32], *end;
  long untimed;
  size_t bytes;
  if (sscanf(line, "%63s %31s %zu %ld", name, what, &bytes, &untimed) != 4 || untimed < 0) {
    say("error", "a line is BATCH CALLS BYTES UNTIMED");
    return;
  }
  int verifies = strcmp(what, "verify") == 0;
  long calls = strtol(what, &end, 10);
  if (!verifies && (*end || calls < 0)) {
    say("error", "the calls are a number, or verify");
    return;
  }
  const struct batch *batch = find(name);
  if (!batch) {
    say("skip", has_driver ? "it has no such batch" : "it needs a GPU");
    return;
  }
  printf("ns %lld\n", verifies ? verify(batch, bytes) : measure(batch, calls, bytes, untimed));
  fflush(stdout);
}

int main(int argc, char **argv) {
  char line[128], hex[33];
  CUcontext context;
  CUuuid uuid;

  if (argc == 3 && strcmp(argv[1], "none") == 0) {
    say("ready", argv[2]);
    while (fgets(line, sizeof line, stdin)) answer(line);
    close_floors();
    return 0;
  }
  library_path = argc == 2 || argc == 3 ? argv[1] : NULL;
  void *library = library_path ? dlopen(library_path, RTLD_NOW) : NULL;
  if (!library) {
    say("skip", library_path ? dlerror() : "usage: PROGRAM PATH [SOCKET]");
    return 0;
  }
  has_driver = 1;
  bind_all(library);
  CHECK(cuInit, 0);
  CHECK(cuDeviceGet, &device, 0);
  CHECK(cuDeviceGetUuid_v2, &uuid, device);
  CHECK(cuDevicePrimaryCtxRetain, &context, device);
  CHECK(cuCtxPushCurrent_v2, context);
  CHECK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);

  if (argc == 3) serve_hand_over(atoi(argv[2]));
  for (int at = 0; at < 16; at++) sprintf(hex + 2 * at, "%02x", (unsigned char)uuid.bytes[at]);
  say("ready", hex);
  while (fgets(line, sizeof line, stdin)) answer(line);

  close_floors();
  close_calls();
  close_memory();
  close_copies();
  close_rows();
  close_points();
  close_waiting();
  close_hand_over();
  close_kernels();
  close_saxpy();
  close_gpu_time();
  CHECK(cuStreamDestroy_v2, stream);
  CHECK(cuDevicePrimaryCtxRelease_v2, device);
  return 0;
}
