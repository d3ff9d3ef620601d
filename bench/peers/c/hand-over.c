/*
 * Handing device memory to another process over SOCK_SEQPACKET: the other one reads a word that
 * changes in each round, and answers with it. Only the way there and back is timed.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hand-over.h"

static void send_request(int socket, struct request *request, int fd) {
  char control[CMSG_SPACE(sizeof fd)] = { 0 };
  struct iovec part = { request, sizeof *request };
  struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)sizeof *request)
    fail("the other process is gone");
}

static int other = -1;
static pid_t other_pid;
static unsigned last;
/* Of the buffer, and of what the other process has of it. */
static size_t opened_bytes, mapped_bytes;
static CUdeviceptr buffer;
static CUipcMemHandle handle;
static CUmemoryPool pool;

void start_other(void) {
  int sockets[2];
  char number[16];
  if (other >= 0) return;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) fail("no pair of sockets");
  pid_t child = fork();
  if (child < 0) fail("no other process");
  if (child == 0) {
    close(sockets[0]);
    /* It says nothing where this process is listened to, but for its errors. */
    dup2(STDERR_FILENO, STDOUT_FILENO);
    snprintf(number, sizeof number, "%d", sockets[1]);
    execl("/proc/self/exe", "peer", library_path, number, (char *)NULL);
    _exit(1);
  }
  close(sockets[1]);
  other = sockets[0];
  other_pid = child;
}

unsigned hand_over(struct request *request, int fd) {
  unsigned word;
  send_request(other, request, fd);
  if (recv(other, &word, sizeof word, 0) != (ssize_t)sizeof word) fail("the other process is gone");
  return word;
}

/* Changes the word; the device has it when this returns. */
static void write_word(CUdeviceptr address) {
  last += 1;
  CHECK(cuMemcpyHtoD_v2, address, &last, sizeof last);
  CHECK(cuStreamSynchronize, 0);
}

static long long timed(struct request *request, int fd) {
  long long start = now();
  unsigned word = hand_over(request, fd);
  long long end = now();
  if (word != last) fail("the other process read another word");
  return end - start;
}

static void make_buffer(size_t bytes) {
  if (buffer && opened_bytes == bytes) return;
  if (buffer) CHECK(cuMemFree_v2, buffer);
  CHECK(cuMemAlloc_v2, &buffer, bytes);
  CHECK(cuIpcGetMemHandle, &handle, buffer);
  opened_bytes = bytes;
}

/* The other process keeps nothing of it: small memory of other sizes may be in the same block. */
static void open_legacy(size_t bytes) {
  start_other();
  if (mapped_bytes) hand_over(&(struct request){ .kind = DROP }, -1);
  mapped_bytes = 0;
  make_buffer(bytes);
}

void open_mapped(size_t bytes) {
  if (mapped_bytes == bytes) return;
  open_legacy(bytes);
  hand_over(&(struct request){ .kind = KEEP, .handle = handle }, -1);
  mapped_bytes = bytes;
}

CUdeviceptr mapped_buffer(void) {
  return buffer;
}

static long long time_handle(enum kind kind, long calls) {
  long long taken = 0;
  for (long call = 0; call < calls; call++) {
    struct request request = { .kind = kind, .handle = handle };
    write_word(buffer);
    taken += timed(&request, -1);
  }
  return taken;
}

static long long time_mapped(long calls, size_t bytes) {
  (void)bytes;
  return time_handle(MAPPED, calls);
}

static long long time_legacy(long calls, size_t bytes) {
  (void)bytes;
  return time_handle(LEGACY, calls);
}

/* New memory each time. The other process has nothing mapped: opening a block again is ten times as quick. */
static long long time_new_legacy(long calls, size_t bytes) {
  long long taken = 0;
  for (long call = 0; call < calls; call++) {
    CUdeviceptr fresh;
    struct request request = { .kind = LEGACY };
    CHECK(cuMemAlloc_v2, &fresh, bytes);
    write_word(fresh);
    long long start = now();
    CHECK(cuIpcGetMemHandle, &request.handle, fresh);
    long long exported = now() - start;
    taken += exported + timed(&request, -1);
    CHECK(cuMemFree_v2, fresh);
  }
  return taken;
}

static CUmemoryPool make_pool(unsigned long long threshold) {
  CUmemPoolProps props = { 0 };
  CUmemoryPool made;
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device;
  CHECK(cuMemPoolCreate, &made, &props);
  CHECK(cuMemPoolSetAttribute, made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  return made;
}

static int export_pool(CUmemoryPool exported) {
  int fd;
  CHECK(cuMemPoolExportToShareableHandle, &fd, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return fd;
}

static void open_pool(size_t bytes) {
  (void)bytes;
  start_other();
  if (pool) return;
  pool = make_pool(~0ULL);
  int fd = export_pool(pool);
  hand_over(&(struct request){ .kind = KEEP_POOL }, fd);
  close(fd);
}

static CUdeviceptr allocate(CUmemoryPool from, size_t bytes) {
  CUdeviceptr address;
  CHECK(cuMemAllocFromPoolAsync, &address, bytes, from, stream);
  CHECK(cuStreamSynchronize, stream);
  write_word(address);
  return address;
}

static long long time_pointer(struct request *request, CUdeviceptr address, CUmemoryPool first) {
  long long start = now();
  int fd = first ? export_pool(first) : -1;
  CHECK(cuMemPoolExportPointer, &request->pointer, address);
  long long exported = now() - start;
  long long taken = timed(request, fd);
  if (fd >= 0) close(fd);
  CHECK(cuMemFreeAsync, address, stream);
  return exported + taken;
}

static long long time_pool(long calls, size_t bytes) {
  long long taken = 0;
  for (long call = 0; call < calls; call++) {
    struct request request = { .kind = POOL };
    taken += time_pointer(&request, allocate(pool, bytes), NULL);
  }
  return taken;
}

static long long time_first_pool(long calls, size_t bytes) {
  long long taken = 0;
  for (long call = 0; call < calls; call++) {
    struct request request = { .kind = FIRST_POOL };
    CUmemoryPool first = make_pool(0);
    taken += time_pointer(&request, allocate(first, bytes), first);
    CHECK(cuStreamSynchronize, stream);
    CHECK(cuMemPoolDestroy, first);
  }
  return taken;
}

static long long time_virtual_once(size_t asked) {
  struct request request = { .kind = VIRTUAL };
  CUmemAllocationProp props = { 0 };
  CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
  CUmemGenericAllocationHandle memory;
  CUdeviceptr address;
  size_t granularity;
  int fd;
  props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = access.location;
  CHECK(cuMemGetAllocationGranularity, &granularity, &props, 0);
  size_t bytes = (asked + granularity - 1) / granularity * granularity;
  CHECK(cuMemCreate, &memory, bytes, &props, 0);
  CHECK(cuMemAddressReserve, &address, bytes, 0, 0, 0);
  CHECK(cuMemMap, address, bytes, 0, memory, 0);
  CHECK(cuMemSetAccess, address, bytes, &access, 1);
  write_word(address);
  request.bytes = bytes;

  long long start = now();
  CHECK(cuMemExportToShareableHandle, &fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  long long exported = now() - start;
  long long taken = timed(&request, fd);

  close(fd);
  CHECK(cuMemUnmap, address, bytes);
  CHECK(cuMemAddressFree, address, bytes);
  CHECK(cuMemRelease, memory);
  return exported + taken;
}

static long long time_virtual(long calls, size_t bytes) {
  long long taken = 0;
  for (long call = 0; call < calls; call++) taken += time_virtual_once(bytes);
  return taken;
}

#define KILLED_BYTES (64 << 20)

/* From the exit of the other process, killed while it has the memory mapped, until the memory is free. */
static long long time_killed(long calls, size_t bytes) {
  long long taken = 0;
  (void)bytes;
  for (long call = 0; call < calls; call++) {
    start_other();
    CUdeviceptr shared;
    struct request request = { .kind = KEEP };
    CHECK(cuMemAlloc_v2, &shared, KILLED_BYTES);
    CHECK(cuIpcGetMemHandle, &request.handle, shared);
    hand_over(&request, -1);
    kill(other_pid, SIGKILL);
    waitpid(other_pid, NULL, 0);
    long long start = now();
    CHECK(cuMemFree_v2, shared);
    taken += now() - start;
    close(other);
    other = -1;
    mapped_bytes = 0;
  }
  return taken;
}

/* It begins with a process of its own. The last case of them: the one before had pools and pages. */
static void open_killed(size_t bytes) {
  (void)bytes;
  if (other >= 0) close(other);
  other = -1;
  mapped_bytes = 0;
}

static void open_other(size_t bytes) {
  (void)bytes;
  start_other();
}

const struct batch hand_over_batches[] = {
  { "handOver.mapped", open_mapped, .timed = time_mapped },
  { "handOver.pool", open_pool, .timed = time_pool },
  { "handOver.legacy", open_legacy, .timed = time_legacy },
  { "handOver.newLegacy", open_legacy, .timed = time_new_legacy },
  { "handOver.firstPool", open_other, .timed = time_first_pool },
  { "handOver.virtual", open_other, .timed = time_virtual },
  { "receiver.killed", open_killed, .timed = time_killed },
  { NULL, NULL, NULL },
};

/* The other process ends with its socket. */
void close_hand_over(void) {
  if (other >= 0) close(other);
  if (buffer) CHECK(cuMemFree_v2, buffer);
  if (pool) CHECK(cuMemPoolDestroy, pool);
}
