/*
 * The other process of a hand-over: it reads a word of what it is handed on the device, and answers
 * with it.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hand-over.h"

/* Answers with the descriptor that came along, or -1; ends the program when the other has ended. */
static int receive_request(int socket, struct request *request) {
  char control[CMSG_SPACE(sizeof(int))];
  struct iovec part = { request, sizeof *request };
  struct msghdr message = {
    .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
  };
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *request) exit(0);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (header && header->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

static CUdeviceptr kept;
static CUmemoryPool kept_pool;

static unsigned read_word(CUdeviceptr address) {
  unsigned word;
  CHECK(cuMemcpyDtoH_v2, &word, address, sizeof word);
  return word;
}

static CUdeviceptr open_handle(const CUipcMemHandle *handle) {
  CUdeviceptr address;
  CHECK(cuIpcOpenMemHandle_v2, &address, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  return address;
}

static unsigned read_handle(const CUipcMemHandle *handle) {
  CUdeviceptr address = open_handle(handle);
  unsigned word = read_word(address);
  CHECK(cuIpcCloseMemHandle, address);
  return word;
}

static CUmemoryPool import_pool(int fd) {
  CUmemoryPool pool;
  CHECK(cuMemPoolImportFromShareableHandle, &pool, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  close(fd);
  return pool;
}

static unsigned read_pointer(CUmemoryPool pool, CUmemPoolPtrExportData *pointer) {
  CUdeviceptr address;
  CHECK(cuMemPoolImportPointer, &address, pool, pointer);
  unsigned word = read_word(address);
  CHECK(cuMemFreeAsync, address, stream);
  CHECK(cuStreamSynchronize, stream);
  return word;
}

static unsigned read_first_pointer(int fd, CUmemPoolPtrExportData *pointer) {
  CUmemoryPool pool = import_pool(fd);
  unsigned word = read_pointer(pool, pointer);
  CHECK(cuMemPoolDestroy, pool);
  return word;
}

static unsigned read_virtual(int fd, size_t bytes) {
  CUmemGenericAllocationHandle memory;
  CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
  CUdeviceptr address;
  CHECK(cuMemImportFromShareableHandle, &memory, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(fd);
  CHECK(cuMemAddressReserve, &address, bytes, 0, 0, 0);
  CHECK(cuMemMap, address, bytes, 0, memory, 0);
  CHECK(cuMemRelease, memory);
  CHECK(cuMemSetAccess, address, bytes, &access, 1);
  unsigned word = read_word(address);
  CHECK(cuMemUnmap, address, bytes);
  CHECK(cuMemAddressFree, address, bytes);
  return word;
}

static struct page page;

/* As it is received: nobody waits for the stream of the other one but the stream here. */
static unsigned read_behind_point(unsigned long long point) {
  unsigned word;
  wait_for_point(&page, READY, point);
  CHECK(cuMemcpyDtoHAsync_v2, &word, kept, sizeof word, stream);
  CHECK(cuStreamSynchronize, stream);
  write_point(&page, DONE, point);
  return word;
}

static unsigned queue_points(unsigned long long point, unsigned long long points) {
  for (unsigned long long end = point + points; point < end; point++) {
    wait_for_point(&page, READY, point);
    write_point(&page, DONE, point);
  }
  return 0;
}

static unsigned answer(int socket) {
  struct request request;
  int fd = receive_request(socket, &request);
  switch (request.kind) {
    case KEEP:
      kept = open_handle(&request.handle);
      return 0;
    case DROP:
      CHECK(cuIpcCloseMemHandle, kept);
      return 0;
    case MAPPED:
      return read_word(kept);
    case LEGACY:
      return read_handle(&request.handle);
    case KEEP_POOL:
      kept_pool = import_pool(fd);
      return 0;
    case POOL:
      return read_pointer(kept_pool, &request.pointer);
    case KEEP_PAGE:
      page = map_page(fd);
      return 0;
    case MAPPED_POINTS:
      return read_behind_point(request.point);
    case QUEUE:
      return queue_points(request.point, request.points);
    case FIRST_POOL:
      return read_first_pointer(fd, &request.pointer);
    default:
      return read_virtual(fd, request.bytes);
  }
}

void serve_hand_over(int socket) {
  for (;;) {
    unsigned word = answer(socket);
    if (send(socket, &word, sizeof word, MSG_NOSIGNAL) != (ssize_t)sizeof word) exit(0);
  }
}
