/* A C program on weir: rows of a table go through device memory, and each comes back right, although the device may
   hold only a part of them at a time. What does not fit is refused, and the program frees its oldest rows and goes on.
   On a machine without GPUs the devices are simulated. Threads: one. */
#include <stdio.h>
#include <stdlib.h>

#include "weir/c.h"

enum { rows = 64, row_bytes = 1 << 20, limit_bytes = 16 << 20 };

static void must(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s\n", weir_last_error());
  exit(1);
}

static void write_row(unsigned char* to, int row) {
  for (int i = 0; i < row_bytes; ++i)
    to[i] = (unsigned char)(row * 31 + i % 251);
}
static int is_row(unsigned char const* from, int row) {
  for (int i = 0; i < row_bytes; ++i) {
    if (from[i] != (unsigned char)(row * 31 + i % 251))
      return 0;
  }
  return 1;
}

int main(void) {
  int const device = 0;
  weir_stream const stream = 0; /* the legacy stream; with CUDA any cudaStream_t */
  void *page = 0, *table[rows];
  int oldest = 0, right = 0, refused = 0;

  must(weir_set_memory_limit(device, limit_bytes));
  must(weir_allocate_pinned(&page, row_bytes, WEIR_DEFAULT_ALIGNMENT));
  for (int row = 0; row < rows; ++row) {
    weir_status status;
    while ((status = weir_allocate(&table[row], row_bytes, WEIR_DEFAULT_ALIGNMENT, device, stream)) ==
               WEIR_OUT_OF_MEMORY &&
           oldest < row) {
      ++refused; /* weir_last_error() has the report: what the memory is used for, and what would free some */
      must(weir_copy(page, table[oldest], row_bytes, device, stream));
      right += is_row(page, oldest);
      must(weir_free(table[oldest++]));
    }
    must(status);
    write_row(page, row);
    must(weir_copy(table[row], page, row_bytes, device, stream));
  }
  for (; oldest < rows; ++oldest) {
    must(weir_copy(page, table[oldest], row_bytes, device, stream));
    right += is_row(page, oldest);
    must(weir_free_on_stream(table[oldest], device, stream));
  }
  must(weir_free(page));

  weir_memory_statistics now = {.size = sizeof now};
  must(weir_memory_stats(device, &now));
  printf("%d of %d rows are right; %d did not fit at once; %lld blocks are left; peak %lld MiB of %d\n", right, rows,
         refused, (long long)now.blocks, (long long)(now.allocated_peak >> 20), limit_bytes >> 20);
  return right == rows && refused > 0 && now.blocks == 0 && now.allocated_peak <= limit_bytes ? 0 : 1;
}
