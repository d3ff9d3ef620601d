/*
 * Waiting for a kernel of some milliseconds without a thread that polls: in a stream of its own, behind
 * an event, the driver flushes a FILE over an eventfd, for which epoll waits. Beside it: spinning.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ptx.h"

/* Below 128 bytes the C library writes at once. */
#define FILE_BUFFER_BYTES 1024
#define NS_PER_MS 1000000ULL

static CUmodule module;
static CUfunction spin;
static CUstream side;
static CUevent event;
static FILE *file;
static int counter = -1, watch = -1;

static void open_waiting(size_t bytes) {
  (void)bytes;
  if (module) return;
  char *ptx = read_ptx(KERNELS_PTX);
  CHECK(cuModuleLoadDataEx, &module, ptx, 0, NULL, NULL);
  free(ptx);
  CHECK(cuModuleGetFunction, &spin, module, "spin");
  CHECK(cuStreamCreate, &side, CU_STREAM_NON_BLOCKING);
  CHECK(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  counter = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watch = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event readable = { .events = EPOLLIN };
  file = counter < 0 ? NULL : fdopen(counter, "w");
  if (watch < 0 || !file || epoll_ctl(watch, EPOLL_CTL_ADD, counter, &readable) != 0)
    fail("no eventfd to wait for");
  setvbuf(file, malloc(FILE_BUFFER_BYTES), _IOFBF, FILE_BUFFER_BYTES);
}

static void launch_spin(unsigned long long ns) {
  void *arguments[] = { &ns };
  CUlaunchConfig config = { 1, 1, 1, 1, 1, 1, 0, stream, NULL, 0 };
  CHECK(cuLaunchKernelEx, &config, spin, arguments, NULL);
}

static void wait_by_file(void) {
  unsigned long long one = 1;
  struct epoll_event readable;
  if (fwrite(&one, sizeof one, 1, file) != 1) fail("the file takes nothing");
  CHECK(cuEventRecord, event, stream);
  CHECK(cuStreamWaitEvent, side, event, 0);
  CHECK(cuLaunchHostFunc, side, (void (*)(void *))(void *)fflush, file);
  while (epoll_wait(watch, &readable, 1, -1) < 1) {}
  if (read(counter, &one, sizeof one) != sizeof one) fail("the eventfd is empty");
  /* Whether the work failed. */
  CHECK(cuStreamQuery, stream);
}

static void wait_by_spinning(void) {
  CHECK(cuStreamSynchronize, stream);
}

static long long time_waits(void (*wait)(void), long calls, unsigned long long ms) {
  long long start = now();
  for (long call = 0; call < calls; call++) {
    launch_spin(ms * NS_PER_MS);
    wait();
  }
  return now() - start;
}

#define BATCH(ms) \
  static long long time_file_##ms(long calls, size_t bytes) { \
    (void)bytes; \
    return time_waits(wait_by_file, calls, ms); \
  } \
  static long long time_spinning_##ms(long calls, size_t bytes) { \
    (void)bytes; \
    return time_waits(wait_by_spinning, calls, ms); \
  }
BATCH(1)
BATCH(3)
BATCH(10)

const struct batch waiting_batches[] = {
  { "wait.file.1", open_waiting, .timed = time_file_1 },
  { "wait.file.3", open_waiting, .timed = time_file_3 },
  { "wait.file.10", open_waiting, .timed = time_file_10 },
  { "wait.spinning.1", open_waiting, .timed = time_spinning_1 },
  { "wait.spinning.3", open_waiting, .timed = time_spinning_3 },
  { "wait.spinning.10", open_waiting, .timed = time_spinning_10 },
  { NULL, NULL, NULL },
};

void close_waiting(void) {
  if (!module) return;
  CHECK(cuStreamSynchronize, side);
  fclose(file);
  close(watch);
  CHECK(cuEventDestroy_v2, event);
  CHECK(cuStreamDestroy_v2, side);
  CHECK(cuModuleUnload, module);
}
