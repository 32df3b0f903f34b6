// The owner's and the reader's steps of each row. Rounds of weir and of the driver alternate, and both
// processes run the same rounds.
// Threads: one.
#include "bench_share.h"

#include <algorithm>
#include <array>

#include "runtime/base/os_socket.h"
#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir::tool {
namespace {

constexpr std::chrono::seconds patience{60};
constexpr char const* operation = "bench share";
constexpr int sendings = 4, trips = 50, depth = 4;

double us_since(std::int64_t from) {
  return static_cast<double>(base::now_ns() - from) * 1e-3;
}

void must(driver::status s, char const* what) {
  require(s, operation, what, "Use less, or try again", source_location::current());
}

// Shared memory by the driver's calls alone.
class raw_memory {
 public:
  raw_memory(share_half const& h, size_t bytes, int file = -1) : machine_(h.machine()) {
    runtime::current().get().open(0, operation, source_location::current());
    auto const info = machine_.info(0);
    must(info.is, "gpu:0");
    size_t const page = info.value.granularity, whole = (bytes + page - 1) / page * page;
    auto const made = file < 0 ? machine_.create_shared(0, whole) : machine_.import_handle(0, whole, file);
    must(made.is, "memory to share");
    pages_ = peer::mapped_handle(machine_, made.value, whole);
    must(pages_.map(page), "addresses");
    must(pages_.grant(0), "access");
    if (file >= 0)
      must(pages_.grant(h.device), "access");
  }
  raw_memory(raw_memory&&) = default;
  raw_memory& operator=(raw_memory&&) = delete;
  ~raw_memory() { pages_.give_back(); }
  void* data() const noexcept { return pages_.data(); }
  void send(share_half const& h) const {
    auto const file = machine_.export_handle(pages_.handle());
    must(file.is, "a descriptor");
    peer::owned_file const own(file.value);
    h.say(0, own.get());
  }

 private:
  driver::driver& machine_;
  peer::mapped_handle pages_;
};

void forget_idle() {
  runtime::current().get().part<peer::exports>().forget_idle();
}

// make: time to create memory that can be sent. Rounds free nothing: the driver clears freed memory
// asynchronously, which would slow down the next round.
void make(share_half& h, size_t bytes, share_samples& out) {
  std::vector<exportable_buffer> all;
  std::vector<raw_memory> raw;
  all.reserve(static_cast<size_t>(h.rounds) + 1), raw.reserve(static_cast<size_t>(h.rounds) + 1);
  forget_idle();
  for (int i = 0; i <= h.rounds; ++i) {
    std::int64_t from = base::now_ns();
    all.emplace_back(bytes, 0);
    out.weir.push_back(us_since(from));
    from = base::now_ns();
    raw.emplace_back(h, bytes);
    out.raw.push_back(us_since(from));
  }
  all.clear();
  forget_idle();
}
void nothing(share_half&, size_t, share_samples&) {}

// send: the call alone, for a buffer that the reader has mapped already.
void send(share_half& h, size_t bytes, share_samples& out) {
  exportable_buffer const b(bytes, 0);
  raw_memory const m(h, bytes);
  h.on.synchronize();
  for (int i = 0; i <= h.rounds; ++i) {
    std::int64_t from = base::now_ns();
    for (int k = 0; k < sendings; ++k)
      h.line.send(b, h.on);
    out.weir.push_back(us_since(from) / sendings);
    h.hear();
    from = base::now_ns();
    for (int k = 0; k < sendings; ++k)
      m.send(h);
    out.raw.push_back(us_since(from) / sendings);
    h.hear();
  }
}
void receive_all(share_half& h, size_t, share_samples&) {
  peer::owned_file file;
  for (int i = 0; i <= h.rounds; ++i) {
    for (int k = 0; k < sendings; ++k)
      h.line.receive(h.device).release(h.on);
    h.say(0);
    for (int k = 0; k < sendings; ++k)
      h.hear(&file);
    h.say(0);
  }
}

// open_first: opens memory that the reader has never mapped. Rounds free nothing, because a free is not part
// of the measurement.
void send_new(share_half& h, size_t bytes, share_samples&) {
  forget_idle();
  std::vector<exportable_buffer> all;
  std::vector<raw_memory> raw;
  for (int i = 0; i <= h.rounds; ++i) {
    all.emplace_back(bytes, 0);
    h.line.send(all.back(), h.on);
    h.say(0);
    h.hear();
    raw.emplace_back(h, bytes);
    raw.back().send(h);
    h.hear();
  }
  all.clear();
  forget_idle();
}
void open_new(share_half& h, size_t bytes, share_samples& out) {
  std::vector<imported_buffer> all;
  std::vector<raw_memory> raw;
  for (int i = 0; i <= h.rounds; ++i) {
    h.hear();
    std::int64_t from = base::now_ns();
    all.push_back(h.line.receive(h.device));
    out.weir.push_back(us_since(from));
    h.say(0);
    peer::owned_file file;
    h.hear(&file);
    from = base::now_ns();
    raw.emplace_back(h, bytes, file.get());
    file.close();
    out.raw.push_back(us_since(from));
    h.say(0);
  }
  for (imported_buffer& b : all)
    b.release(h.on);
}

// open_again: opens memory that the reader has mapped already.
void send_again(share_half& h, size_t bytes, share_samples&) {
  exportable_buffer const b(bytes, 0);
  for (int i = 0; i <= h.rounds; ++i) {
    h.line.send(b, h.on);
    h.say(0);
    h.hear();
  }
}
void open_again(share_half& h, size_t, share_samples& out) {
  for (int i = 0; i <= h.rounds; ++i) {
    h.hear();
    std::int64_t const from = base::now_ns();
    auto o = h.line.receive(h.device);
    out.weir.push_back(us_since(from));
    o.release(h.on);
    h.say(0);
  }
}

// Round trips of one word, by weir and by hand --------------------------------------------------------------

class by_weir {
 public:
  explicit by_weir(share_half& h) : h_(h) {}
  void give(void* dst, void const* src, size_t bytes) { copy(h_.on, dst, src, bytes, blocking::no); }
  void record(std::uint64_t turn) { done_[turn % 2].record(h_.on); }
  void tell(std::uint64_t turn) { h_.line.signal(turn, done_[turn % 2]); }
  void tell_idle(std::uint64_t turn) { h_.line.signal(turn, h_.on); }
  void await() { (void)h_.line.wait(); }
  void finish() { h_.on.synchronize(); }

 private:
  share_half& h_;
  std::array<event, 2> done_;
};

class by_hand {
 public:
  explicit by_hand(share_half& h) : h_(h), line_(streams::clock_of(h.on)) {
    for (auto& e : done_) {
      auto const made = h_.machine().create_event(h_.device, driver::event_kind::order_only);
      must(made.is, "an event");
      e = made.value;
    }
  }
  by_hand(by_hand const&) = delete;
  ~by_hand() {
    for (auto const e : done_)
      static_cast<void>(h_.machine().destroy_event(h_.device, e));
  }
  void give(void* dst, void const* src, size_t bytes) {
    h_.raw.prepare(h_.on);
    h_.raw.copy(dst, src, bytes);
  }
  void record(std::uint64_t turn) { must(h_.machine().record(h_.device, line_.handle(), done_[turn % 2]), "an event"); }
  void tell(std::uint64_t turn) {
    must(h_.machine().synchronize_event(done_[turn % 2]), "an event");
    h_.say(turn);
  }
  void tell_idle(std::uint64_t turn) {
    must(h_.machine().synchronize_stream(h_.device, line_.handle()), "a stream");
    h_.say(turn);
  }
  void await() { (void)h_.hear(); }
  void finish() {
    h_.raw.prepare(h_.on);
    h_.raw.synchronize();
  }

 private:
  share_half& h_;
  clock::stream_clock& line_;
  std::array<driver::event_handle, 2> done_{};
};

enum class half_of : std::uint8_t { owner, reader };

// Returns: µs per round trip, on the owner's side.
template <half_of me, class By>
double ping(By by, void* word) {
  std::int64_t const from = base::now_ns();
  for (std::uint64_t i = 0; i < trips; ++i) {
    if (me == half_of::reader)
      by.await();
    if (word) {
      by.give(static_cast<std::byte*>(word) + 4096, word, 4096);
      by.record(i);
      by.tell(i);
    } else {
      by.tell_idle(i);
    }
    if (me == half_of::owner)
      by.await();
  }
  by.finish();
  return us_since(from) / trips;
}

template <half_of me, bool with_work>
void trip(share_half& h, size_t, share_samples& out) {
  buffer const word(8192, {.on = h.device});
  void* const at = with_work ? word.data() : nullptr;
  fill(word.data(), std::byte{0}, word.size());
  default_stream(h.device).synchronize();
  for (int i = 0; i <= h.rounds; ++i) {
    double const ours = ping<me>(by_weir(h), at);
    by_hand plain(h);
    double const raw = ping<me, by_hand&>(plain, at);
    if (me == half_of::owner)
      out.weir.push_back(ours), out.raw.push_back(raw);
  }
}

// Throughput ------------------------------------------------------------------------------------------------

size_t times(share_half const& h, size_t bytes) {
  return std::clamp(h.bytes * 4 / bytes, size_t{4}, size_t{64});
}

struct both_memories {  // memory shared by weir and by the driver, and private memory for each
  exportable_buffer lent;
  imported_buffer opened;
  std::vector<raw_memory> raw;
  buffer own;
  std::unique_ptr<raw_calls::memory> own_raw;

  void* ours() const { return lent.data() ? lent.data() : opened.data(); }
};
both_memories lend(share_half& h, size_t bytes, int buffers_of_raw = 1) {
  both_memories m{exportable_buffer(bytes * static_cast<size_t>(buffers_of_raw), 0),
                  {},
                  {},
                  buffer(bytes, {.on = 0}),
                  h.raw.on_device(0, bytes)};
  m.lent.record_stream(h.on);
  m.own.record_stream(h.on);
  h.line.send(m.lent, h.on);
  m.raw.emplace_back(h, bytes * static_cast<size_t>(buffers_of_raw));
  m.raw.back().send(h);
  return m;
}
both_memories borrow(share_half& h, size_t bytes, int buffers_of_raw = 1) {
  both_memories m{{}, h.line.receive(h.device), {}, buffer(bytes, {.on = h.device}), h.raw.on_device(h.device, bytes)};
  m.own.record_stream(h.on);
  default_stream(h.device).synchronize();
  peer::owned_file file;
  h.hear(&file);
  m.raw.emplace_back(h, bytes * static_cast<size_t>(buffers_of_raw), file.get());
  return m;
}

// read: the reader copies from the shared memory, back to back.
void lie_still(share_half& h, size_t bytes, share_samples&) {
  auto const m = lend(h, bytes);
  h.hear();
}
template <class By>
double read_often(share_half& h, By by, void* own, void const* shared, size_t bytes) {
  size_t const n = times(h, bytes);
  std::int64_t const from = base::now_ns();
  for (size_t i = 0; i < n; ++i)
    by.give(own, shared, bytes);
  by.finish();
  return static_cast<double>(n * bytes) / us_since(from) * 1e-3;
}
void read(share_half& h, size_t bytes, share_samples& out) {
  auto m = borrow(h, bytes);
  by_hand plain(h);
  for (int i = 0; i <= h.rounds; ++i) {
    out.weir.push_back(read_often(h, by_weir(h), m.own.data(), m.opened.data(), bytes));
    out.raw.push_back(read_often<by_hand&>(h, plain, m.own_raw->data(), m.raw[0].data(), bytes));
  }
  m.opened.release(h.on);
  h.say(0);
}

// ring: the owner fills the buffers in turn; the reader copies each one out and signals. Returns: GB/s
template <half_of me, class By>
double go_round(By by, std::uint64_t n, void* own, void* shared, size_t bytes) {
  auto const part = [&](std::uint64_t turn) { return static_cast<std::byte*>(shared) + turn % depth * bytes; };
  std::int64_t from = base::now_ns();
  for (std::uint64_t turn = 0; turn < n; ++turn) {
    if (me == half_of::reader || turn >= depth)
      by.await();
    if (turn == 0)
      from = base::now_ns();
    me == half_of::owner ? by.give(part(turn), own, bytes) : by.give(own, part(turn), bytes);
    if (turn > 0)
      by.tell(turn - 1);
    by.record(turn);
  }
  by.tell(n - 1);
  by.finish();
  double const gb_per_s = static_cast<double>(n * bytes) / us_since(from) * 1e-3;
  for (int left = 0; me == half_of::owner && left < depth; ++left)
    by.await();
  return gb_per_s;
}
template <half_of me>
void ring(share_half& h, size_t bytes, share_samples& out) {
  auto m = me == half_of::owner ? lend(h, bytes, depth) : borrow(h, bytes, depth);
  by_hand plain(h);
  std::uint64_t const n = 2 * times(h, bytes);
  for (int i = 0; i <= h.rounds; ++i) {
    double const ours = go_round<me>(by_weir(h), n, m.own.data(), m.ours(), bytes);
    double const raw = go_round<me, by_hand&>(plain, n, m.own_raw->data(), m.raw[0].data(), bytes);
    if (me == half_of::reader)
      out.weir.push_back(ours), out.raw.push_back(raw);
  }
  if (me == half_of::reader) {
    m.opened.release(h.on);
    h.say(0);
  } else {
    h.hear();
  }
}

}  // namespace

driver::driver& share_half::machine() const {
  return runtime::current().get().machine();
}

void share_half::say(std::uint64_t n, int file) const {
  auto const text = std::as_bytes(std::span(&n, 1));
  std::array const files{file};
  auto const is = os::send_message(plain.get(), text, std::span(files).first(file < 0 ? 0 : 1), patience);
  if (is == os::heard::message)
    return;
  throw peer_disconnected(operation, "the other process has ended or does not read", "See its own message",
                          source_location::current());
}

std::uint64_t share_half::hear(peer::owned_file* file) const {
  std::uint64_t n = 0;
  auto got = os::receive_message(plain.get(), std::as_writable_bytes(std::span(&n, 1)), patience);
  if (file && got.files[0].is_open())
    *file = std::move(got.files[0]);
  if (got.is == os::heard::message)
    return n;
  throw peer_disconnected(operation, "the other process has ended or does not write", "See its own message",
                          source_location::current());
}

std::vector<share_row> share_rows(size_t large) {
  constexpr half_of owner = half_of::owner, reader = half_of::reader;
  std::vector<share_row> rows{
      {"make", large, "us", "a new buffer, until it can be sent; raw: create, reserve, map, grant", make, nothing},
      {"send", large, "us", "to one who has it open; raw: export and one message", send, receive_all},
      {"open_first", large, "us", "receive(), the message being there; raw: import, reserve, map, grant, close",
       send_new, open_new},
      {"open_again", large, "us", "receive() of what is mapped", send_again, open_again},
      {"message", 0, "us",
       "signal and wait there and back, nothing to wait for; raw: a plain socket, a look at the stream",
       trip<owner, false>, trip<reader, false>},
      {"event", 4096, "us", "the same, each after a copy of its own; raw: the driver's event", trip<owner, true>,
       trip<reader, true>},
  };
  std::vector<std::pair<std::string, size_t>> const sizes{
      {"64k", 64_KiB}, {"1m", 1_MiB}, {"16m", 16_MiB}, {"large", large}};
  for (auto const& [name, bytes] : sizes) {
    if (bytes < large || name == "large")
      rows.push_back({"read_" + name, bytes, "GB/s", "copied out by the reader; raw: of memory imported by hand",
                      lie_still, read});
  }
  for (auto const& [name, bytes] : sizes) {
    if (bytes < large || name == "large")
      rows.push_back({"ring_" + name, bytes, "GB/s",
                      "written and read, four buffers in turn; raw: the same loop by hand", ring<owner>, ring<reader>});
  }
  return rows;
}

}  // namespace weir::tool
