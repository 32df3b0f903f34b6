// Imported blocks: each is mapped once, however often it is opened, and kept until its owner frees it.
// Threads: any.
#include <algorithm>
#include <array>
#include <bit>

#include "peer/link/links.h"
#include "peer/share/exports.h"
#include "runtime/base/os_socket.h"
#include "runtime/base/process.h"
#include "runtime/memory/device/shortage.h"

namespace weir::peer {
namespace {

constexpr char const* receiving = "share_channel::receive";

[[noreturn]] void refuse(std::string what, source_location at) {
  throw invalid_use(receiving, std::move(what),
                    "Let the other process send its buffer again, with the same version of weir", at, error_id{297});
}
[[noreturn]] void is_gone(std::string const& name, source_location at) {
  throw peer_disconnected(receiving, name + ": its owner has ended or withdrawn it",
                          "Let a running process send the buffer", at, error_id{298});
}
[[noreturn]] void cannot_talk(std::string const& name, source_location at) {
  throw driver_error(0, receiving, name + ": the socket between this process and its owner failed", "Try again", at,
                     error_id{299});
}

// Unused handles that stay mapped for reuse; each takes up to three descriptors.
constexpr std::size_t most_unused = 256;

}  // namespace

imports::imports(runtime::impl& r)
    : runtime_(r), clocks_(r.part<clock::clocks>()), books_(r.part<observe::external_memory>()) {
  static_cast<void>(r.part<links>());
  r.part<shared_memory>().set(observe::sharing::imported, this);
}

imports::~imports() {
  runtime_.part<shared_memory>().set(observe::sharing::imported, nullptr);
  bool const driver_may_be_gone = process_is_ending() || process_was_forked();
  std::vector<std::shared_ptr<imported>> all;
  std::swap(all, *all_.lock());
  for (auto const& b : all) {
    b->ended = true;
    if (driver_may_be_gone)
      continue;
    bool at_rest = true;
    for (int d = 0; d < runtime_.device_count(); ++d) {
      if (!b->pages.granted(d))
        continue;
      auto const idle = runtime_.machine().synchronize_device(d);
      at_rest &= idle.ok() || idle.what == driver::code::lost;
    }
    if (at_rest)
      b->pages.give_back();
  }
}

int imports::device_named(std::string const& uuid, source_location at) {
  while (uuids_.size() < static_cast<std::size_t>(runtime_.device_count())) {
    int const d = static_cast<int>(uuids_.size());
    auto info = runtime_.machine().info(d);
    require(info.is, receiving, base::gpu_name(d), "Try again", at);
    uuids_.push_back(std::move(info.value.uuid));
  }
  auto const found = std::find(uuids_.begin(), uuids_.end(), uuid);
  if (found != uuids_.end())
    return static_cast<int>(found - uuids_.begin());
  throw not_supported(receiving, "memory of " + uuid + ", a device that is not visible to this process",
                      "List it in CUDA_VISIBLE_DEVICES of both processes", at, error_id{300});
}

// Names in a message are not trusted: the kernel must confirm that both descriptors are the same open file.
// If it cannot, memory with the same names from the same channel matches: that peer had access to it.
std::shared_ptr<imported> imports::find(message const& m, owned_file const& memory, std::uint64_t channel, int device) {
  auto const all = all_.lock();
  auto const found = std::find_if(all->begin(), all->end(), [&](auto const& b) {
    if (b->origin != m.origin || b->serial != m.serial || b->device != device || b->retiring)
      return false;
    auto const is = os::same_open_file(b->file.get(), memory.get());
    return is == os::sameness::same || (is == os::sameness::unknown && b->channel == channel);
  });
  return found == all->end() ? nullptr : *found;
}

// Reads the owner's word, `lent`, so that no other importer can open by it.
void imports::take_word(loaned& with, std::string const& name, source_location at) {
  if (with.taken)
    return;
  std::array<std::byte, 8> text{};
  auto const got = os::receive_message(with.life.get(), text, {});
  if (got.is == os::heard::closed)
    is_gone(name, at);
  if (got.is == os::heard::too_late)
    refuse(name + ": a stale message, the buffer was opened before", at);
  if (got.is != os::heard::message)
    cannot_talk(name, at);
  if (got.bytes != 1 || got.file_count > 0 || static_cast<importer_signal>(text[0]) != importer_signal::lent)
    refuse(name + ": a damaged loan, its owner sent an unexpected signal", at);
  with.taken = true;
}

std::shared_ptr<imported> imports::next_to_unmap() noexcept {
  auto const all = all_.lock();
  std::size_t unused = 0;
  std::shared_ptr<imported> first_retiring, oldest;
  for (auto const& one : *all) {
    if (one->uses > 0)
      continue;
    // The memory or its process has ended.
    if (!one->retiring && (!one->life.is_open() || os::has_hung_up(one->life.get())))
      one->retiring = true;
    if (one->retiring) {
      if (!first_retiring)
        first_retiring = one;
      continue;
    }
    ++unused;
    if (!oldest || one->last_closed < oldest->last_closed)
      oldest = one;
  }
  if (first_retiring)
    return first_retiring;
  if (unused <= most_unused)
    return nullptr;
  oldest->retiring = true;
  return oldest;
}

void imports::sweep() noexcept {
  while (auto const b = next_to_unmap()) {
    // What the driver refuses is tried again by a later call.
    if (!b->pages.give_back())
      return;
    std::erase(*all_.lock(), b);
  }
}

std::shared_ptr<imported> imports::bring_in(message const& m, owned_file const& memory, int device,
                                            source_location at) {
  auto const text = base::text(m.handle_bytes, " B of gpu:", device);
  auto& machine = runtime_.machine();
  auto const info = machine.info(device);
  require(info.is, receiving, text, "Try again", at);
  if (m.handle_bytes > info.value.total_memory)
    refuse(base::text(text, ": that device has ", info.value.total_memory, " B"), at);
  auto made = std::make_shared<imported>();
  made->origin = m.origin;
  made->serial = m.serial;
  made->device = device;
  made->retiring = true;  // until count_use(): after a failure sweep() unmaps it
  all_.lock()->push_back(made);
  auto const h = machine.import_handle(device, m.handle_bytes, memory.get());
  driver::status is = h.is;
  if (is.ok()) {
    made->pages = mapped_handle(machine, h.value, m.handle_bytes);
    is = made->pages.map(info.value.granularity);
    if (is.ok()) {
      made->pages.known_to(books_, device, observe::sharing::imported);
      is = made->pages.grant(device);
    }
  }
  if (is.ok())
    return made;
  sweep();
  if (is.what == driver::code::invalid) {
    char const* const why = machine.simulated() ? os::unfit_to_map(memory.get(), m.handle_bytes) : nullptr;
    refuse(text + ": the descriptor that came with it is " + (why ? why : "not shared memory of a device"), at);
  }
  if (is.what != driver::code::out_of_memory)
    throw_refusal(is, receiving, text, "Try again", at);
  // Without the runtime nothing is logged: a lock is held here. open() asks the program, and logs.
  memory::run_out({nullptr, receiving, at},
                  runtime_.part<memory::device_memory>().on(device).why_no_room(m.bytes, m.handle_bytes, is));
}

void imports::make_reachable(imported& b, int reader, source_location at) {
  if (b.pages.granted(reader))
    return;
  std::string const pair = base::pair_text(reader, b.device);
  runtime_.open(reader, receiving, at);
  auto const is = runtime_.part<links>().prove(reader, b.device, at);
  if (is != links::link_state::proven)
    throw not_supported(receiving,
                        pair + (is == links::link_state::wrong ? ": this link failed its test" : ": no link"),
                        "Open it for " + base::gpu_name(b.device) + " and copy", at, error_id{301});
  require(b.pages.grant(reader), receiving, pair,
          "Open it for " + base::gpu_name(b.device) + " and copy, or repeat the call", at);
}

std::unique_ptr<opened_import> imports::open(message const& m, loaned& with, std::uint64_t channel, int reader,
                                             source_location at) {
  memory_report why{};  // of the last attempt that found no memory
  auto const try_to_open = [&]() -> std::unique_ptr<opened_import> {
    try {
      return open_now(m, with, channel, reader, at);
    } catch (out_of_memory const& e) {
      why = e.report();
      return nullptr;
    }
  };
  auto const count_ran_out = [&] {
    // Else the host ran out.
    if (why.on.is_gpu())
      runtime_.part<memory::device_memory>().on(why.on.index()).count_ran_out();
  };
  return memory::find_or_run_out(
      {&runtime_, receiving, at}, try_to_open, [&] { return why; }, count_ran_out);
}

namespace {
// Such a message cannot be opened by another call, either.
bool is_final(std::exception const& e) {
  return dynamic_cast<std::logic_error const*>(&e) || dynamic_cast<not_supported const*>(&e);
}
}  // namespace

// Writes `opened`, once for each message, however often receive() is repeated.
// Throws: peer_disconnected (the owner has ended), invalid_use or driver_error (the word does not reach it)
void imports::say_opened(loaned& with, std::string const& name, source_location at) {
  os::heard heard = os::heard::message;  // also if an earlier call has written it
  if (os::has_hung_up(with.life.get()))
    heard = os::heard::closed;
  else if (!with.opened)
    heard = say(with.life, importer_signal::opened);
  switch (heard) {
    case os::heard::message: break;
    case os::heard::closed: is_gone(name, at);
    case os::heard::too_late: refuse(name + ": a damaged loan, its owner does not read", at);
    case os::heard::refused: cannot_talk(name, at);
  }
  with.opened = true;
}

std::unique_ptr<opened_import> imports::open_now(message const& m, loaned& with, std::uint64_t channel, int reader,
                                                 source_location at) {
  auto &memory = with.memory, &life = with.life;
  close_postponed();
  base::lock_guard const alone(opening_);
  int const device = device_named(uuid_of(m), at);
  runtime_.open(device, receiving, at);
  auto made = std::make_unique<opened_import>();  // first: it may throw
  std::string const name = base::text("a buffer in handle ", m.serial, " of its owner");
  if (!os::is_message_socket(life.get()))
    refuse(name + ": a damaged loan, its descriptor is not a SOCK_SEQPACKET socket", at);
  take_word(with, name, at);
  auto b = find(m, memory, channel, device);
  if (b && b->pages.bytes() != m.handle_bytes)
    refuse(base::text(name, ": ", m.handle_bytes, " B, but that memory has ", b->pages.bytes(), " B"), at);
  // Before the memory is mapped: if this process is killed, its owner then knows not to reuse the memory.
  say_opened(with, name, at);
  try {
    if (!b)
      b = bring_in(m, memory, device, at);
    make_reachable(*b, reader, at);
    auto const opened = grant_all(*b, runtime_.part<links>().readers(device));
    if (opened.what != driver::code::not_supported)
      require(opened, receiving, name, "Repeat the call: the buffer is still the next message", at);
  } catch (std::exception const& e) {
    if (is_final(e))
      static_cast<void>(say(life, importer_signal::released));  // at once: no work has used it
    // If nothing uses it, sweep() unmaps it.
    if (b) {
      auto const hold = all_.lock();
      if (b->uses == 0)
        b->retiring = true;
    }
    sweep();
    throw;
  }
  // The first descriptor of a handle is kept: find() compares later ones with it.
  if (b->file.is_open()) {
    memory.close();
  } else {
    b->file = std::move(memory);
    b->channel = channel;
  }
  count_use(*b, m, at);
  made->of = std::move(b);
  made->home = this;
  made->life = std::move(life);
  made->bytes = m.bytes;
  made->offset = m.offset;
  made->reader = reader;
  sweep();
  return made;
}

void imports::count_use(imported& b, message const& m, source_location at) {
  auto const hold = all_.lock();
  ++b.uses;
  b.retiring = false;
  // The message omits the block's room in the handle. Assume the whole handle if the buffer begins there
  // and no second one fits behind it.
  bool const whole = m.offset == 0 && m.handle_bytes - m.bytes < std::size_t{2} << 20;
  books_.taken(reinterpret_cast<std::uintptr_t>(b.pages.data()) + m.offset, whole ? m.handle_bytes : m.bytes, m.bytes,
               at);
}

driver::status imports::grant_all(imported& b, std::uint64_t readers) {
  driver::status worst;  // a refusal does not end the loop
  for (; readers; readers &= readers - 1) {
    int const reader = std::countr_zero(readers);
    if (clocks_.lost(reader) || b.pages.granted(reader))
      continue;
    auto s = runtime_.machine().open(reader);
    if (s.ok())
      s = b.pages.grant(reader);
    if (!s.ok() && s.what != driver::code::lost)
      worst = s;
  }
  return worst;
}

driver::status imports::open_to(int device, std::uint64_t readers) {
  base::lock_guard const alone(opening_);  // nothing is mapped or unmapped meanwhile
  std::vector<std::shared_ptr<imported>> const all = *all_.lock();
  driver::status worst;
  for (auto const& b : all) {
    if (b->device != device || b->retiring)
      continue;
    if (auto const s = grant_all(*b, readers); !s.ok())
      worst = s;
  }
  return worst;
}

driver::status imports::open_to(void const* inside, int reader) {
  base::lock_guard const alone(opening_);
  std::vector<std::shared_ptr<imported>> const all = *all_.lock();
  auto const at = reinterpret_cast<std::uintptr_t>(inside);
  for (auto const& b : all)
    if (!b->retiring && at - reinterpret_cast<std::uintptr_t>(b->pages.data()) < b->pages.bytes())
      return grant_all(*b, std::uint64_t{1} << reader);
  return {driver::code::invalid};
}

bool imports::at_rest(imported const& b) {
  for (int d = 0; d < runtime_.device_count(); ++d) {
    if (!b.pages.granted(d) || clocks_.lost(d))
      continue;
    if (clocks_.synchronize_device(d).ok())
      continue;
    // A device that was lost meanwhile runs no work.
    if (!clocks_.lost(d))
      return false;
  }
  return true;
}

void imports::close_at_rest(std::unique_ptr<opened_import> o) noexcept {
  if (at_rest(*o->of))
    return close(*o);
  auto first = postponed_.lock();
  o->postponed_before = std::move(*first);
  *first = std::move(o);
}

void imports::close_postponed() noexcept {
  auto next = std::exchange(*postponed_.lock(), nullptr);
  while (next) {
    auto one = std::move(next);
    next = std::move(one->postponed_before);
    close_at_rest(std::move(one));  // may postpone it again
  }
}

void imports::close(opened_import& o) noexcept {
  if (o.of->ended || process_was_forked())
    return;
  // Before the owner may put another buffer there.
  books_.given_back(reinterpret_cast<std::uintptr_t>(o.of->pages.data()) + o.offset);
  // If this fails, the owner takes this process for a killed one, which is safe.
  static_cast<void>(say(o.life, importer_signal::released));
  auto const hold = all_.lock();
  --o.of->uses;
  if (o.of->uses > 0)
    return;
  // Unused now. Its socket shows when the memory or its process has ended.
  ++closed_;
  o.of->last_closed = closed_;
  o.of->life = std::move(o.life);
}

}  // namespace weir::peer
