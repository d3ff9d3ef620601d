/* What the two processes of a hand-over say to each other. */
#ifndef CUFFI_BENCH_HAND_OVER_H
#define CUFFI_BENCH_HAND_OVER_H

#include "driver.h"

/* What is asked of the other process. */
enum kind {
  KEEP, DROP, MAPPED, LEGACY, KEEP_POOL, POOL, FIRST_POOL, VIRTUAL, KEEP_PAGE, MAPPED_POINTS, QUEUE
};

/* Beside it a file descriptor may come. */
struct request {
  enum kind kind;
  size_t bytes;
  /* Of points: the first that is meant, and how many. */
  unsigned long long point, points;
  union {
    CUipcMemHandle handle;
    CUmemPoolPtrExportData pointer;
  };
};

/* A page of counters that both have mapped: their streams write it and wait for it, their CPUs read it. */
struct page {
  volatile unsigned long long *words;
  CUdeviceptr address;
};
/* How far the stream of the one who hands over is, and that of the other one. */
enum word { READY, DONE };

struct page map_page(int fd);
void unmap_page(struct page *page);
void write_point(const struct page *page, enum word word, unsigned long long point);
void wait_for_point(const struct page *page, enum word word, unsigned long long point);

/* Starts the other process, once. */
void start_other(void);
/* Sends a request, and a descriptor where it is none below 0; answers with the word that was read. */
unsigned hand_over(struct request *request, int fd);
/* Makes the buffer, and has the other process map it. */
void open_mapped(size_t bytes);
/* Its address. */
CUdeviceptr mapped_buffer(void);

#endif
