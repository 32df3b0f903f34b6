// Links: queries the driver, tests links and grants memory that is copied often.
// Threads: any. No lock is held over a driver call, except `trying`, which admits one thread to link tests.
#include "peer/link/links.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "peer/link/mapped_handle.h"
#include "peer/link/nvlinks.h"
#include "peer/link/openable_memory.h"
#include "runtime/memory/device/shortage.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"

namespace weir::peer {
namespace {

constexpr std::size_t proof_bytes = std::size_t{64} << 10;
constexpr std::size_t most_flows = 4096;

constexpr std::uint64_t bit(int device) noexcept {
  return std::uint64_t{1} << (device & 63);
}

// A pattern that no stuck line, shifted copy or stale page produces.
void write_pattern(void* to, std::uint64_t salt) {
  auto* const words = static_cast<std::uint64_t*>(to);
  for (std::size_t i = 0; i < proof_bytes / 8; ++i)
    words[i] = (i + 1 + salt) * 0x9e3779b97f4a7c15u;
}

}  // namespace

struct links::state {
  struct pair {
    bool asked = false;
    driver::peer_info claim{};
    link_state is = link_state::claimed;
  };
  struct flow {
    memory::allocator const* of;
    void const* block;
    int from;
    friend bool operator==(flow const&, flow const&) = default;
  };
  struct hash_of_flow {
    std::size_t operator()(flow const& f) const noexcept {
      return reinterpret_cast<std::size_t>(f.block) / 64 * 31 + static_cast<std::size_t>(f.from);
    }
  };
  struct known_pairs {
    std::vector<pair> pairs;
    std::unordered_map<flow, std::size_t, hash_of_flow> flows;  // bytes since the block was last offered for a grant
    std::vector<std::uint64_t> connected{};   // by device: peers that it is connected with, a bit each
    std::vector<bool> met{};                  // pairs: all memory of `to` is open to `from`, or never can be
    std::vector<std::uint64_t> open{};        // by device: readers that all its memory is open to
    std::vector<int> opening{};               // pairs: calls that open all memory of `to` to `from`
    std::vector<std::optional<bool>> maps{};  // by device; empty until the driver has answered
  };
  struct trial_page {
    mapped_handle memory;
    int from, to;
  };
  struct look {           // at a stream whose collectives were not complete
    clock::stamp at;      // work enqueued by then
    std::uint64_t given;  // collectives enqueued by then
  };

  explicit state(runtime::impl& r)
      : owner(r),
        clocks(r.part<clock::clocks>()),
        pinned(r.part<streams::pinned_memory>()),
        memory(r.part<memory::device_memory>()),
        devices(r.device_count()),
        lines(static_cast<std::size_t>(devices)) {
    auto p = in.lock();
    p->pairs.resize(static_cast<std::size_t>(devices) * static_cast<std::size_t>(devices));
    p->connected.resize(static_cast<std::size_t>(devices));
    p->met.resize(p->pairs.size());
    p->opening.resize(p->pairs.size());
    p->open.resize(p->connected.size());
    p->maps.resize(p->connected.size());
  }

  weir::runtime::impl& owner;
  clock::clocks& clocks;
  streams::pinned_memory& pinned;
  memory::device_memory& memory;
  int const devices;
  base::guarded<known_pairs> in;
  base::guarded<std::vector<look>> looks;
  base::mutex trying;  // held during a link test
  // under trying: one stream a device, used by link tests only, so that a test waits for no other work
  std::vector<clock::stream_clock*> lines;
  std::vector<trial_page> pages;           // under trying; between tests, pages that the driver refused to take back
  base::atomic<std::size_t> left_over{0};  // number of these pages
  base::atomic<std::uint64_t> trier{0};    // the thread in a link test; 0: none
  std::uint64_t callback = 0;

  std::size_t index(int from, int to) const noexcept {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(devices) + static_cast<std::size_t>(to);
  }

  // What is known of a pair. The driver is asked until it has answered once.
  driver::result<pair> look_at(int from, int to) {
    {
      auto p = in.lock();
      if (auto const& one = p->pairs[index(from, to)]; one.asked)
        return {{}, one};
    }
    auto const answer = owner.machine().peer(from, to);
    if (!answer.ok())
      return {answer.is, {}};
    auto p = in.lock();
    auto& one = p->pairs[index(from, to)];
    one.asked = true;
    one.claim = answer.value;
    return {{}, one};
  }

  // Whether both are behind a switch, and so may have any number of peers. Few devices never exceed the
  // maximum, with or without a switch. Simulated devices have none.
  bool switched(int from, int to) const {
    auto& machine = owner.machine();
    if (devices <= most_peers + 1 || machine.simulated())
      return false;
    auto const on_fabric = [&](int device) {
      auto const ends = nvlink_ends(machine.info(device).value.pci_bus_id);
      return std::any_of(ends.begin(), ends.end(),
                         [](nvlink_end const& e) { return e.what == nvlink_end::is::fabric; });
    };
    return on_fabric(from) && on_fabric(to);
  }

  // A connection serves both directions and stays. Returns: false if either device has the maximum.
  bool connect(int from, int to) {
    bool const any_number = switched(from, to);
    auto p = in.lock();
    auto &near = p->connected[static_cast<std::size_t>(from)], &far = p->connected[static_cast<std::size_t>(to)];
    if (near & bit(to))
      return true;
    if (!any_number && (std::popcount(near) >= most_peers || std::popcount(far) >= most_peers))
      return false;
    near |= bit(to), far |= bit(from);
    return true;
  }

  // A call that opens all memory of `to` to these readers.
  class opening {
   public:
    opening(state& s, int to, std::uint64_t readers) : of_(s), to_(to), readers_(readers) { count(1); }
    ~opening() { count(-1); }
    opening(opening const&) = delete;

   private:
    void count(int more) noexcept {
      auto p = of_.in.lock();
      for (int from = 0; from < of_.devices; ++from)
        if (readers_ & bit(from))
          p->opening[of_.index(from, to_)] += more;
    }
    state& of_;
    int const to_;
    std::uint64_t const readers_;
  };

  // A busy stream is judged by the stamp of an earlier look: a new stamp would always be behind new work.
  bool under_way(clock::stream_clock& stream, std::vector<look>& before) const {
    auto const settled = [](driver::result<bool> const& done) {
      return done.ok() ? done.value : done.is.what == driver::code::lost;
    };
    std::uint64_t const given = stream.collectives();
    look const now{stream.now(), given};
    auto last = std::find_if(before.begin(), before.end(), [&](look const& l) { return l.at.stream == now.at.stream; });
    bool const idle = settled(clocks.query(stream));
    // The first look: whatever is not complete may be a collective.
    if (last == before.end()) {
      before.push_back(now);
      return !idle;
    }
    if (idle) {
      *last = now;
      return false;
    }
    if (!settled(clocks.poll(last->at)))
      return true;
    // All up to the earlier look is complete, and no collective came after it: what still runs is none.
    if (last->given == given)
      return false;
    // Collectives came after the earlier look: the next call asks about them.
    *last = now;
    return true;
  }

  bool collectives_under_way() {
    std::vector<look> before = std::exchange(*looks.lock(), {});
    bool any = false;
    for (clock::stamp s : clocks.collectives_given())
      if (auto* const stream = clock::find(s.stream))
        any |= under_way(*stream, before);
    // Kept while any is under way: what a stream has answered holds until its next collective.
    if (any)
      *looks.lock() = std::move(before);
    return any;
  }

  clock::stream_clock& line_on(int device, source_location at) {
    auto& stream = lines[static_cast<std::size_t>(device)];
    if (!stream) {
      owner.open(device, "links", at);
      auto const made = owner.machine().create_stream(device, driver::stream_kind::independent, 0);
      if (!made.ok())
        throw_refusal(made.is, "links", "a stream on " + base::gpu_name(device), "Try again", at);
      try {
        stream = &clocks.make(device, made.value, clock::life::own);
      } catch (...) {
        static_cast<void>(owner.machine().destroy_stream(device, made.value));
        throw;
      }
    }
    return *stream;
  }

  // Maps a separate handle on `to`, open to `from`: other data in it would be open to an untested link.
  driver::status map_page(mapped_handle& page, std::size_t bytes, int to, int from) {
    auto& machine = owner.machine();
    auto const made = machine.create(to, bytes);
    if (!made.ok())
      return made.is;
    page = mapped_handle(machine, made.value, bytes);
    auto s = page.map(bytes);
    if (s.ok())
      s = page.grant(to);
    if (s.ok())
      s = page.grant(from);
    return s;
  }

  // If memory is short, retries after freeing cached memory, then idle shared memory.
  driver::status make_page(mapped_handle& page, int to, int from, source_location at) {
    auto const its = owner.machine().info(to);
    if (!its.ok())
      return its.is;
    std::size_t const bytes = its.value.granularity;
    auto& there = memory.on(to);  // the memory that is short
    driver::status last;
    // Returns: whether `last` is final. A shortage of memory is not.
    auto const attempt = [&] {
      for (int tries = 1; tries <= 3; ++tries) {
        last = map_page(page, bytes, to, from);
        if (last.what != driver::code::out_of_memory)
          return true;
        if (!page.give_back())
          return false;  // what is left of it is tried again with the other pages
        auto* const exported = owner.part<shared_memory>().of(observe::sharing::exported);
        if (tries == 1)
          there.empty_cache();
        else if (exported)
          exported->forget_idle();  // after the last try, too: for the next attempt
      }
      return false;
    };
    (void)memory::find_or_run_out(
        {&owner, "links", at}, attempt, [&] { return there.why_no_room(proof_bytes, bytes, last); },
        [&] { there.count_ran_out(); });
    return last;
  }

  // Blocks: until the work of earlier link tests is complete, on streams that carry no other work.
  void give_pages_back() noexcept {
    // Returns: whether no test runs there any more.
    auto const wait_for_tests_on = [&](int device) {
      auto* const stream = lines[static_cast<std::size_t>(device)];
      if (!stream)
        return true;  // no test has reached the device
      auto const is = owner.machine().synchronize_stream(device, stream->handle());
      return is.ok() || is.what == driver::code::lost;
    };
    std::erase_if(pages, [&](trial_page& p) {
      if (!wait_for_tests_on(p.from) || !wait_for_tests_on(p.to))
        return false;
      return p.memory.give_back();
    });
    left_over.store(pages.size());
  }

  // Called when memory is short. Does nothing on the thread of a running test, whose page is in use.
  bool give_left_over_back() noexcept {
    if (left_over.load() == 0 || trier.load() == base::this_thread_id())
      return false;
    base::lock_guard const alone(trying);
    std::size_t const before = pages.size();
    give_pages_back();
    return pages.size() < before;
  }

  // Writes from `from` into memory of `to`, and reads it back on both devices:
  //   sent -> start (from) -> page (to) -> back (from) -> came_back     near
  //                           page (to) -> arrived                      far
  link_state try_out(int from, int to, source_location at) {
    auto& near = line_on(from, at);
    auto& far = line_on(to, at);
    struct trial {  // on every exit the page goes back, when the test's work is done
      state& of;
      ~trial() { of.give_pages_back(), of.trier.store(0); }
    } const its_end{*this};
    trier.store(base::this_thread_id());
    auto const start = allocate_scoped(memory.on(from), near, proof_bytes, at);
    auto const back = allocate_scoped(memory.on(from), near, proof_bytes, at);
    auto const sent = pinned.allocate_scoped(proof_bytes, at), came_back = pinned.allocate_scoped(proof_bytes, at),
               arrived = pinned.allocate_scoped(proof_bytes, at);
    auto const must = [&](driver::status s) { require(s, "links", base::pair_text(from, to), "Try again", at); };
    mapped_handle& page = pages.emplace_back(trial_page{{}, from, to}).memory;
    if (auto const made = make_page(page, to, from, at); !made.ok()) {
      if (made.what == driver::code::not_supported || made.what == driver::code::invalid)
        return link_state::refused;
      must(made);
    }
    void* const on_page = page.data();
    write_pattern(sent.get(), index(from, to));
    std::memset(came_back.get(), 0, proof_bytes);
    std::memset(arrived.get(), 0, proof_bytes);
    must(near.wait(far.now()));  // behind earlier tests
    for (auto const* one : {&sent, &came_back})
      pinned.record_use(one->get(), near);
    pinned.record_use(arrived.get(), far);
    streams::enqueue_copy(near, start.get(), sent.get(), proof_bytes, at);
    streams::enqueue_peer_copy(near, on_page, to, start.get(), from, proof_bytes, at);
    streams::enqueue_peer_copy(near, back.get(), from, on_page, to, proof_bytes, at);
    streams::enqueue_copy(near, came_back.get(), back.get(), proof_bytes, at);
    must(far.wait(near.now()));
    streams::enqueue_copy(far, arrived.get(), on_page, proof_bytes, at);
    must(clocks.synchronize(far.now()));
    bool const right =
        !std::memcmp(came_back.get(), sent.get(), proof_bytes) && !std::memcmp(arrived.get(), sent.get(), proof_bytes);
    return right ? link_state::proven : link_state::wrong;
  }
};

links::links(runtime::impl& r) : state_(std::make_unique<state>(r)) {
  state_->callback = state_->memory.add_callback(
      [](void* self, memory_report const& why) {
        return why.on.is_gpu() && static_cast<state*>(self)->give_left_over_back();
      },
      state_.get(), -1);
}

links::~links() {
  state_->memory.remove_callback(state_->callback);
  if (weir::process_is_ending() || process_was_forked())
    return;
  state_->give_pages_back();
  for (auto* stream : state_->lines) {
    if (!stream)
      continue;
    state_->clocks.retire(*stream);
    static_cast<void>(state_->owner.machine().destroy_stream(stream->device(), stream->handle()));
  }
}

driver::result<driver::peer_info> links::driver_claim(int from, int to) {
  auto const seen = state_->look_at(from, to);
  return {seen.is, seen.value.claim};
}

links::link_state links::known(int from, int to) {
  if (from == to)
    return link_state::proven;
  auto const seen = state_->look_at(from, to).value;
  return seen.claim.access ? seen.is : link_state::refused;
}

links::link_state links::prove(int from, int to, source_location at) {
  if (from != to)
    require(driver_claim(from, to).is, "links", base::pair_text(from, to), "Try again", at);
  auto is = known(from, to);
  if (is != link_state::claimed || !may_be_opened(to))
    return is;
  auto& my = *state_;
  if (my.trier.load() == base::this_thread_id())
    return is;  // a callback of the program, inside a test
  base::lock_guard const alone(my.trying);
  // Another thread may have tested it meanwhile.
  is = known(from, to);
  if (is != link_state::claimed || !my.connect(from, to))
    return is;
  is = my.try_out(from, to, at);
  my.in.lock()->pairs[my.index(from, to)].is = is;
  return is;
}

std::uint64_t links::readers(int device) {
  auto const p = state_->in.lock();
  std::uint64_t all = p->open[static_cast<std::size_t>(device)];
  for (int from = 0; from < state_->devices; ++from)
    if (p->opening[state_->index(from, device)])
      all |= bit(from);
  return all;
}

driver::status links::open_all(int to, std::uint64_t readers) {
  auto& r = state_->owner;
  if (auto const s = state_->memory.on(to).open_to(nullptr, readers); !s.ok())
    return s;
  // Counted before shared memory is opened: a handle that appears meanwhile asks for its readers.
  state::opening const counted(*state_, to, readers);
  driver::status s;
  for (auto const kind : {observe::sharing::exported, observe::sharing::imported}) {
    if (!s.ok())
      break;
    if (auto* const shared = r.part<shared_memory>().of(kind))
      s = shared->open_to(to, readers);
  }
  if (s.ok())
    state_->in.lock()->open[static_cast<std::size_t>(to)] |= readers;
  return s;
}

bool links::may_be_opened(int device) {
  auto const at = static_cast<std::size_t>(device);
  if (auto const said = state_->in.lock()->maps[at])
    return *said;
  auto const info = state_->owner.machine().info(device);
  if (info.ok())
    state_->in.lock()->maps[at] = info.value.maps;
  return !info.ok() || info.value.maps;  // unknown: the grant itself will tell
}

void links::enable_peer_access(int to, clock::stream_clock* home, std::span<int const> readers, source_location at) {
  std::uint64_t all = 0;
  std::string names;
  for (int const from : readers) {
    if (from == to || (all & bit(from)))
      continue;
    must_reach(from, to, "enable_peer_access", at);
    all |= bit(from);
    names += (names.empty() ? "gpu:" : ", gpu:") + std::to_string(from);
  }
  auto const opened = home ? state_->memory.on(to).open_to(home, all) : open_all(to, all);
  require(opened, "enable_peer_access", "memory of gpu:" + std::to_string(to) + " for " + names,
          "Copy instead, or repeat the call", at);
}

bool links::open_to_each_other(int a, int b, source_location at) noexcept {
  auto& my = *state_;
  bool may_have_changed = false;
  for (auto const& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    try {
      if (!my.owner.options().peer_access || from == to || my.in.lock()->met[my.index(from, to)])
        continue;
      if (known(from, to) == link_state::claimed && !may_try())
        continue;
      may_have_changed = true;
      driver::status opened{driver::code::not_supported};  // without a proven link
      if (may_be_opened(to) && prove(from, to, at) == link_state::proven)
        opened = open_all(to, bit(from));
      // All is open, or never can be.
      if (opened.ok() || opened.what == driver::code::not_supported)
        my.in.lock()->met[my.index(from, to)] = true;
    } catch (...) {}  // tried again later: copies work without a grant
  }
  return may_have_changed;
}

bool links::may_try() {
  return !state_->collectives_under_way();
}

void links::must_reach(int from, int to, std::string_view operation, source_location at) {
  auto const is = memory::as_called(operation, [&] { return prove(from, to, at); });
  if (is == link_state::proven)
    return;
  std::string const why =
      is == link_state::wrong     ? "Copy instead: this link failed its test"
      : is == link_state::refused ? "Copy instead: these devices cannot access each other"
      : !may_be_opened(to)
          ? "Copy instead: memory of " + base::gpu_name(to) + " consists of segments, which peers cannot access"
          : "Copy instead: one device already shares memory with " + std::to_string(most_peers) + " devices";
  throw not_supported(std::string(operation), base::pair_text(from, to), why, at, error_id{294});
}

void links::prove_all(std::span<int const> devices, source_location at) noexcept {
  for (int const from : devices) {
    for (int const to : devices) {
      try {
        if (known(from, to) == link_state::claimed && may_try())
          prove(from, to, at);
      } catch (...) {}  // tried again later
      // With options::peer_access, once for each pair.
      if (from < to)
        (void)open_to_each_other(from, to, at);
    }
  }
}

void links::count_bytes(int from, memory::allocator& of, memory::block const& block, std::size_t bytes,
                        source_location at) noexcept {
  auto& my = *state_;
  state::flow const key{&of, block.base, from};
  try {
    {
      auto p = my.in.lock();
      if (p->flows.size() >= most_flows)
        p->flows.clear();  // all are counted anew
      auto& so_far = p->flows[key];
      so_far += bytes;
      if (so_far < worth_times * std::max(block.bytes, least_handle))
        return;
    }
    // A link test may wait for a collective, through a hardware queue that streams share. The collective may
    // wait for a rank of this thread, so the test is postponed.
    if (known(from, of.device()) == link_state::claimed && my.collectives_under_way())
      return;
    // A refused grant, or a later block at this address, is tried again after the same number of bytes.
    my.in.lock()->flows.erase(key);
    if (prove(from, of.device(), at) == link_state::proven)
      static_cast<void>(of.grant(block.base, from));
  } catch (...) {}  // copies work without a grant
}

}  // namespace weir::peer
