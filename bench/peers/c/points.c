/*
 * Ready and done points: the streams of two processes tell each other how far they are, by counters
 * in a page that both have registered with the driver.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "hand-over.h"

#define PAGE_BYTES 4096
/* A process that has died is noticed after so many looks, not for ever. */
#define MOST_LOOKS 20000000000LL

struct page map_page(int fd) {
  struct page page;
  void *memory = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("the page cannot be mapped");
  close(fd);
  CHECK(cuMemHostRegister_v2, memory, PAGE_BYTES, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
  CHECK(cuMemHostGetDevicePointer_v2, &page.address, memory, 0);
  page.words = memory;
  return page;
}

void unmap_page(struct page *page) {
  CHECK(cuMemHostUnregister, (void *)page->words);
  munmap((void *)page->words, PAGE_BYTES);
}

static CUdeviceptr address_of(const struct page *page, enum word word) {
  return page->address + word * sizeof *page->words;
}

void write_point(const struct page *page, enum word word, unsigned long long point) {
  CHECK(cuStreamWriteValue64_v2, stream, address_of(page, word), point, 0);
}

void wait_for_point(const struct page *page, enum word word, unsigned long long point) {
  CHECK(cuStreamWaitValue64_v2, stream, address_of(page, word), point, CU_STREAM_WAIT_VALUE_GEQ);
}

static struct page page;
static unsigned long long last;

static void open_page(void) {
  start_other();
  if (page.words) return;
  int fd = memfd_create("points", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, PAGE_BYTES) != 0) fail("no page");
  int theirs = dup(fd);
  page = map_page(fd);
  hand_over(&(struct request){ .kind = KEEP_PAGE }, theirs);
  close(theirs);
}

static void open_mapped_points(size_t bytes) {
  open_mapped(bytes);
  open_page();
}

/* The change is only queued, behind the other one's reading of what was there before. */
static long long time_mapped_points(long calls, size_t bytes) {
  long long taken = 0;
  (void)bytes;
  for (long call = 0; call < calls; call++) {
    wait_for_point(&page, DONE, last);
    last += 1;
    CHECK(cuMemsetD32Async, mapped_buffer(), (unsigned)last, 1, stream);
    struct request request = { .kind = MAPPED_POINTS, .point = last };
    long long start = now();
    write_point(&page, READY, last);
    unsigned word = hand_over(&request, -1);
    taken += now() - start;
    if (word != (unsigned)last) fail("the other process read another word");
  }
  return taken;
}

static void open_polled(size_t bytes) {
  (void)bytes;
  open_page();
}

/* The other one's waits are queued before; nobody sleeps. */
static long long time_polled(long calls, size_t bytes) {
  (void)bytes;
  hand_over(&(struct request){ .kind = QUEUE, .point = last + 1, .points = calls }, -1);
  long long start = now();
  for (long call = 0; call < calls; call++) {
    last += 1;
    if (page.words[DONE] >= last) fail("a round was done before it began");
    write_point(&page, READY, last);
    for (long long looks = 0; page.words[DONE] < last; looks++)
      if (looks > MOST_LOOKS) fail("a round is not answered");
  }
  return now() - start;
}

/* The stream here waits for the answers, too: all rounds are queued before. */
static long long time_queued(long calls, size_t bytes) {
  (void)bytes;
  hand_over(&(struct request){ .kind = QUEUE, .point = last + 1, .points = calls }, -1);
  long long start = now();
  for (long call = 0; call < calls; call++) {
    last += 1;
    write_point(&page, READY, last);
    wait_for_point(&page, DONE, last);
  }
  for (long long looks = 0; cuStreamQuery(stream) != 0; looks++)
    if (looks > MOST_LOOKS) fail("the rounds are not answered");
  return now() - start;
}

/* A ring of slots: the stream here waits until the slot of so many rounds before was released. */
static long long time_ring(long calls, long slots) {
  unsigned long long first = last;
  hand_over(&(struct request){ .kind = QUEUE, .point = last + 1, .points = calls }, -1);
  long long start = now();
  for (long call = 0; call < calls; call++) {
    last += 1;
    if (last > first + slots) wait_for_point(&page, DONE, last - slots);
    write_point(&page, READY, last);
  }
  for (long long looks = 0; page.words[DONE] < last; looks++)
    if (looks > MOST_LOOKS) fail("the slots are not released");
  return now() - start;
}

static long long time_ring_1(long calls, size_t bytes) { return (void)bytes, time_ring(calls, 1); }
static long long time_ring_8(long calls, size_t bytes) { return (void)bytes, time_ring(calls, 8); }
static long long time_ring_64(long calls, size_t bytes) { return (void)bytes, time_ring(calls, 64); }

const struct batch point_batches[] = {
  { "handOver.mappedPoints", open_mapped_points, .timed = time_mapped_points },
  { "handOver.polled", open_polled, .timed = time_polled },
  { "handOver.queued", open_polled, .timed = time_queued },
  { "handOver.ring.1", open_polled, .timed = time_ring_1 },
  { "handOver.ring.8", open_polled, .timed = time_ring_8 },
  { "handOver.ring.64", open_polled, .timed = time_ring_64 },
  { NULL, NULL, NULL },
};

void close_points(void) {
  if (!page.words) return;
  CHECK(cuStreamSynchronize, stream);
  unmap_page(&page);
}
