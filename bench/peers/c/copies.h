/* The memory of copies, of one size at a time, and how what arrives is looked at. */
#ifndef CUFFI_BENCH_COPIES_H
#define CUFFI_BENCH_COPIES_H

#include "driver.h"

extern CUdeviceptr memory, other;
extern unsigned char *pageable, *pinned;

/* What is in each host memory. */
enum seed { PAGEABLE = 1, PINNED };

typedef CUresult copy_loop(long calls, size_t bytes);

/* Finds the memory from the time before, if it has that size. */
void open_memory(size_t bytes);
void fill(unsigned char *bytes, size_t count, unsigned seed);
/* Fails where anything else is there. */
void require_filled(const unsigned char *bytes, size_t count, unsigned seed);
/* Returns when the device has it. */
void write_device(CUdeviceptr to, const unsigned char *host, size_t bytes);
void clear_device(CUdeviceptr address, size_t bytes);

/* Clear what is copied to, have it copied once more, and compare all of it. */
void verify_to_device(unsigned char *host, unsigned seed, copy_loop *copy, size_t bytes);
void verify_to_host(unsigned char *host, unsigned seed, copy_loop *copy, size_t bytes);
void verify_on_device(copy_loop *copy, size_t bytes);

#endif
