/* Copies of pageable and of page-locked host memory, each waited for, and on the device. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static size_t opened_bytes;
static CUdeviceptr memory, other;
static unsigned char *pageable, *pinned;

/* A prime: bytes that arrive a page or a slice away are others. */
#define PART_BYTES 65521

static void fill(unsigned char *bytes, size_t count, unsigned seed) {
  unsigned char part[PART_BYTES];
  for (size_t at = 0; at < PART_BYTES; at++) part[at] = (unsigned char)((at + seed) * 31 + at / 256);
  for (size_t at = 0; at < count; at += PART_BYTES)
    memcpy(bytes + at, part, count - at < PART_BYTES ? count - at : PART_BYTES);
}

/* What comes back from the device is what went there. */
static void require_round_trip(unsigned char *host, size_t bytes, unsigned seed) {
  unsigned char *expected = malloc(bytes);
  if (!expected) fail("malloc found no room");
  fill(expected, bytes, seed);
  memcpy(host, expected, bytes);
  CHECK(cuMemcpyHtoD_v2, memory, host, bytes);
  /* Pageable memory may still be on its way from the driver's staging memory. */
  CHECK(cuStreamSynchronize, 0);
  CHECK(cuMemcpyDtoDAsync_v2, other, memory, bytes, stream);
  CHECK(cuStreamSynchronize, stream);
  memset(host, 0, bytes);
  CHECK(cuMemcpyDtoH_v2, host, other, bytes);
  if (memcmp(host, expected, bytes) != 0) fail("a copy brought other bytes back");
  free(expected);
}

void close_copies(void) {
  if (!opened_bytes) return;
  CHECK(cuMemFree_v2, memory);
  CHECK(cuMemFree_v2, other);
  CHECK(cuMemFreeHost, pinned);
  free(pageable);
  opened_bytes = 0;
}

static void open_memory(size_t bytes) {
  void *locked;
  if (opened_bytes == bytes) return;
  close_copies();
  CHECK(cuMemAlloc_v2, &memory, bytes);
  CHECK(cuMemAlloc_v2, &other, bytes);
  CHECK(cuMemHostAlloc, &locked, bytes, CU_MEMHOSTALLOC_PORTABLE);
  pinned = locked;
  pageable = malloc(bytes);
  if (!pageable) fail("malloc found no room");
  opened_bytes = bytes;
  require_round_trip(pageable, bytes, 1);
  require_round_trip(pinned, bytes, 2);
}

static CUresult pageable_to_device(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) status |= cuMemcpyHtoD_v2(memory, pageable, bytes);
  return status;
}

static CUresult pageable_to_host(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) status |= cuMemcpyDtoH_v2(pageable, memory, bytes);
  return status;
}

static CUresult pinned_to_device(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) {
    status |= cuMemcpyHtoDAsync_v2(memory, pinned, bytes, stream);
    status |= cuStreamSynchronize(stream);
  }
  return status;
}

static CUresult pinned_to_host(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) {
    status |= cuMemcpyDtoHAsync_v2(pinned, memory, bytes, stream);
    status |= cuStreamSynchronize(stream);
  }
  return status;
}

/* Queued, and waited for once. */
static CUresult on_device(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++)
    status |= cuMemcpyDtoDAsync_v2(other, memory, bytes, stream);
  return status | cuStreamSynchronize(stream);
}

const struct batch copy_batches[] = {
  { "pageable.toDevice", open_memory, pageable_to_device },
  { "pageable.toHost", open_memory, pageable_to_host },
  { "pinned.toDevice", open_memory, pinned_to_device },
  { "pinned.toHost", open_memory, pinned_to_host },
  { "onDevice", open_memory, on_device },
  { NULL, NULL, NULL },
};
