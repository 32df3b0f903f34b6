// weir/share.h: shared buffers, pools, and the channel between two processes.
// Threads: as the header says.
#include "peer/share/shared_pool.h"

#include <algorithm>

#include "runtime/base/os_socket.h"
#include "runtime/base/process.h"
#include "runtime/driver/allocation_observer.h"
#include "streams/stream/context.h"

namespace weir {

peer_disconnected::peer_disconnected(std::string operation, std::string operands, std::string remedy,
                                     source_location at, error_id id)
    : std::runtime_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id) {}

namespace {
void require_bytes(char const* operation, size_t bytes, source_location at) {
  if (bytes == 0)
    throw invalid_use(operation, "0 B", "Pass a size of at least one byte", at, error_id{302});
}
}  // namespace

// Shared ----------------------------------------------------------------------------------------------------

exportable_buffer::exportable_buffer(size_t bytes, weir::device on, source_location at) {
  auto& r = streams::current_runtime(at);
  int const device = streams::resolve(on, r, "exportable_buffer", at);
  require_bytes("exportable_buffer", bytes, at);
  auto& home = streams::current_clock(r, device, at);
  is_ = r.part<peer::exports>().take(home, bytes, at);
}

exportable_buffer::exportable_buffer(stream_ref home, size_t bytes, source_location at) {
  auto& stream = streams::clock_or_throw(home, "exportable_buffer", at);
  require_bytes("exportable_buffer", bytes, at);
  is_ = stream.owner().part<peer::exports>().take(stream, bytes, at);
}

exportable_buffer::exportable_buffer(std::shared_ptr<peer::exported> is) noexcept : is_(std::move(is)) {}
exportable_buffer::exportable_buffer(exportable_buffer&& other) noexcept : is_(std::move(other.is_)) {}
exportable_buffer& exportable_buffer::operator=(exportable_buffer&& other) noexcept {
  if (this != &other)
    reset(), is_ = std::move(other.is_);
  return *this;
}
void exportable_buffer::reset() noexcept {
  peer::exports::give_back(std::move(is_));
}
void* exportable_buffer::data() const noexcept {
  return is_ && !is_->handle().ended ? is_->data() : nullptr;
}
size_t exportable_buffer::size() const noexcept {
  return is_ ? is_->bytes : 0;
}
weir::device exportable_buffer::device() const {
  return weir::device(is_->device);
}

int exportable_buffer::importers() const {
  if (!is_ || is_->handle().ended || process_was_forked())
    return 0;
  for (peer::importer& one : is_->importers)
    one.listen();
  return static_cast<int>(std::ranges::count_if(is_->importers, &peer::importer::alive));
}

void exportable_buffer::record_stream(stream_ref s, source_location at) const {
  auto& stream = streams::clock_or_throw(s, "exportable_buffer::record_stream", at);
  if (!is_ || is_->handle().ended)
    throw invalid_use("exportable_buffer::record_stream", "an empty buffer",
                      "Record streams before the buffer is released", at, error_id{304});
  auto& users = is_->users;
  if (std::ranges::find(users, &stream, &memory::block_user::stream) != users.end())
    return;
  if (&stream.owner().machine() != &is_->home->machine())
    throw invalid_use("exportable_buffer::record_stream", "a stream of another runtime",
                      "Use streams of the buffer's runtime", at, error_id{305});
  // Before the list would grow.
  if (users.size() == users.capacity())
    memory::forget_ended(users);
  is_->last_uses.reserve(users.size() + 1);  // so that give_back() allocates nothing
  stream.note_mark();
  users.push_back(peer::exported::user(stream));
  if (auto* const w = stream.owner().observer()) [[unlikely]]
    w->marked({stream.device(), stream.handle()}, reinterpret_cast<driver::address>(is_->data()));
}

// Opened ----------------------------------------------------------------------------------------------------

imported_buffer::imported_buffer() noexcept = default;
imported_buffer::~imported_buffer() {
  reset();
}
imported_buffer::imported_buffer(imported_buffer&& other) noexcept : is_(std::move(other.is_)) {}
imported_buffer& imported_buffer::operator=(imported_buffer&& other) noexcept {
  if (this != &other)
    reset(), is_ = std::move(other.is_);
  return *this;
}
void* imported_buffer::data() const noexcept {
  return is_ && !is_->of->ended ? static_cast<std::byte*>(is_->of->pages.data()) + is_->offset : nullptr;
}
size_t imported_buffer::size() const noexcept {
  return is_ ? is_->bytes : 0;
}
weir::device imported_buffer::device() const {
  return weir::device(is_->of->device);
}

void imported_buffer::release(stream_ref last_use, source_location at) {
  auto& stream = streams::clock_or_throw(last_use, "imported_buffer::release", at);
  if (!is_ || is_->of->ended)
    return is_.reset();
  require(is_->home->clocks().synchronize(stream.now()), "imported_buffer::release", streams::describe(stream),
          "Repeat the call, or destroy the buffer: it is still open", at);
  is_->home->close(*is_);
  is_.reset();
}

// Until the wait succeeds, the buffer stays mapped and is not released, so the owner does not reuse its memory.
void imported_buffer::reset() noexcept {
  auto is = std::move(is_);
  if (!is || is->of->ended || process_was_forked())
    return;
  peer::imports& home = *is->home;
  home.close_postponed();
  home.close_at_rest(std::move(is));
}

// Pools -----------------------------------------------------------------------------------------------------

share_pool::share_pool(share_pool_options o, source_location at) {
  auto& r = streams::current_runtime(at);
  int const device = streams::resolve(o.on, r, "share_pool", at);
  r.open(device, "share_pool", at);
  auto& exports = r.part<peer::exports>();
  is_ = std::make_shared<peer::shared_pool>(exports, r, device, o, at);
  exports.remember(is_);
}
share_pool::~share_pool() = default;
share_pool::share_pool(share_pool&&) noexcept = default;
share_pool& share_pool::operator=(share_pool&&) noexcept = default;

namespace {
peer::shared_pool& live(std::shared_ptr<peer::shared_pool> const& is, source_location at) {
  constexpr char const* operation = "share_pool::allocate";
  if (!is || is->ended())
    throw invalid_use(operation, "a pool that was moved from, or whose runtime has ended", "Create a new pool", at,
                      error_id{306});
  if (process_was_forked())
    streams::throw_forked(operation, at);
  return *is;
}
}  // namespace

exportable_buffer share_pool::allocate(size_t bytes, source_location at) {
  auto const& pool = live(is_, at);
  require_bytes("share_pool::allocate", bytes, at);
  return exportable_buffer(
      peer::shared_pool::allocate(is_, streams::current_clock(pool.owner(), pool.device(), at), bytes, at));
}

exportable_buffer share_pool::allocate(stream_ref home, size_t bytes, source_location at) {
  constexpr char const* operation = "share_pool::allocate";
  auto& stream = streams::clock_or_throw(home, operation, at);
  if (int const device = live(is_, at).device(); stream.device() != device || &stream.owner() != &is_->owner())
    throw invalid_use(operation, base::text(streams::describe(stream), ", the pool is of gpu:", device),
                      "Pass a stream of the pool's device", at, error_id{307});
  require_bytes(operation, bytes, at);
  return exportable_buffer(peer::shared_pool::allocate(is_, stream, bytes, at));
}

share_pool_statistics share_pool::statistics() const {
  return is_ && !is_->ended() && !process_was_forked() ? is_->statistics() : share_pool_statistics{};
}
size_t share_pool::trim() {
  return is_ && !is_->ended() && !process_was_forked() ? is_->let_go_to_driver() : 0;
}

// The line --------------------------------------------------------------------------------------------------

struct WEIR_LOCAL share_channel::state {
  peer::owned_file socket;
  std::chrono::milliseconds timeout;
  struct arrived {
    peer::message what;
    peer::imports::loaned with;
  };
  std::optional<arrived> next;  // validated and not yet returned
  std::uint64_t of_process = os::fork_generation();
  std::uint64_t const id = next_id();

  static std::uint64_t next_id() noexcept {
    static constinit base::atomic<std::uint64_t> ids{0};
    return ids.fetch_add(1) + 1;
  }
  std::string timeout_text() const { return base::text("nothing for ", timeout.count(), " ms"); }

  void send(char const* operation, peer::message& m, std::span<int const> files, source_location at) {
    m.checksum = peer::checksum_of(m);
    switch (os::send_message(socket.get(), peer::bytes_of(m), files, timeout)) {
      case os::heard::message: return;
      case os::heard::too_late:
        throw timed_out(operation, "the other process has read " + timeout_text(),
                        "Repeat the call, or close the channel: the other process may be stopped", at, error_id{308});
      case os::heard::closed:
        throw peer_disconnected(operation, "the other process has ended or closed the channel",
                                "Start another process: nothing was sent", at, error_id{309});
      case os::heard::refused: break;
    }
    throw driver_error(0, operation, "the system refuses to send", "Close descriptors, and repeat the call", at,
                       error_id{310});
  }

  // Ensures: `next` is present and of that kind.
  void expect(char const* operation, peer::message_kind kind, source_location at) {
    if (!next)
      next = receive(operation, at);
    if (next->what.kind == kind)
      return;
    bool const came_buffer = next->what.kind == peer::message_kind::buffer;
    throw invalid_use(operation, came_buffer ? "the next message is a buffer" : "the next message is a signal",
                      came_buffer ? "Call receive() before wait()" : "Call wait() before receive()", at, error_id{311});
  }

  arrived receive(char const* operation, source_location at) const {
    arrived out;
    os::received got = os::receive_message(socket.get(), std::as_writable_bytes(std::span(&out.what, 1)), timeout);
    switch (got.is) {
      case os::heard::message: break;
      case os::heard::too_late:
        throw timed_out(operation, "the other process has sent " + timeout_text(),
                        "Repeat the call, or close the channel: the other process may be stopped", at, error_id{312});
      case os::heard::closed:
        throw peer_disconnected(operation, "the other process has ended or closed the channel",
                                "Start another process: all its messages were read", at, error_id{313});
      case os::heard::refused:
        throw driver_error(0, operation, "the system refuses to receive", "Try again", at, error_id{314});
    }
    if (auto const wrong = peer::judge(out.what, got.bytes, got.file_count, got.cut); !wrong.empty())
      throw invalid_use(operation, wrong,
                        "Run the same version of weir in both processes, and let no other code write to this socket",
                        at, error_id{315});
    if (peer::is_of_ring(out.what.kind))
      throw invalid_use(operation, "a message of a ring", "Give the ring a socket that no channel uses", at,
                        error_id{525});
    out.with = {.memory = std::move(got.files[0]), .life = std::move(got.files[1])};
    return out;
  }
};

namespace {
void check_timeout(char const* operation, std::chrono::milliseconds timeout, source_location at) {
  if (timeout.count() <= 0)
    throw invalid_use(operation, base::text("a timeout of ", timeout.count(), " ms"),
                      "Pass a positive time to wait for the other process", at, error_id{316});
}
}  // namespace

share_channel::share_channel(int socket, std::chrono::milliseconds timeout, source_location at) {
  if (!os::is_message_socket(socket))
    throw invalid_use(
        "share_channel", base::text("descriptor ", socket, " is not a Unix socket of type SOCK_SEQPACKET"),
        "Create it with socketpair(AF_UNIX, SOCK_SEQPACKET, ...), or with bind, listen and accept", at, error_id{317});
  check_timeout("share_channel", timeout, at);
  state_ = std::make_unique<state>();
  state_->socket = peer::owned_file(socket);
  state_->timeout = timeout;
}
share_channel::~share_channel() = default;
share_channel::share_channel(share_channel&&) noexcept = default;
share_channel& share_channel::operator=(share_channel&&) noexcept = default;

share_channel::state& share_channel::live(char const* operation, source_location at) const {
  if (!state_)
    throw invalid_use(operation, "a channel that was moved from", "Use the channel that it was moved to", at,
                      error_id{318});
  if (state_->of_process != os::fork_generation())
    streams::throw_forked(operation, at);
  return *state_;
}

std::chrono::milliseconds share_channel::timeout(source_location at) const {
  return live("share_channel::timeout", at).timeout;
}
void share_channel::set_timeout(std::chrono::milliseconds timeout, source_location at) {
  state& is = live("share_channel::set_timeout", at);
  check_timeout("share_channel::set_timeout", timeout, at);
  is.timeout = timeout;
}

namespace {
void wait_for(clock::stream_clock& stream, char const* operation, source_location at) {
  require(stream.owner().part<clock::clocks>().synchronize(stream.now()), operation, streams::describe(stream),
          "Repeat the call: nothing was sent", at);
}

void forget_done_importers(std::vector<peer::importer>& all) {
  for (peer::importer& one : all)
    one.listen();
  auto const last = std::prev(all.end());  // stays: it shows importers that the memory still exists
  all.erase(std::remove_if(all.begin(), last, [](auto const& one) { return one.is_done(); }), last);
}
}  // namespace

void share_channel::send(exportable_buffer const& b, stream_ref last_write, source_location at) {
  constexpr char const* operation = "share_channel::send";
  state& own = live(operation, at);
  if (!b.data())
    throw invalid_use(operation, "an empty buffer",
                      "Send a buffer that is not released, of a runtime that has not ended", at, error_id{319});
  wait_for(streams::clock_or_throw(last_write, operation, at), operation, at);
  peer::exported &is = *b.is_, &whole = is.handle();
  // A few are kept, so that not each call asks them.
  if (is.importers.size() > 8)
    forget_done_importers(is.importers);
  is.importers.reserve(is.importers.size() + 1);  // so that nothing throws after the message is sent
  auto const no_files = [&] {
    throw driver_error(0, operation, "the system has no descriptors left", "Close some, or raise the limit (ulimit -n)",
                       at, error_id{320});
  };
  auto const [own_end, its_end] = os::make_sockets();
  peer::importer lent_to{peer::owned_file(own_end)};
  peer::owned_file const life(its_end);
  if (own_end < 0)
    no_files();
  if (!lent_to.lend())
    throw driver_error(0, operation, "the system refuses to send", "Try again", at, error_id{321});
  auto const memory = whole.descriptor(is.home->machine());
  if (memory.is.what == driver::code::out_of_memory)
    no_files();
  require(memory.is, operation, base::text(whole.pages.bytes(), " B of gpu:", is.device), "Try again", at);
  peer::message m{.kind = peer::message_kind::buffer,
                  .bytes = is.bytes,
                  .handle_bytes = whole.pages.bytes(),
                  .offset = is.offset,
                  .origin = is.home->origin(),
                  .serial = whole.serial};
  m.device = whole.uuid;
  own.send(operation, m, std::array{memory.value, life.get()}, at);
  is.importers.emplace_back(std::move(lent_to));
}

imported_buffer share_channel::receive(device reader, source_location at) {
  constexpr char const* operation = "share_channel::receive";
  state& own = live(operation, at);
  auto& r = streams::current_runtime(at);
  int const device = streams::resolve(reader, r, operation, at);
  own.expect(operation, peer::message_kind::buffer, at);
  auto& all = r.part<peer::imports>();
  imported_buffer out;
  try {
    out.is_ = all.open(own.next->what, own.next->with, own.id, device, at);
  } catch (std::exception const& e) {
    bool const never_works = dynamic_cast<peer_disconnected const*>(&e) || dynamic_cast<not_supported const*>(&e) ||
                             dynamic_cast<std::logic_error const*>(&e);
    // Else the buffer stays next, for a repeated call.
    if (never_works)
      own.next.reset();
    throw;
  }
  own.next.reset();
  return out;
}

void share_channel::signal(std::uint64_t number, stream_ref after, source_location at) {
  constexpr char const* operation = "share_channel::signal";
  state& own = live(operation, at);
  wait_for(streams::clock_or_throw(after, operation, at), operation, at);
  peer::message m{.number = number};
  own.send(operation, m, {}, at);
}

void share_channel::signal(std::uint64_t number, event const& after, source_location at) {
  constexpr char const* operation = "share_channel::signal";
  state& own = live(operation, at);
  after.synchronize(at);
  peer::message m{.number = number};
  own.send(operation, m, {}, at);
}

std::uint64_t share_channel::wait(source_location at) {
  constexpr char const* operation = "share_channel::wait";
  state& own = live(operation, at);
  own.expect(operation, peer::message_kind::number, at);
  std::uint64_t const number = own.next->what.number;
  own.next.reset();
  return number;
}

}  // namespace weir
