/* The PTX that the programs of the bench share. */
#ifndef CUFFI_BENCH_PTX_H
#define CUFFI_BENCH_PTX_H

#include "driver.h"

/* A file of PTX as text, which the caller frees; fails where it cannot be read. */
char *read_ptx(const char *path);

#endif
