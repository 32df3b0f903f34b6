/* Compiled as C99: the header must be valid C, and what it declares is enough for a whole program. */
#include "tests/interop/c_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weir/c.h"

#define CHECK(condition) \
  do {                   \
    if (!(condition))    \
      return __LINE__;   \
  } while (0)
#define OK(call) CHECK((call) == WEIR_OK)
/* The call is refused with that status, and its text has those words. */
#define REFUSED(call, status, words)                                                               \
  do {                                                                                             \
    if ((call) != (status) || weir_last_status() != (status) || !strstr(weir_last_error(), words)) \
      return fprintf(stderr, "refused with: %s\n", weir_last_error()), __LINE__;                   \
  } while (0)

static weir_stream const legacy = 0;

static weir_memory_statistics stats_of(int device) {
  weir_memory_statistics s;
  memset(&s, 0, sizeof s);
  s.size = sizeof s;
  if (weir_memory_stats(device, &s) != WEIR_OK)
    s.blocks = -1;
  return s;
}

int c_blocks_are_allocated_and_freed(void) {
  void *a = 0, *b = 0, *c = 0;
  weir_block found;
  int count = 0, simulated = 0;
  CHECK(weir_c_version() >= WEIR_C_VERSION);
  CHECK(strlen(weir_version()) >= 5);
  OK(weir_device_count(&count));
  CHECK(count == 2);
  OK(weir_is_simulated(&simulated));
  CHECK(simulated == 1);
  OK(weir_allocate(&a, 512, WEIR_DEFAULT_ALIGNMENT, WEIR_CURRENT_DEVICE, legacy));
  OK(weir_allocate(&b, 3000000, 65536, 1, legacy));
  CHECK(a && b && a != b && (size_t)b % 65536 == 0);
  found.size = sizeof found;
  OK(weir_find_block((char*)b + 2999999, &found));
  CHECK(found.base == b && found.bytes == 3000000 && found.device == 1 && found.kind == WEIR_DEVICE_MEMORY);
  CHECK(found.stream != 0);
  OK(weir_record_stream(b, 1, legacy));
  OK(weir_free(a));
  OK(weir_allocate(&c, 512, WEIR_DEFAULT_ALIGNMENT, 0, legacy));
  CHECK(c && c != b);
  OK(weir_free_on_stream(c, 0, legacy));
  OK(weir_free_on_stream(b, 1, legacy));
  OK(weir_free(0));
  OK(weir_free_on_stream(0, 0, legacy));
  OK(weir_allocate(&a, 0, 0, 0, legacy)); /* zero bytes: a block like others */
  OK(weir_allocate(&b, 0, 0, 0, legacy));
  CHECK(a && b && a != b);
  OK(weir_free(a));
  OK(weir_free(b));
  OK(weir_synchronize(0));
  return 0;
}

int c_statistics_count_every_block(void) {
  void* all[10];
  char *json = 0, *summary = 0, *report = 0;
  size_t returned = 0;
  int i;
  weir_memory_statistics before = stats_of(0), now;
  struct { /* a caller compiled against an older header knows fewer members */
    size_t size;
    int64_t allocated_bytes;
    int64_t not_its_own;
  } old = {2 * sizeof(int64_t), 0, 77};
  for (i = 0; i < 10; ++i)
    OK(weir_allocate(&all[i], 1000, 0, 0, legacy));
  now = stats_of(0);
  CHECK(now.blocks == before.blocks + 10 && now.blocks_ever == before.blocks_ever + 10);
  CHECK(now.requested_bytes == before.requested_bytes + 10000);
  CHECK(now.allocated_bytes >= now.requested_bytes);
  CHECK(now.reserved_bytes == now.allocated_bytes + now.pending_bytes + now.cached_bytes);
  OK(weir_memory_stats(0, (weir_memory_statistics*)(void*)&old));
  CHECK(old.allocated_bytes == now.allocated_bytes && old.not_its_own == 77 && old.size == 16);
  OK(weir_memory_stats_json(0, &json));
  CHECK(json[0] == '{' && strstr(json, "\"allocated_bytes.all.current\": ") && json[strlen(json) - 1] == '}');
  OK(weir_memory_summary(0, &summary));
  CHECK(strstr(summary, "gpu:0"));
  OK(weir_memory_report(0, &report));
  CHECK(strstr(report, "gpu:0"));
  weir_free_text(json);
  weir_free_text(summary);
  weir_free_text(report);
  weir_free_text(0);
  for (i = 0; i < 10; ++i)
    OK(weir_free(all[i]));
  now = stats_of(0);
  CHECK(now.blocks == before.blocks && now.allocated_peak >= 10000);
  OK(weir_reset_peak_memory_stats(0));
  CHECK(stats_of(0).allocated_peak == stats_of(0).allocated_bytes);
  OK(weir_empty_cache(0, &returned));
  CHECK(returned > 0 && stats_of(0).reserved_bytes == 0);
  OK(weir_empty_cache(0, 0));
  return 0;
}

int c_limits_are_set_and_met(void) {
  void* p = 0;
  size_t limit = 1;
  OK(weir_set_memory_limit(0, (size_t)8 << 20));
  OK(weir_memory_limit(0, &limit));
  CHECK(limit == (size_t)8 << 20);
  REFUSED(weir_allocate(&p, (size_t)9 << 20, 0, 0, legacy), WEIR_OUT_OF_MEMORY, "largest free");
  CHECK(strstr(weir_last_error(), "gpu:0") && !p);
  CHECK(stats_of(0).out_of_memory_errors == 1);
  OK(weir_allocate(&p, (size_t)4 << 20, 0, 0, legacy)); /* it works on */
  OK(weir_free(p));
  OK(weir_set_memory_fraction(0, 0.5));
  OK(weir_memory_limit(0, &limit));
  CHECK(limit == (size_t)32 << 20);
  OK(weir_set_memory_limit(0, 0));
  OK(weir_memory_limit(0, &limit));
  CHECK(limit == 0);
  REFUSED(weir_set_memory_fraction(0, 1.5), WEIR_INVALID_USE, "1.5");
  return 0;
}

int c_pools_sleep_and_wake(void) {
  weir_pool* pool = 0;
  void *p = 0, *no = 0;
  unsigned char const out[4] = {1, 2, 3, 4};
  unsigned char back[4] = {0, 0, 0, 0};
  size_t given = 0;
  REFUSED(weir_pool_create(&pool, "", 0, 0), WEIR_INVALID_USE, "name");
  REFUSED(weir_pool_wake(0), WEIR_INVALID_USE, "weir_pool_wake");
  OK(weir_pool_create(&pool, "of C", 0, (size_t)4 << 20));
  OK(weir_pool_allocate(pool, &p, 4, 0, legacy));
  REFUSED(weir_pool_allocate(pool, &no, (size_t)5 << 20, 0, legacy), WEIR_OUT_OF_MEMORY, "of C");
  OK(weir_copy(p, out, 4, 0, legacy));
  OK(weir_pool_sleep(pool, 0, &given));
  CHECK(given > 0);
  REFUSED(weir_copy(back, p, 4, 0, legacy), WEIR_INVALID_USE, "asleep");
  OK(weir_pool_wake(pool));
  OK(weir_copy(back, p, 4, 0, legacy));
  CHECK(memcmp(out, back, 4) == 0);
  OK(weir_pool_destroy(pool));
  OK(weir_free(p));
  OK(weir_pool_destroy(0));
  return 0;
}

int c_pinned_memory_carries_bytes(void) {
  unsigned char *out = 0, *back = 0;
  void *on_device = 0, *p = 0;
  size_t const bytes = 100000;
  size_t i, returned = 0;
  weir_block found;
  OK(weir_allocate_pinned(&p, bytes, 0));
  out = p;
  OK(weir_allocate_pinned(&p, bytes, 4096));
  back = p;
  CHECK((size_t)back % 4096 == 0);
  found.size = sizeof found;
  OK(weir_find_block(back + 1, &found));
  CHECK(found.device == -1 && found.kind == WEIR_PINNED_MEMORY && found.stream == 0 && found.bytes == bytes);
  for (i = 0; i < bytes; ++i)
    out[i] = (unsigned char)(i * 7);
  OK(weir_allocate(&on_device, bytes, 0, 1, legacy));
  OK(weir_copy(on_device, out, bytes, 1, legacy));
  OK(weir_copy(back, on_device, bytes, 1, legacy));
  CHECK(memcmp(out, back, bytes) == 0);
  OK(weir_free(on_device));
  OK(weir_free_on_stream(out, 1, legacy));
  OK(weir_free(back));
  OK(weir_synchronize(1));
  OK(weir_empty_pinned_cache(&returned));
  CHECK(returned >= 2 * bytes);
  return 0;
}

int c_bad_input_is_refused_and_loses_nothing(void) {
  void *held = 0, *p = 0;
  char* text = 0;
  int on_stack = 0;
  weir_block found;
  weir_memory_statistics before, after;
  weir_stream const unknown = (weir_stream)(void*)&on_stack;
  weir_pool* no_pool = 0;
  OK(weir_allocate(&held, 4000, 0, 0, legacy));
  before = stats_of(0);
  REFUSED(weir_allocate(0, 16, 0, 0, legacy), WEIR_INVALID_USE, "null for a result");
  REFUSED(weir_allocate(&p, 16, 0, 2, legacy), WEIR_INVALID_USE, "gpu:2 of 2 devices");
  REFUSED(weir_allocate(&p, 16, 0, -2, legacy), WEIR_INVALID_USE, "the ordinal -2");
  REFUSED(weir_allocate(&p, 16, 3, 0, legacy), WEIR_INVALID_USE, "alignment");
  REFUSED(weir_allocate(&p, (size_t)-1, 0, 0, legacy), WEIR_OUT_OF_MEMORY, "overflow");
  CHECK(!p);
  REFUSED(weir_free(&on_stack), WEIR_INVALID_USE, "is not a live block of weir");
  REFUSED(weir_free((char*)held + 8), WEIR_INVALID_USE, "inside the block");
  REFUSED(weir_free_on_stream(&on_stack, 0, legacy), WEIR_INVALID_USE, "is not a live block of weir");
  REFUSED(weir_record_stream(&on_stack, 0, legacy), WEIR_INVALID_USE, "is not a live block of weir");
  REFUSED(weir_record_stream(0, 0, legacy), WEIR_INVALID_USE, "is not a live block of weir");
  REFUSED(weir_allocate(&p, 16, 0, 0, unknown), WEIR_INVALID_USE, "another device");
  REFUSED(weir_unregister_stream(0, unknown), WEIR_INVALID_USE, "not registered");
  found.size = sizeof found;
  REFUSED(weir_find_block(&on_stack, &found), WEIR_INVALID_USE, "no live block");
  found.size = 4;
  REFUSED(weir_find_block(held, &found), WEIR_INVALID_USE, "whose size is 4");
  REFUSED(weir_find_block(held, 0), WEIR_INVALID_USE, "null for a result");
  REFUSED(weir_memory_summary(0, 0), WEIR_INVALID_USE, "null for a result");
  REFUSED(weir_memory_summary(9, &text), WEIR_INVALID_USE, "gpu:9");
  REFUSED(weir_dump_memory_snapshot(0), WEIR_INVALID_USE, "null for a path");
  REFUSED(weir_dump_memory_snapshot("/no such folder/file"), WEIR_INVALID_USE, "/no such folder/file");
  REFUSED(weir_enable_peer_access(0, 0, 1), WEIR_INVALID_USE, "null for the readers");
  REFUSED(weir_pool_create(&no_pool, 0, 0, 0), WEIR_INVALID_USE, "weir_pool_create: null for the name");
  REFUSED(weir_pool_wake(0), WEIR_INVALID_USE, "weir_pool_wake: null for the pool");
  CHECK(!text && weir_last_driver_code() == 0);
  OK(weir_free(held));
  REFUSED(weir_free(held), WEIR_INVALID_USE, "free"); /* twice */
  after = stats_of(0);
  CHECK(after.blocks == before.blocks - 1 && after.reserved_bytes == before.reserved_bytes);
  return c_blocks_are_allocated_and_freed(); /* it works on */
}

int c_history_and_snapshot_are_written(char const* path) {
  void* p = 0;
  FILE* file;
  OK(weir_record_memory_history(0, 0));
  OK(weir_allocate(&p, 5000, 0, 0, legacy));
  OK(weir_free(p));
  OK(weir_stop_memory_history());
  OK(weir_dump_memory_snapshot(path));
  file = fopen(path, "rb");
  CHECK(file && fgetc(file) == 0x80); /* a pickle */
  fclose(file);
  return 0;
}

int c_peers_are_opened(void) {
  int const other = 1;
  void* p = 0;
  OK(weir_allocate(&p, 5000, 0, 0, legacy));
  OK(weir_enable_peer_access_to_block(p, other));
  OK(weir_enable_peer_access(0, &other, 1));
  OK(weir_free(p));
  return 0;
}
