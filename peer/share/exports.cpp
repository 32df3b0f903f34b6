// Exported blocks: creates them, keeps returned ones, and decides when one may be reused.
// Threads: any.
#include <algorithm>
#include <array>
#include <bit>

#include "peer/link/links.h"
#include "peer/share/shared_pool.h"
#include "runtime/base/call_site.h"
#include "runtime/base/os_socket.h"
#include "runtime/base/process.h"
#include "runtime/base/round_up.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/device/shortage.h"

namespace weir::peer {

os::heard say(owned_file const& life, importer_signal w) noexcept {
  std::array const text{static_cast<std::byte>(w)};
  return os::send_message(life.get(), text, {}, {});
}

// An importer sends at most two words, `opened` and `released`. The limit ends the loop if it sends more.
void importer::listen() noexcept {
  for (int words = 0; words < 8 && !closed_ && !released_; ++words) {
    std::array<std::byte, 8> text{};
    os::received const got = os::receive_message(life_.get(), text, {});
    if (got.is == os::heard::closed)
      closed_ = true;
    if (got.is != os::heard::message)
      return;
    opened_ |= static_cast<importer_signal>(text[0]) == importer_signal::opened;
    released_ |= static_cast<importer_signal>(text[0]) == importer_signal::released;
  }
}

driver::result<int> exported::descriptor(driver::driver& machine) noexcept {
  if (int const kept = file.load(base::memory_order_acquire); kept >= 0)
    return {{}, kept};
  if (home)
    home->note_sent(*this);
  auto made = machine.export_handle(pages.handle());
  if (!made.ok())
    return made;
  int first = -1;
  bool const is_first = file.compare_exchange(first, made.value);
  if (is_first)
    return made;
  // Another thread has kept its own meanwhile.
  os::close_file(made.value);
  return {{}, first};
}

void exported::close_descriptor() noexcept {
  int const kept = file.exchange(-1);
  if (kept >= 0)
    os::close_file(kept);
}

bool importer::keeps_its_end() noexcept {
  // After `released` no one listens any more.
  if (released_ && !closed_)
    closed_ = os::has_hung_up(life_.get());
  return !closed_;
}

exports::exports(runtime::impl& r)
    : runtime_(r),
      clocks_(r.part<clock::clocks>()),
      memory_(r.part<memory::device_memory>()),
      books_(r.part<observe::external_memory>()),
      origin_(os::random_number()) {
  r.part<shared_memory>().set(observe::sharing::exported, this);
  callback_ = memory_.add_callback(
      [](void* self, memory_report const& why) {
        return why.on.is_gpu() && static_cast<exports*>(self)->forget_idle() > 0;
      },
      this, -1);
  waiting_callback_ = memory_.add_waiting_callback(
      [](void* self, memory_report const& why) {
        if (!why.on.is_gpu())
          return false;
        auto& all = *static_cast<exports*>(self);
        // Whatever it says: more may be complete by now.
        (void)all.wait_for_kept(why.on.index());
        return all.forget_idle() > 0;
      },
      this);
}

exports::~exports() {
  runtime_.part<shared_memory>().set(observe::sharing::exported, nullptr);
  for (auto const& pool : pools())
    pool->end();
  memory_.remove_callback(callback_);
  memory_.remove_callback(waiting_callback_);
  bool const driver_may_be_gone = process_is_ending() || process_was_forked();
  std::vector<std::shared_ptr<exported>> all;
  std::swap(all, *all_.lock());
  for (auto const& b : all) {
    b->ended = true;
    if (driver_may_be_gone)
      continue;
    b->close_descriptor();
    auto const idle = machine().synchronize_device(b->device);
    // On another error work may still run, so the pages stay mapped.
    if (idle.ok() || idle.what == driver::code::lost)
      b->pages.give_back();
    b->importers.clear();
  }
}

void exports::set(exported& b, exported::state to) noexcept {
  auto const hold = all_.lock();
  b.is = to;
}

std::shared_ptr<exported> exports::next_idle(std::uint64_t after) noexcept {
  auto all = all_.lock();
  for (auto const& b : *all) {
    if (b->serial <= after || b->is != exported::state::idle || b->pins_by_grants > 0)
      continue;
    b->is = exported::state::looked_at;
    return b;
  }
  return nullptr;
}

bool exports::complete(exported const& b) noexcept {
  base::internal_ordering const own_affair(runtime_.observer());
  return std::all_of(b.last_uses.begin(), b.last_uses.end(), [&](clock::stamp s) {
    if (clocks_.complete(s))
      return true;
    try {
      auto const asked = clocks_.poll(s);
      return asked.ok() && asked.value;
    } catch (...) {
      return false;
    }
  });
}

bool exports::forget(exported& b) noexcept {
  b.retiring = true;
  b.importers.clear();  // importers keep their mappings
  b.close_descriptor();
  if (!b.pages.give_back())
    return false;
  std::erase_if(*all_.lock(), [&](auto const& one) { return one.get() == &b; });
  return true;
}

bool exports::wait_for(std::vector<clock::stamp> const& uses) noexcept try {
  base::internal_ordering const own_affair(runtime_.observer());
  bool const collectives = !clocks_.collectives_given().empty();
  return std::ranges::all_of(uses, [&](clock::stamp s) {
    if (clocks_.complete(s))
      return true;
    // The work may wait for a rank that waits for this thread.
    if (collectives)
      return clocks_.ask_for_a_while(s).ok();
    return clocks_.synchronize(s).ok();
  });
} catch (...) {
  return false;
}

bool exports::wait_for_kept(int device) noexcept try {
  std::vector<std::vector<clock::stamp>> last_uses;  // of each freed block
  {
    auto const all = all_.lock();
    for (auto const& b : *all)
      if (b->device == device && b->is == exported::state::idle)
        last_uses.push_back(b->last_uses);
  }
  for (auto const& pool : pools())
    if (pool->device() == device)
      pool->add_held(last_uses);
  std::erase_if(last_uses, [&](auto const& uses) {
    return std::ranges::all_of(uses, [&](clock::stamp s) { return clocks_.complete(s); });
  });
  // Each is waited for, also behind one that is not complete: any may have the size that is wanted.
  return std::ranges::count_if(last_uses, [&](auto const& uses) { return wait_for(uses); }) > 0;
} catch (...) {
  return false;
}

std::size_t exports::forget_idle() noexcept {
  try {
    for (auto const& pool : pools())
      pool->let_go();
  } catch (...) {}  // no host memory: the pools keep their unused handles
  std::size_t bytes = 0;
  std::uint64_t last = 0;
  while (auto const b = next_idle(last)) {
    last = b->serial;
    std::size_t const its = b->pages.bytes();
    // Importers may still use it: the driver keeps the memory while they map it.
    if (complete(*b) && forget(*b))
      bytes += its;
    else
      set(*b, exported::state::idle);
  }
  return bytes;
}

// Returns: a kept block that fits and has no user left; null: there is none.
// On the way, frees blocks that can never be reused.
std::shared_ptr<exported> exports::find_idle(int device, std::size_t bytes) noexcept {
  std::uint64_t last = 0;
  while (auto b = next_idle(last)) {
    last = b->serial;
    for (importer& one : b->importers)
      one.listen();
    bool const was_killed = std::ranges::any_of(b->importers, &importer::was_killed);
    bool const all_done = std::ranges::all_of(b->importers, &importer::is_done);
    // Less than an eighth of the request, or 2 MiB, may stay unused.
    std::size_t const unused = b->pages.bytes() - std::min(b->pages.bytes(), bytes);
    bool const fits =
        b->device == device && b->pages.bytes() >= bytes && unused < std::max(bytes / 8, std::size_t{2} << 20);
    bool const must_go = was_killed || b->retiring;
    bool const can_serve = all_done && fits && !must_go;
    if ((can_serve || must_go) && complete(*b)) {
      if (can_serve)
        return b;
      if (forget(*b))
        continue;
    }
    // It stays: it may serve later, or the driver has refused to take it back.
    set(*b, exported::state::idle);
  }
  return nullptr;
}

driver::status exports::place(exported& b, std::size_t handle_bytes, std::size_t alignment) {
  auto const made = machine().create_shared(b.device, handle_bytes);
  if (!made.ok())
    return made.is;
  b.pages = mapped_handle(machine(), made.value, handle_bytes);
  if (auto const s = b.pages.map(alignment); !s.ok())
    return s;
  b.pages.known_to(books_, b.device, observe::sharing::exported);
  return b.pages.grant(b.device);
}

driver::status exports::grant(exported& b, int reader) {
  if (auto const s = machine().open(reader); !s.ok())
    return s;
  base::lock_guard const alone(granting_);
  return b.pages.grant(reader);
}

driver::status exports::grant_all(exported& b, std::uint64_t readers) {
  for (; readers; readers &= readers - 1) {
    int const reader = std::countr_zero(readers);
    if (clocks_.lost(reader))
      continue;
    if (auto const s = grant(b, reader); !s.ok())
      return s;
  }
  return {};
}

// A thread that opens a device's memory records that before it looks at the existing handles; this function
// reads the record after the handle exists. So one of the two opens it.
void exports::open_as_device(exported& b, source_location at) {
  auto* const ways = runtime_.part_if_made<links>();
  // One reader at a time, lowest first.
  for (std::uint64_t left = ways ? ways->readers(b.device) : 0; left; left &= left - 1) {
    int const reader = std::countr_zero(left);
    auto const s = grant_all(b, std::uint64_t{1} << reader);
    // The link has vanished since, or the reader is lost.
    if (s.what == driver::code::not_supported || s.what == driver::code::lost)
      continue;
    require(s, "exportable_buffer", base::gpu_name(reader) + " reads " + base::gpu_name(b.device), "Try again", at);
  }
}

template <class Which>
driver::status exports::open_some(std::uint64_t readers, Which which) {
  std::vector<std::shared_ptr<exported>> some;
  {
    auto const all = all_.lock();
    some.reserve(all->size());
    for (auto const& b : *all) {
      // A thread that looks at a block opens it itself before the block serves: open_as_device().
      if (b->is == exported::state::looked_at || b->retiring || !which(*b))
        continue;
      some.push_back(b);
      ++b->pins_by_grants;
    }
  }
  driver::status worst;  // a refusal does not end the loop
  for (auto const& b : some) {
    if (auto const s = grant_all(*b, readers); !s.ok())
      worst = s;
    auto const all = all_.lock();
    --b->pins_by_grants;
  }
  return worst;
}

driver::status exports::open_to(int device, std::uint64_t readers) {
  return open_some(readers, [&](exported const& b) { return b.device == device; });
}

driver::status exports::open_to(void const* inside, int reader) {
  auto const at = reinterpret_cast<std::uintptr_t>(inside);
  return open_some(std::uint64_t{1} << reader, [&](exported const& b) {
    return at - reinterpret_cast<std::uintptr_t>(b.pages.data()) < b.pages.bytes();
  });
}

driver::device_info exports::about(int device, char const* operation, source_location at) const {
  auto const info = machine().info(device);
  require(info.is, operation, base::gpu_name(device), "Try again", at);
  if (!info.value.maps)
    throw not_supported(operation, base::gpu_name(device) + ": this device maps no memory",
                        "Copy through the host instead", at, error_id{296});
  return info.value;
}

void exports::remember(std::weak_ptr<shared_pool> one) {
  auto all = pools_.lock();
  std::erase_if(*all, [](auto const& p) { return p.expired(); });
  all->push_back(std::move(one));
}

std::vector<std::shared_ptr<shared_pool>> exports::pools() const {
  std::vector<std::shared_ptr<shared_pool>> out;
  auto const all = pools_.lock();
  for (auto const& one : *all)
    if (auto pool = one.lock())
      out.push_back(std::move(pool));
  return out;
}

void exports::keep(exported& b, bool retiring) noexcept {
  auto const hold = all_.lock();
  b.retiring |= retiring;
  b.is = exported::state::idle;
}

// As long as memory is short: frees what is idle here, then what the device caches, then waits for what is kept.
driver::status exports::place_or_free_some(exported& made, std::size_t bytes, std::size_t page, when_short then) {
  for (int tries = 1;; ++tries) {
    driver::status const is = place(made, bytes, page);
    if (is.what != driver::code::out_of_memory)
      return is;
    // No further try while the driver still has a part of this one.
    if (!made.pages.give_back())
      return is;
    switch (tries) {
      case 1: forget_idle(); break;
      case 2: memory_.on(made.device).empty_cache(); break;
      case 3:
        if (then == when_short::refuses || !wait_for_kept(made.device))
          return is;
        forget_idle();
        break;
      default:
        // For a later call: more may be complete by now.
        forget_idle();
        return is;
    }
  }
}

// What cannot be forgotten, because the driver still has a part of it, stays idle.
void exports::abandon(exported& made) noexcept {
  if (!forget(made))
    set(made, exported::state::idle);
}

driver::result<std::shared_ptr<exported>> exports::make(int device, std::size_t bytes, when_short then,
                                                        source_location at) {
  auto const its = about(device, "exportable_buffer", at);
  // No device holds it, and its size might wrap when it is rounded.
  if (bytes > its.total_memory)
    return {{driver::code::out_of_memory}, nullptr};
  auto made = std::make_shared<exported>();
  made->device = device;
  made->home = this;
  std::copy_n(its.uuid.begin(), std::min(its.uuid.size(), made->uuid.size() - 1), made->uuid.begin());
  // Listed first, as looked at: what the driver will not take back stays listed.
  {
    auto all = all_.lock();
    made->serial = next_serial_.fetch_add(1);
    all->push_back(made);
  }
  driver::status is;
  try {
    is = place_or_free_some(*made, base::round_up(bytes, its.granularity), its.granularity, then);
  } catch (...) {
    abandon(*made);
    throw;
  }
  if (!is.ok()) {
    abandon(*made);
    if (is.what != driver::code::out_of_memory)
      throw_refusal(is, "exportable_buffer", std::to_string(bytes) + " B on " + base::gpu_name(device), "Try again",
                    at);
    return {is, nullptr};
  }
  // Threads that open the device's memory from now on find the handle, because it is in use. What others have
  // opened before is known to open_as_device().
  set(*made, exported::state::exported_in_use);
  try {
    open_as_device(*made, at);
  } catch (...) {
    set(*made, exported::state::idle);  // it is whole: a later take() opens and uses it
    throw;
  }
  return {{}, made};
}

memory_report exports::why_no_room(int device, std::size_t bytes, driver::status last, source_location at) {
  auto const its = about(device, "exportable_buffer", at);
  bool const fits = bytes <= its.total_memory;  // else rounding may wrap
  return memory_.on(device).why_no_room(bytes, fits ? base::round_up(bytes, its.granularity) : bytes, last);
}

std::shared_ptr<exported> exports::take(clock::stream_clock& home, std::size_t bytes, source_location at) {
  int const device = home.device();
  bool was_kept = false;
  driver::status last;
  auto const find_or_make = [&] {
    auto idle = find_idle(device, bytes);
    was_kept = idle != nullptr;
    if (was_kept)
      return idle;
    auto made = make(device, bytes, when_short::waits, at);
    last = made.is;
    return std::move(made.value);
  };
  auto b = memory::find_or_run_out(
      {&runtime_, "exportable_buffer", at, home.id()}, find_or_make,
      [&] { return why_no_room(device, bytes, last, at); }, [&] { memory_.on(device).count_ran_out(); });
  b->importers.clear();
  b->users.clear();
  b->last_uses.clear();
  set(*b, exported::state::exported_in_use);
  try {
    // What make() returns is open. A kept one may have missed new readers while this thread looked at it.
    if (was_kept)
      open_as_device(*b, at);
    b->users.reserve(1);
    b->last_uses.reserve(1);
  } catch (...) {
    set(*b, exported::state::idle);
    throw;
  }
  b->users.push_back(exported::user(home));
  b->bytes = bytes;
  begun(*b, home, at);
  return b;
}

void exports::begun(exported& b, clock::stream_clock& home, source_location at) noexcept {
  auto const first = reinterpret_cast<driver::address>(b.data());
  if (auto* const w = runtime_.observer()) [[unlikely]] {
    try {
      w->allocated({home.device(), driver::stream_handle::none}, first, b.bytes, at);
      w->marked({home.device(), home.handle()}, first);
    } catch (...) {}  // the checker is not told
  }
  books_.taken(first, b.rounded(), b.bytes, at);
}

// The race checker knows from the marks which work the next owner is ordered after.
void exports::tell_freed(exported& b) noexcept {
  constexpr source_location its_end{"the end of its exportable_buffer", "", 0};  // there is no caller's line
  try {
    runtime_.observer()->freed(reinterpret_cast<driver::address>(b.data()), b.bytes, {}, its_end);
  } catch (...) {}  // the checker is not told
}

void exports::give_back(std::shared_ptr<exported> b) noexcept {
  if (!b || process_was_forked() || b->handle().ended)
    return;
  if (b->home->runtime_.observer()) [[unlikely]]
    b->home->tell_freed(*b);
  for (auto const& user : b->users)
    b->last_uses.push_back(user.stream->of_marks().now());  // has room, see users
  b->home->books_.given_back(reinterpret_cast<std::uintptr_t>(b->data()));
  // A block in its pool must not keep the pool alive. This call does, until put_back() has ended.
  auto const pool = std::move(b->pool);
  if (pool)
    return pool->put_back(std::move(b));
  b->home->set(*b, exported::state::idle);
}

}  // namespace weir::peer
