/* What a C program does with weir/c.h. Each function returns 0, or the line of the first check that failed.
   Threads: the caller's; the runtime is the thread's current one. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

int c_blocks_are_allocated_and_freed(void);
int c_statistics_count_every_block(void);
int c_limits_are_set_and_met(void);
int c_pools_sleep_and_wake(void);
int c_pinned_memory_carries_bytes(void);
int c_bad_input_is_refused_and_loses_nothing(void);
int c_history_and_snapshot_are_written(char const* path);
int c_peers_are_opened(void);

#ifdef __cplusplus
}
#endif
