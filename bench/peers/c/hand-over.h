/* What the two processes of a hand-over say to each other. */
#ifndef CUFFI_BENCH_HAND_OVER_H
#define CUFFI_BENCH_HAND_OVER_H

#include "driver.h"

/* What is asked of the other process. */
enum kind { KEEP, DROP, MAPPED, LEGACY, KEEP_POOL, POOL, FIRST_POOL, VIRTUAL };

/* Beside it a file descriptor may come. */
struct request {
  enum kind kind;
  size_t bytes;
  union {
    CUipcMemHandle handle;
    CUmemPoolPtrExportData pointer;
  };
};

#endif
