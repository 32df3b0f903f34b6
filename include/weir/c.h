/* weir/c.h: the C interface, for C99 and C++. It allocates from the process's default runtime.
   Threads: any. Every call answers a status; nothing throws through it. A refused call has changed nothing
   and left its text in weir_last_error(). Results (`out` and other pointers) are written on success only.

   Devices are ordinals. WEIR_CURRENT_DEVICE is the one that the thread chose by weir_set_device, first 0: not what
   cudaSetDevice chose. Name the device where a program calls that.
   A stream is a CUDA stream: cudaStream_t, CUstream. Null is the legacy stream of the device that the call
   names. Any other handle is that of a registered stream (weir_register_stream) or of weir's own, or is
   borrowed: then the stream has to exist during the call only. cudaStreamPerThread is the caller's own.
   weir makes no stream here: each stays ordered with the legacy stream, or not, as the program made it.

   Stable: a later version adds calls, status values and members at the end of structs. It changes none. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "weir/export.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* the CUDA toolkit's tag */
typedef struct CUstream_st* weir_stream;

#define WEIR_C_VERSION 2 /* of this header; grows with each addition */
#define WEIR_CURRENT_DEVICE (-1)

/* Of the library: it has all that headers up to this number declare. */
WEIR_API int weir_c_version(void);
WEIR_API char const* weir_version(void); /* "0.1.0" */

typedef enum weir_status {
  WEIR_OK = 0,
  WEIR_INVALID_USE = 1,   /* a wrong argument, or a call at a wrong time */
  WEIR_OUT_OF_MEMORY = 2, /* of the device, or page-locked; the text is the report */
  WEIR_NOT_SUPPORTED = 3, /* this machine or build cannot do it */
  WEIR_DEVICE_LOST = 4,   /* for the rest of the process */
  WEIR_DRIVER_ERROR = 5,  /* the driver refused; weir_last_driver_code() has its number */
  WEIR_TIMED_OUT = 6,
  WEIR_NO_HOST_MEMORY = 7, /* the host has none left for weir's own records */
  WEIR_UNKNOWN_ERROR = 8
} weir_status;

/* Of this thread's last refused call: what, with which values, and the remedy. Empty if none was refused.
   Valid until this thread's next refused call. */
WEIR_API char const* weir_last_error(void);
WEIR_API weir_status weir_last_status(void); /* of that call; WEIR_OK if none was refused */
WEIR_API int weir_last_driver_code(void);    /* CUresult of a WEIR_DRIVER_ERROR; else 0 */

/* Texts that a call returns are the caller's. Null does nothing. */
WEIR_API void weir_free_text(char* text);

/* Devices -------------------------------------------------------------------------------------------------- */

WEIR_API weir_status weir_device_count(int* count);
WEIR_API weir_status weir_is_simulated(int* yes); /* 1: devices are simulated, in this process */
WEIR_API weir_status weir_set_device(int device); /* for this thread, in weir and in CUDA */
/* Waits for all work of the device, also of streams that weir does not know. */
WEIR_API weir_status weir_synchronize(int device);

/* Memory ----------------------------------------------------------------------------------------------------- */

#define WEIR_DEFAULT_ALIGNMENT ((size_t)0) /* 512 B from 16 KiB on, at least 16 B below */

/* Allocates device memory for work of that stream, which may use it at once. Zero bytes are valid, and such a
   block has an address of its own. alignment: a power of two up to 2 MiB. */
WEIR_API weir_status weir_allocate(void** block, size_t bytes, size_t alignment, int device, weir_stream stream);
/* Frees a block of device or page-locked memory. Null does nothing. The next allocation on the block's own
   stream may reuse it at once; another stream's only after the work that is enqueued now. Blocks of borrowed
   streams: see weir_free_on_stream. */
WEIR_API weir_status weir_free(void* block);
/* The same, after declaring that `stream` of that device has used the block until now. A borrowed stream's memory
   serves other streams soon if it is freed so, and its own stream is named: a fence may be recorded there. */
WEIR_API weir_status weir_free_on_stream(void* block, int device, weir_stream stream);
/* Declares that `stream` uses the block: when freed, it is not reused before the work that the stream has
   then. Addresses inside the block are valid. */
WEIR_API weir_status weir_record_stream(void const* block, int device, weir_stream stream);

/* Page-locked host memory, near the current device. Free it with weir_free. */
WEIR_API weir_status weir_allocate_pinned(void** block, size_t bytes, size_t alignment);

/* Copies between any two addresses, on that stream, and waits for the copy. */
WEIR_API weir_status weir_copy(void* to, void const* from, size_t bytes, int device, weir_stream stream);

enum weir_memory_kind { WEIR_DEVICE_MEMORY = 0, WEIR_PINNED_MEMORY = 1 };
typedef struct weir_block {
  size_t size; /* in: sizeof(weir_block) */
  void* base;
  size_t bytes;    /* as requested */
  int device;      /* -1: host memory */
  int kind;        /* enum weir_memory_kind */
  uint64_t stream; /* weir's number of its stream; 0: none */
} weir_block;
/* Finds the live block that holds the address. WEIR_INVALID_USE: none of weir's does. */
WEIR_API weir_status weir_find_block(void const* address, weir_block* out);

/* Bytes that weir may reserve on the device; 0: no limit. */
WEIR_API weir_status weir_set_memory_limit(int device, size_t bytes);
WEIR_API weir_status weir_memory_limit(int device, size_t* bytes);
WEIR_API weir_status weir_set_memory_fraction(int device, double of_total); /* 0 < of_total <= 1 */
/* Returns cached memory to the driver. `bytes` may be null. Blocks: until freed memory is complete. */
WEIR_API weir_status weir_empty_cache(int device, size_t* bytes);
WEIR_API weir_status weir_empty_pinned_cache(size_t* bytes);

/* Opens all memory of `owner`, now and later, to kernels of the readers. Blocks: about 0.15 ms a handle. */
WEIR_API weir_status weir_enable_peer_access(int owner, int const* readers, size_t count);
/* The same for the one block that holds the address. */
WEIR_API weir_status weir_enable_peer_access_to_block(void const* block, int reader);

/* Pools ------------------------------------------------------------------------------------------------------ */

typedef struct weir_pool weir_pool; /* a part of a device's memory with a name and a limit: weir/pool.h */
/* limit: bytes held from the driver; 0: none */
WEIR_API weir_status weir_pool_create(weir_pool** out, char const* name, int device, size_t limit);
/* Live blocks stay valid. Null does nothing. */
WEIR_API weir_status weir_pool_destroy(weir_pool*);
/* weir_allocate from the pool, on its device. Free the block with weir_free. */
WEIR_API weir_status weir_pool_allocate(weir_pool*, void** block, size_t bytes, size_t alignment, weir_stream stream);
/* Writes what lives in the pool to page-locked memory, or with `drop` forgets it, and gives its pages to the device.
   Until weir_pool_wake the blocks can only be freed. `bytes`, which the device has back, may be null.
   Blocks: until all work on the pool is complete, and written. */
WEIR_API weir_status weir_pool_sleep(weir_pool*, int drop, size_t* bytes);
WEIR_API weir_status weir_pool_wake(weir_pool*); /* the same addresses. Refused: it stays asleep, and whole */

/* Streams ---------------------------------------------------------------------------------------------------- */

/* Registers a stream of the program. It then has what weir's own have: caches of each thread, fences only when
   another stream looks. Each allocation asks whether it is captured. Registered twice, it is one stream.
   Requires: the stream exists until the last weir_unregister_stream, and is not in use by a call then. */
WEIR_API weir_status weir_register_stream(int device, weir_stream stream);
WEIR_API weir_status weir_unregister_stream(int device, weir_stream stream);

/* What is where ---------------------------------------------------------------------------------------------- */

typedef struct weir_memory_statistics {
  size_t size;             /* in: sizeof(weir_memory_statistics); members beyond it are not written */
  int64_t allocated_bytes; /* in live blocks, rounded */
  int64_t allocated_peak;  /* since weir_reset_peak_memory_stats */
  int64_t requested_bytes; /* in live blocks, as requested */
  int64_t reserved_bytes;  /* held from the driver = allocated + pending + cached */
  int64_t reserved_peak;
  int64_t pending_bytes; /* freed, and a stream may still use them */
  int64_t cached_bytes;  /* unused */
  int64_t blocks;        /* live */
  int64_t blocks_ever;   /* allocated so far */
  int64_t out_of_memory_errors;
  int64_t fences;         /* events recorded for reuse */
  int64_t waits_inserted; /* device waits inserted for reuse */
} weir_memory_statistics;
WEIR_API weir_status weir_memory_stats(int device, weir_memory_statistics* out);
/* All counters, as one JSON object: torch.cuda.memory_stats' keys, and weir's own. */
WEIR_API weir_status weir_memory_stats_json(int device, char** text);
WEIR_API weir_status weir_memory_summary(int device, char** text); /* a table, for people */
/* Where the device's memory is, and what would free some, as an out of memory reports it. */
WEIR_API weir_status weir_memory_report(int device, char** text);
WEIR_API weir_status weir_reset_peak_memory_stats(int device);

/* Records every allocation and free, the newest `events` of them. 0: 65536. stacks: with call stacks. */
WEIR_API weir_status weir_record_memory_history(size_t events, int stacks);
WEIR_API weir_status weir_stop_memory_history(void); /* keeps what was recorded */
/* Writes layout and history of all devices for PyTorch's memory viewer. */
WEIR_API weir_status weir_dump_memory_snapshot(char const* path);

#ifdef __cplusplus
}
#endif
