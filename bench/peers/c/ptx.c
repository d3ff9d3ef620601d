/* Files of PTX. */
#include <stdio.h>
#include <stdlib.h>

#include "ptx.h"

#define MOST_BYTES 65536

char *read_ptx(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) fail("the PTX of the bench cannot be opened");
  char *text = calloc(1, MOST_BYTES);
  if (!text) fail("calloc found no room");
  if (!fread(text, 1, MOST_BYTES - 1, file)) fail("the PTX of the bench is empty");
  fclose(file);
  return text;
}
