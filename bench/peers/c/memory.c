/* Allocating and freeing: device memory, memory of a pool, page-locked host memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copies.h"

static CUmemoryPool pool;
static void *touched;
static size_t touched_bytes;

/* As MemoryPool.create makes it: it keeps what is not used. */
static void open_pool(size_t bytes) {
  CUmemPoolProps props = { 0 };
  unsigned long long threshold = ~0ULL;
  (void)bytes;
  if (pool) return;
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device;
  CHECK(cuMemPoolCreate, &pool, &props);
  CHECK(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
}

static CUresult pool_allocate(long calls, size_t bytes) {
  CUresult status = 0;
  CUdeviceptr address;
  for (long call = 0; call < calls; call++) {
    status |= cuMemAllocFromPoolAsync(&address, bytes, pool, stream);
    status |= cuMemFreeAsync(address, stream);
  }
  return status;
}

static CUresult device_allocate(long calls, size_t bytes) {
  CUresult status = 0;
  CUdeviceptr address;
  for (long call = 0; call < calls; call++) {
    status |= cuMemAlloc_v2(&address, bytes);
    status |= cuMemFree_v2(address);
  }
  return status;
}

static CUresult host_allocate(long calls, size_t bytes) {
  CUresult status = 0;
  void *address;
  for (long call = 0; call < calls; call++) {
    status |= cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE);
    status |= cuMemFreeHost(address);
  }
  return status;
}

static void *map(size_t bytes) {
  void *address =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) fail("mmap found no room");
  return address;
}

static void release_touched(void) {
  if (touched) munmap(touched, touched_bytes);
  touched = NULL;
}

static void open_touched(size_t bytes) {
  if (touched && touched_bytes == bytes) return;
  release_touched();
  touched = map(bytes);
  touched_bytes = bytes;
  memset(touched, 1, bytes);
}

static CUresult register_touched(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) {
    status |= cuMemHostRegister_v2(touched, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    status |= cuMemHostUnregister(touched);
  }
  return status;
}

/* As PinnedBuffer.allocate does it. */
static CUresult register_fresh(long calls, size_t bytes) {
  CUresult status = 0;
  for (long call = 0; call < calls; call++) {
    void *fresh = map(bytes);
    madvise(fresh, bytes, MADV_DONTFORK);
    status |= cuMemHostRegister_v2(fresh, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    status |= cuMemHostUnregister(fresh);
    munmap(fresh, bytes);
  }
  return status;
}

/* What is written to memory is what is read of it: between memory of the host and of the device. */
static void require_memory(CUdeviceptr address, unsigned char *host, size_t bytes) {
  fill(host, bytes, PAGEABLE);
  write_device(address, host, bytes);
  memset(host, 0, bytes);
  CHECK(cuMemcpyDtoH_v2, host, address, bytes);
  require_filled(host, bytes, PAGEABLE);
}

static void require_device_memory(CUdeviceptr address, size_t bytes) {
  unsigned char *host = malloc(bytes);
  if (!host) fail("malloc found no room");
  require_memory(address, host, bytes);
  free(host);
}

static void require_host_memory(void *host, size_t bytes) {
  CUdeviceptr address;
  CHECK(cuMemAlloc_v2, &address, bytes);
  require_memory(address, host, bytes);
  CHECK(cuMemFree_v2, address);
}

static void verify_pool(size_t bytes) {
  CUdeviceptr address;
  CHECK(cuMemAllocFromPoolAsync, &address, bytes, pool, stream);
  CHECK(cuStreamSynchronize, stream);
  require_device_memory(address, bytes);
  CHECK(cuMemFreeAsync, address, stream);
  CHECK(cuStreamSynchronize, stream);
}

static void verify_device(size_t bytes) {
  CUdeviceptr address;
  CHECK(cuMemAlloc_v2, &address, bytes);
  require_device_memory(address, bytes);
  CHECK(cuMemFree_v2, address);
}

static void verify_host(size_t bytes) {
  void *address;
  CHECK(cuMemHostAlloc, &address, bytes, CU_MEMHOSTALLOC_PORTABLE);
  require_host_memory(address, bytes);
  CHECK(cuMemFreeHost, address);
}

static void require_registered(void *address, size_t bytes) {
  CHECK(cuMemHostRegister_v2, address, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  require_host_memory(address, bytes);
  CHECK(cuMemHostUnregister, address);
}

static void verify_touched(size_t bytes) { require_registered(touched, bytes); }

static void verify_fresh(size_t bytes) {
  void *fresh = map(bytes);
  require_registered(fresh, bytes);
  munmap(fresh, bytes);
}

const struct batch memory_batches[] = {
  { "pool.allocate", open_pool, pool_allocate, .verify = verify_pool },
  { "device.allocate", NULL, device_allocate, .verify = verify_device },
  { "host.allocate", NULL, host_allocate, .verify = verify_host },
  { "host.register", open_touched, register_touched, .verify = verify_touched },
  { "host.map", NULL, register_fresh, .verify = verify_fresh },
  { NULL, NULL, NULL },
};

void close_memory(void) {
  if (pool) CHECK(cuMemPoolDestroy, pool);
  release_touched();
}
