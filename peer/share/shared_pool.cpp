// Cuts handles into blocks, and decides when a range is reused.
// Threads: any.
#include "peer/share/shared_pool.h"

#include <algorithm>

#include "peer/link/links.h"
#include "runtime/base/process.h"
#include "runtime/base/round_up.h"
#include "runtime/memory/device/shortage.h"
#include "streams/stream/context.h"

namespace weir::peer {
namespace {

constexpr int most_rounds = 1000;  // of one search: other threads may keep taking what becomes free
constexpr std::size_t first_handle = std::size_t{32} << 20, largest_handle = std::size_t{256} << 20;

std::size_t whole_pages(std::size_t handle_bytes, std::size_t page, source_location at) {
  if (handle_bytes <= ~std::size_t{0} / 4)
    return base::round_up(handle_bytes, page);
  throw invalid_use("share_pool", "handle_bytes of " + std::to_string(handle_bytes),
                    "The size has overflowed: check the product it was made from", at, error_id{322});
}

}  // namespace

shared_pool::shared_pool(exports& e, runtime::impl& r, int device, share_pool_options const& o, source_location at)
    : exports_(e),
      runtime_(r),
      device_(device),
      page_(e.about(device, "share_pool", at).granularity),
      handle_bytes_(whole_pages(o.handle_bytes, page_, at)),
      limit_(o.limit) {
  for (weir::device const one : o.readers) {
    int const reader = streams::resolve(one, r, "share_pool", at);
    if (reader == device)
      continue;
    std::string const pair = base::pair_text(reader, device);
    r.open(reader, "share_pool", at);
    if (r.part<links>().prove(reader, device, at) != links::link_state::proven)
      throw not_supported("share_pool", "a reader without a direct link: " + pair,
                          "Omit this reader: copies still reach it", at, error_id{323});
    readers_.push_back(reader);
  }
}

shared_pool::~shared_pool() {
  if (ended_.load() || process_was_forked())
    return;
  auto b = books_.lock();
  for (auto const& one : b->held)
    hand_down(*one, *b->handles.at(one->within->serial).pages);
  for (auto& [serial, h] : b->handles)
    exports_.keep(*h.pages, h.spoilt);
}

// Moves the block's pending uses and importers to its handle.
void shared_pool::hand_down(exported& from, exported& to) noexcept {
  try {
    to.last_uses.insert(to.last_uses.end(), from.last_uses.begin(), from.last_uses.end());
    std::move(from.importers.begin(), from.importers.end(), std::back_inserter(to.importers));
  } catch (...) {
    to.retiring = true;  // its pending uses are unknown: never reuse it
  }
}

bool shared_pool::tighter::operator()(range const& a, range const& b) const noexcept {
  if (a.bytes != b.bytes)
    return a.bytes < b.bytes;
  return a.of == b.of ? a.offset < b.offset : a.of->pages->serial < b.of->pages->serial;
}

bool shared_pool::cut(books& b, exported& block) {
  auto const best = b.free.lower_bound(block.room, tighter{});
  if (best == b.free.end())
    return false;
  range& r = *best;
  handle& in = *r.of;
  // The rest behind it becomes a free range of its own. That may throw, so it comes before all other changes.
  if (r.bytes > block.room) {
    range& rest =
        in.ranges.try_emplace(r.offset + block.room, range{&in, r.offset + block.room, r.bytes - block.room, true})
            .first->second;
    b.free.erase(best);
    b.free.insert(rest);
    r.bytes = block.room;
  } else {
    b.free.erase(best);
  }
  r.free = false;
  block.within = in.pages;
  block.offset = r.offset;
  ++in.blocks;
  ++b.live;
  b.allocated += block.room;
  b.requested += block.bytes;
  return true;
}

// Merges the range with free neighbours. Allocates nothing: the range exists already.
void shared_pool::set_free(books& b, handle& h, std::size_t offset) noexcept {
  auto at = h.ranges.find(offset);
  auto const unlist = [&](range& r) {
    if (r.size.is_linked())
      b.free.erase(b.free.iterator_to(r));
  };
  if (auto const after = std::next(at); after != h.ranges.end() && after->second.free) {
    unlist(after->second);
    at->second.bytes += after->second.bytes;
    h.ranges.erase(after);
  }
  if (at != h.ranges.begin() && std::prev(at)->second.free) {
    auto const before = std::prev(at);
    unlist(before->second);
    before->second.bytes += at->second.bytes;
    h.ranges.erase(at);
    at = before;
  }
  at->second.free = true;
  if (!h.spoilt)
    b.free.insert(at->second);
}

// Removes the handle's ranges from reuse.
void shared_pool::shut(books& b, handle& h) noexcept {
  for (auto& [offset, r] : h.ranges)
    if (r.size.is_linked())
      b.free.erase(b.free.iterator_to(r));
}

// Requires: no other thread looks at the block.
shared_pool::now shared_pool::look(exported& b) noexcept {
  for (importer& one : b.importers)
    one.listen();
  if (!exports_.complete(b))
    return now::in_use;
  if (std::ranges::any_of(b.importers, &importer::was_killed))
    return now::lost;
  if (!std::ranges::all_of(b.importers, &importer::is_done))
    return now::in_use;
  std::erase_if(b.importers, [](importer& one) { return !one.keeps_its_end(); });
  return now::free;
}

void shared_pool::collect() noexcept try {
  struct candidate {
    std::shared_ptr<exported> block;
    now found = now::in_use;
  };
  std::vector<candidate> all;
  {
    // Marked blocks are this thread's alone until they are settled.
    auto b = books_.lock();
    all.reserve(b->held.size());
    for (auto const& block : b->held) {
      if (block->is != exported::state::idle)
        continue;
      block->is = exported::state::looked_at;
      all.push_back({block});
    }
    ++b->in_motion;
  }
  // The driver and the importers are asked without the lock.
  for (candidate& one : all)
    one.found = look(*one.block);

  std::vector<handle> spoilt;
  {
    auto b = books_.lock();
    --b->in_motion;
    moved_.notify_all();
    for (candidate const& one : all) {
      if (one.found != now::in_use)
        ++b->changes;
      settle(*b, *one.block, one.found);
    }
    std::erase_if(b->held, [](auto const& block) { return block->is == exported::state::exported_in_use; });
    b->look_again = 2 * b->held.size() + 32;
    take_out(*b, spoilt, [](handle const& h) { return h.spoilt && h.blocks == 0; });
  }
  for (handle const& h : spoilt)
    exports_.keep(*h.pages, true);
} catch (...) {}  // no host memory: before the first mark, or after all blocks are settled

void shared_pool::settle(books& b, exported& block, now is) noexcept {
  // It stays held, and is looked at again.
  if (is == now::in_use) {
    block.is = exported::state::idle;
    return;
  }
  // collect() knows by this state which blocks are no longer held.
  block.is = exported::state::exported_in_use;
  handle& h = b.handles.at(block.within->serial);
  --h.blocks;
  b.held_bytes -= block.room;
  if (is == now::lost) {
    h.spoilt = true;
    shut(b, h);
    b.lost += block.room;
    h.lost += block.room;
  } else {
    set_free(b, h, block.offset);
    hand_down(block, *h.pages);  // the last sockets show importers that the memory still exists
    auto& kept = h.pages->importers;
    if (kept.size() > h.most_kept) {
      std::erase_if(kept, [](importer& one) { return !one.keeps_its_end(); });
      h.most_kept = 2 * kept.size() + 32;
    }
    h.pages->last_uses.clear();  // these are complete: only the destructor hands down others
  }
}

// Moves the handles that `which` selects out of the books. Allocates only `into`.
template <class Which>
void shared_pool::take_out(books& b, std::vector<handle>& into, Which which) {
  into.reserve(b.handles.size());  // first: it may throw
  for (auto it = b.handles.begin(); it != b.handles.end();) {
    if (!which(it->second)) {
      ++it;
      continue;
    }
    b.reserved -= it->second.pages->pages.bytes();
    b.lost -= it->second.lost;
    shut(b, it->second);
    into.push_back(std::move(it->second));
    it = b.handles.erase(it);
  }
}

std::size_t shared_pool::let_go() noexcept try {
  collect();
  std::vector<handle> unused;
  {
    auto b = books_.lock();
    take_out(*b, unused, [](handle const& h) { return h.blocks == 0; });
  }
  std::size_t bytes = 0;
  for (handle const& h : unused) {
    bytes += h.pages->pages.bytes();
    exports_.keep(*h.pages, h.spoilt);
  }
  return bytes;
} catch (...) {
  return 0;
}

memory_report shared_pool::why_no_room(std::size_t bytes, driver::status last, source_location at) {
  memory_report r = exports_.why_no_room(device_, bytes, last, at);
  r.pool.name = "share_pool";
  r.pool.limit = limit_;
  auto const b = books_.lock();
  r.pool.reserved = b->reserved;
  r.pool.allocated = b->allocated;
  r.pool.pending = b->held_bytes;
  r.pool.cached = b->reserved - b->allocated - b->held_bytes - b->lost;
  r.pool.blocks = static_cast<std::int64_t>(b->live);
  bool const is_full = limit_ && (r.rounded > limit_ || b->reserved > limit_ - r.rounded);
  if (is_full && r.cause != memory_cause::too_large)
    r.cause = memory_cause::share_limit;
  return r;
}

void shared_pool::add_held(books const& b, std::vector<std::vector<clock::stamp>>& all) {
  for (auto const& one : b.held)
    if (one->is == exported::state::idle && std::ranges::all_of(one->importers, &importer::is_done))
      all.push_back(one->last_uses);
}

bool shared_pool::may_have_room(base::guarded<books>::access& b, search& s) {
  moved_.wait(b.lock(), [&] { return b->in_motion == 0 || b->changes != s.seen; });
  if (b->changes == s.seen)
    return false;
  ++s.rounds;
  return s.rounds < most_rounds;
}

bool shared_pool::wait_for_held(search& s) noexcept try {
  ++s.rounds;
  if (s.rounds > most_rounds)
    return false;
  std::vector<std::vector<clock::stamp>> last_uses;  // of each held block
  {
    auto b = books_.lock();
    if (may_have_room(b, s))
      return true;
    add_held(*b, last_uses);  // under the same lock, so that all held blocks are seen
  }
  // The first that completes ends the wait.
  return std::ranges::any_of(last_uses, [&](auto const& uses) { return exports_.wait_for(uses); });
} catch (...) {
  return false;
}

// Charges the bytes of one more handle: at least `least`, and more for later calls. This thread is in motion
// from then on. Returns: the bytes; 0: the limit leaves less than `least`, and nothing is charged. Then `is`
// becomes out_of_memory, unless room may have appeared since the search looked.
std::size_t shared_pool::charge(std::size_t least, search& s, driver::status& is) {
  auto b = books_.lock();
  std::size_t want = handle_bytes_;
  if (want == 0)
    want = base::round_up(std::clamp(b->reserved, first_handle, largest_handle), page_);
  want = std::max(least, want);
  // Without a limit: all that it wants.
  std::size_t left = want;
  if (limit_)
    left = limit_ - std::min(limit_, b->reserved);
  if (left < least) {
    if (!may_have_room(b, s))
      is = {driver::code::out_of_memory};
    return 0;
  }
  want = std::min(want, left / page_ * page_);
  b->reserved += want;
  ++b->in_motion;
  return want;
}

void shared_pool::refund(std::size_t bytes) {
  books_.lock()->reserved -= bytes;
}

void shared_pool::add_handle(std::shared_ptr<exported> const& made, std::size_t bytes) {
  auto b = books_.lock();
  auto& h = b->handles[made->serial];
  try {
    h.ranges.try_emplace(0, range{&h, 0, bytes, true});
  } catch (...) {
    b->handles.erase(made->serial);
    throw;
  }
  h.pages = made;
  b->free.insert(h.ranges.at(0));
}

driver::status shared_pool::grow(std::size_t room, search& s, source_location at) {
  std::size_t const least = base::round_up(room, page_);
  driver::status is;
  std::size_t want = charge(least, s, is);
  if (want == 0)
    return is;
  struct leaves {  // at the end of the call: this thread is no longer in motion
    shared_pool& of;
    search& its;
    ~leaves() {
      auto b = of.books_.lock();
      // What this call has changed is no news to its own search.
      bool const saw_all = its.seen == b->changes;
      ++b->changes;
      if (saw_all)
        its.seen = b->changes;
      --b->in_motion;
      of.moved_.notify_all();
    }
  } const at_the_end{*this, s};
  std::shared_ptr<exported> made;
  try {
    // Nothing waits for bytes that only later calls want.
    auto got = exports_.make(device_, want, want > least ? exports::when_short::refuses : s.then, at);
    if (!got.ok() && want > least) {
      refund(want - least);
      want = least;
      got = exports_.make(device_, want, s.then, at);
    }
    if (!got.ok()) {
      refund(want);
      return got.is;
    }
    made = std::move(got.value);
    for (int const reader : readers_)
      require(exports_.grant(*made, reader), "share_pool", base::gpu_name(reader) + " reads " + base::gpu_name(device_),
              "Try again", at);
    add_handle(made, want);
    return {};
  } catch (...) {
    refund(want);
    if (made)
      exports_.keep(*made, /*retiring*/ false);
    throw;
  }
}

std::shared_ptr<exported> shared_pool::allocate(std::shared_ptr<shared_pool> const& self, clock::stream_clock& home,
                                                std::size_t bytes, source_location at) {
  auto made = std::make_shared<exported>();
  made->device = self->device_;
  made->bytes = bytes;
  made->home = &self->exports_;
  made->users.reserve(1);
  made->last_uses.reserve(1);
  made->users.push_back(exported::user(home));
  driver::status last;
  auto const has_room = [&] {
    last = self->find_room(*made, at);
    return last.ok();
  };
  (void)memory::find_or_run_out(
      {&self->runtime_, "share_pool::allocate", at, home.id()}, has_room,
      [&] { return self->why_no_room(bytes, last, at); }, [&] { self->exports_.count_ran_out(self->device_); });
  made->pool = self;
  self->exports_.begun(*made, home, at);
  return made;
}

driver::status shared_pool::find_room(exported& b, source_location at) {
  // No device holds it, and its size might wrap when it is rounded.
  if (b.bytes > exports_.about(device_, "share_pool::allocate", at).total_memory)
    return {driver::code::out_of_memory};
  b.room = base::round_up(b.bytes, granule);
  // No handle within the limit holds it.
  if (limit_ && base::round_up(b.room, page_) > limit_)
    return {driver::code::out_of_memory};
  for (search s;;) {
    if (cut_at_once(b, &s))
      return {};
    collect();
    if (cut_at_once(b))
      return {};
    driver::status const grown = grow(b.room, s, at);
    if (grown.ok())
      continue;
    // First it waits for this process's work on held blocks of this pool.
    if (wait_for_held(s))
      continue;
    // The last hope are blocks that exports keeps and that other pools hold: the next growth waits for those.
    if (s.then == exports::when_short::waits)
      return grown;
    s.then = exports::when_short::waits;
  }
}

bool shared_pool::cut_at_once(exported& b, search* first_look) {
  bool is_cut = false, holds_many = false;
  {
    auto locked = books_.lock();
    locked->held.reserve(locked->held.size() + locked->live + 1);  // so that put_back() allocates nothing
    is_cut = cut(*locked, b);
    holds_many = locked->held.size() > locked->look_again;
    if (first_look)
      first_look->seen = locked->changes;
  }
  // While there is room nothing else looks at held blocks.
  if (is_cut && holds_many)
    collect();
  return is_cut;
}

void shared_pool::put_back(std::shared_ptr<exported> block) noexcept {
  auto b = books_.lock();
  --b->live;
  b->allocated -= block->room;
  b->requested -= block->bytes;
  b->held_bytes += block->room;
  block->is = exported::state::idle;
  b->held.push_back(std::move(block));
  ++b->changes;  // the next collect() may find it free
}

share_pool_statistics shared_pool::statistics() {
  collect();
  auto const b = books_.lock();
  return {.handles = b->handles.size(),
          .buffers = b->live,
          .reserved = b->reserved,
          .requested = b->requested,
          .allocated = b->allocated,
          .held = b->held_bytes,
          .cached = b->reserved - b->allocated - b->held_bytes - b->lost,
          .lost = b->lost};
}

std::vector<std::string> shared_pool::validate() const {
  auto const b = books_.lock();
  std::vector<std::string> wrong;
  std::size_t reserved = 0, free = 0, taken = 0;
  for (auto const& [serial, h] : b->handles) {
    std::size_t next = 0;
    bool last_free = false;
    for (auto const& [offset, r] : h.ranges) {
      if (offset != next || r.offset != offset || r.of != &h)
        wrong.push_back(base::text("handle ", serial, ": a gap or an overlap before ", offset));
      if (r.free && last_free)
        wrong.push_back(base::text("handle ", serial, ": two free ranges side by side at ", offset));
      if (r.size.is_linked() != (r.free && !h.spoilt))
        wrong.push_back(base::text("handle ", serial, ": the index by size is wrong, at ", offset));
      next = offset + r.bytes;
      (r.free ? free : taken) += r.bytes;
      last_free = r.free;
    }
    if (next != h.pages->pages.bytes())
      wrong.push_back(base::text("handle ", serial, ": its ranges end at ", next));
    reserved += h.pages->pages.bytes();
  }
  if (reserved != b->reserved)
    wrong.push_back(base::text("reserved ", b->reserved, ", handles have ", reserved));
  if (taken != b->allocated + b->held_bytes + b->lost)
    wrong.push_back(base::text("taken ", taken, " != allocated + held + lost"));
  if (reserved != taken + free)
    wrong.push_back("reserved != taken + free");
  return wrong;
}

}  // namespace weir::peer
