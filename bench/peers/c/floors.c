/*
 * The floor of a message to another process and back, without the driver: 21 bytes through a socket, an
 * eventfd, and a counter in shared memory for which a futex wakes, or on which both spin.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

#define MESSAGE_BYTES 21
#define PAGE_BYTES 4096
/* Each counter has a cache line of its own. */
#define LINE 16
/* Where both have the same CPU, spinning alone would take the scheduler's time. */
#define LOOKS_BEFORE_YIELD 100000

enum way { BY_SOCKET, BY_EVENTFD, BY_FUTEX, BY_SPINNING };
/* Whose turn a counter or an eventfd tells. */
enum side { HERE, THERE };
struct order { enum way way; long rounds; };

static int sockets[2] = { -1, -1 }, events[2];
static volatile int *counters;

static void tell(enum way way, enum side from) {
  unsigned long long one = 1;
  char message[MESSAGE_BYTES] = { 0 };
  volatile int *counter = &counters[LINE * (1 - from)];
  ssize_t written = sizeof message;
  if (way == BY_SOCKET) written = send(sockets[from], message, sizeof message, MSG_NOSIGNAL);
  else if (way == BY_EVENTFD) written = write(events[1 - from], &one, sizeof one);
  else __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
  if (way == BY_FUTEX) syscall(SYS_futex, counter, FUTEX_WAKE, 1, NULL, NULL, 0);
  if (written <= 0) _exit(1);
}

static void await(enum way way, enum side at, int before) {
  unsigned long long count;
  char message[64];
  volatile int *counter = &counters[LINE * at];
  ssize_t taken = 1;
  if (way == BY_SOCKET) taken = recv(sockets[at], message, sizeof message, 0);
  else if (way == BY_EVENTFD) taken = read(events[at], &count, sizeof count);
  else
    for (long looks = 0; __atomic_load_n(counter, __ATOMIC_SEQ_CST) == before; looks++)
      if (way == BY_FUTEX) syscall(SYS_futex, counter, FUTEX_WAIT, before, NULL, NULL, 0);
      else if (looks > LOOKS_BEFORE_YIELD) sched_yield();
  if (taken <= 0) _exit(1);
}

/* The other process: obeys until the socket is closed. */
static void answer_all(void) {
  struct order order;
  while (recv(sockets[THERE], &order, sizeof order, 0) == (ssize_t)sizeof order) {
    int before = counters[LINE * THERE];
    tell(BY_SOCKET, THERE);
    for (long round = 0; round < order.rounds; round++) {
      await(order.way, THERE, before + (int)round);
      tell(order.way, THERE);
    }
  }
  _exit(0);
}

static void open_floors(size_t bytes) {
  (void)bytes;
  if (counters) return;
  counters = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int side = HERE; side <= THERE; side++) events[side] = eventfd(0, EFD_CLOEXEC);
  if (counters == MAP_FAILED || events[THERE] < 0) fail("no memory or no eventfd");
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) fail("no pair of sockets");
  pid_t child = fork();
  if (child < 0) fail("no other process");
  if (child == 0) {
    close(sockets[HERE]);
    answer_all();
  }
  close(sockets[THERE]);
}

static long long time_rounds(enum way way, long calls) {
  struct order order = { way, calls };
  int before = counters[LINE * HERE];
  if (send(sockets[HERE], &order, sizeof order, MSG_NOSIGNAL) != (ssize_t)sizeof order)
    fail("the other process is gone");
  await(BY_SOCKET, HERE, 0);
  long long start = now();
  for (long call = 0; call < calls; call++) {
    tell(way, HERE);
    await(way, HERE, before + (int)call);
  }
  return now() - start;
}

#define BATCH(name, way) \
  static long long name(long calls, size_t bytes) { return (void)bytes, time_rounds(way, calls); }
BATCH(time_socket, BY_SOCKET)
BATCH(time_eventfd, BY_EVENTFD)
BATCH(time_futex, BY_FUTEX)
BATCH(time_spinning, BY_SPINNING)

const struct batch floor_batches[] = {
  { "message.socket", open_floors, .timed = time_socket },
  { "message.eventfd", open_floors, .timed = time_eventfd },
  { "message.futex", open_floors, .timed = time_futex },
  { "message.spinning", open_floors, .timed = time_spinning },
  { NULL, NULL, NULL },
};

/* The other process ends with its socket. */
void close_floors(void) {
  if (counters) close(sockets[HERE]);
}
