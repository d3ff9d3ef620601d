/* Copies of pageable and of page-locked host memory, each waited for, and on the device. */
#include <stdlib.h>
#include <string.h>

#include "copies.h"

static size_t opened_bytes;
CUdeviceptr memory, other;
unsigned char *pageable, *pinned;

/* A prime: bytes that arrive a page or a slice away are others. */
#define PART_BYTES 65521

static const unsigned char *part_of(unsigned seed) {
  static unsigned char part[PART_BYTES];
  for (size_t at = 0; at < PART_BYTES; at++) part[at] = (unsigned char)((at + seed) * 31 + at / 256);
  return part;
}

void fill(unsigned char *bytes, size_t count, unsigned seed) {
  const unsigned char *part = part_of(seed);
  for (size_t at = 0; at < count; at += PART_BYTES)
    memcpy(bytes + at, part, count - at < PART_BYTES ? count - at : PART_BYTES);
}

void require_filled(const unsigned char *bytes, size_t count, unsigned seed) {
  const unsigned char *part = part_of(seed);
  for (size_t at = 0; at < count; at += PART_BYTES)
    if (memcmp(bytes + at, part, count - at < PART_BYTES ? count - at : PART_BYTES) != 0)
      fail("a copy brought other bytes");
}

void write_device(CUdeviceptr to, const unsigned char *host, size_t bytes) {
  CHECK(cuMemcpyHtoD_v2, to, host, bytes);
  /* Pageable memory may still be on its way from the driver's staging memory. */
  CHECK(cuStreamSynchronize, 0);
}

void clear_device(CUdeviceptr address, size_t bytes) {
  CHECK(cuMemsetD8Async, address, 0, bytes, stream);
  CHECK(cuStreamSynchronize, stream);
}

/* What comes back from the device is what went there; its pages are there from now on. */
static void require_round_trip(unsigned char *host, size_t bytes, unsigned seed) {
  fill(host, bytes, seed);
  write_device(memory, host, bytes);
  CHECK(cuMemcpyDtoDAsync_v2, other, memory, bytes, stream);
  CHECK(cuStreamSynchronize, stream);
  memset(host, 0, bytes);
  CHECK(cuMemcpyDtoH_v2, host, other, bytes);
  require_filled(host, bytes, seed);
}

void close_copies(void) {
  if (!opened_bytes) return;
  CHECK(cuMemFree_v2, memory);
  CHECK(cuMemFree_v2, other);
  CHECK(cuMemFreeHost, pinned);
  free(pageable);
  opened_bytes = 0;
}

void open_memory(size_t bytes) {
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
  require_round_trip(pageable, bytes, PAGEABLE);
  require_round_trip(pinned, bytes, PINNED);
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

void verify_to_device(unsigned char *host, unsigned seed, copy_loop *copy, size_t bytes) {
  fill(host, bytes, seed);
  clear_device(memory, bytes);
  check(copy(1, bytes), "a copy to the device");
  CHECK(cuStreamSynchronize, 0);
  CHECK(cuStreamSynchronize, stream);
  memset(host, 0, bytes);
  CHECK(cuMemcpyDtoH_v2, host, memory, bytes);
  require_filled(host, bytes, seed);
}

void verify_to_host(unsigned char *host, unsigned seed, copy_loop *copy, size_t bytes) {
  fill(host, bytes, seed);
  write_device(memory, host, bytes);
  memset(host, 0, bytes);
  check(copy(1, bytes), "a copy to the host");
  CHECK(cuStreamSynchronize, stream);
  require_filled(host, bytes, seed);
}

void verify_on_device(copy_loop *copy, size_t bytes) {
  fill(pinned, bytes, PINNED);
  write_device(memory, pinned, bytes);
  clear_device(other, bytes);
  check(copy(1, bytes), "a copy on the device");
  CHECK(cuStreamSynchronize, stream);
  memset(pinned, 0, bytes);
  CHECK(cuMemcpyDtoH_v2, pinned, other, bytes);
  require_filled(pinned, bytes, PINNED);
}

static void verify_pageable_to_device(size_t bytes) {
  verify_to_device(pageable, PAGEABLE, pageable_to_device, bytes);
}

static void verify_pageable_to_host(size_t bytes) {
  verify_to_host(pageable, PAGEABLE, pageable_to_host, bytes);
}

static void verify_pinned_to_device(size_t bytes) {
  verify_to_device(pinned, PINNED, pinned_to_device, bytes);
}

static void verify_pinned_to_host(size_t bytes) {
  verify_to_host(pinned, PINNED, pinned_to_host, bytes);
}

static void verify_copy(size_t bytes) { verify_on_device(on_device, bytes); }

const struct batch copy_batches[] = {
  { "pageable.toDevice", open_memory, pageable_to_device, .verify = verify_pageable_to_device },
  { "pageable.toHost", open_memory, pageable_to_host, .verify = verify_pageable_to_host },
  { "pinned.toDevice", open_memory, pinned_to_device, .verify = verify_pinned_to_device },
  { "pinned.toHost", open_memory, pinned_to_host, .verify = verify_pinned_to_host },
  { "onDevice", open_memory, on_device, .verify = verify_copy },
  { NULL, NULL, NULL },
};
