// Rank 0 reads hellos as they come; a connection that says anything else is closed.
// Threads: one.
#include "peer/ranks/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

#include "runtime/base/text.h"

namespace weir::peer {
namespace {

constexpr std::uint64_t hello_word = 0x336b6e6172726977;  // "wirrank3": also the version
constexpr std::size_t most_strangers = 256;               // connections that have not named themselves yet
constexpr std::int64_t retry_ns = 50'000'000, most_hello_ns = 10'000'000'000;
constexpr std::size_t most_text = 4096;

enum class line : std::uint8_t { watch, data };
struct hello {
  std::uint64_t word = hello_word, nonce = 0;
  std::int32_t rank = 0, size = 0;
  line use = line::watch;
  std::uint8_t simulated = 0;
  std::array<std::uint8_t, 6> zero{};
};
static_assert(sizeof(hello) == 32);

// over: ranks are missing; another: of another communicator; late: all have met before
enum class answer : std::uint32_t { welcome = 1, refused = 2, over = 3, another = 4, late = 5 };
struct reply {
  answer is = answer::welcome;
  std::uint32_t bytes = 0;  // of the text that follows
};

std::span<std::byte const> bytes_of(auto const& value) {
  return std::as_bytes(std::span(&value, 1));
}
constexpr base::time_limit one_message{std::chrono::seconds(5)};

void tell(int socket, answer is, std::string const& text) noexcept {
  reply const head{is, static_cast<std::uint32_t>(std::min(text.size(), most_text))};
  if (os::send_bytes(socket, bytes_of(head), one_message) == os::heard::message)
    (void)os::send_bytes(socket, std::as_bytes(std::span(text.data(), head.bytes)), one_message);
}

char const* machine_text(bool simulated) {
  return simulated ? "simulated devices" : "GPUs";
}

class reception {
 public:
  reception(os::tcp_socket listener, rendezvous_id const& id, membership const& m)
      : listener_(std::move(listener)), id_(id), own_(m) {
    with_.watch.resize(static_cast<std::size_t>(m.size));
    with_.data.resize(static_cast<std::size_t>(m.size));
  }

  met receive_all(std::string greeting, base::time_limit limit, source_location at) {
    std::int64_t const end = limit.after(base::now_ns());
    while (true) {
      std::string const missing = who_is_missing();
      if (missing.empty())
        break;
      std::int64_t const left = end - base::now_ns();
      if (left <= 0) {
        std::string const what =
            base::text(missing, " of ", own_.size, " did not come within ", limit.ns() / 1'000'000, " ms");
        tell_all(answer::over, what);
        throw timed_out("communicator", "rank 0 waited at port " + std::to_string(listener_.port) + ": " + what,
                        "Check the output of those ranks, and start one process for each rank", at, error_id{422});
      }
      // In short turns: a rank that hangs up meanwhile is missing again.
      listen_once(std::min(left, most_hello_ns / 10));
    }
    tell_all(answer::welcome, greeting);
    all_met_ = true;
    return {std::move(with_), std::move(greeting)};
  }
  // Requires: receive_all has returned
  void turn_away() { listen_once(0); }

 private:
  struct stranger {
    os::owned_file socket{};
    std::array<std::byte, sizeof(hello)> said{};
    std::size_t got = 0;
    std::int64_t since = 0;
  };

  std::string who_is_missing() const {
    std::string text;
    for (std::size_t r = 1; r < with_.watch.size(); ++r) {
      auto const is_here = [](os::owned_file const& s) { return s.is_open() && !os::has_hung_up(s.get()); };
      if (!is_here(with_.watch[r]) || !is_here(with_.data[r]))
        text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
    return text;
  }

  void tell_all(answer is, std::string const& text) {
    for (auto const* side : {&with_.watch, &with_.data})
      for (os::owned_file const& s : *side)
        if (s.is_open())
          tell(s.get(), is, text);
  }

  // Waits that long at most for anyone to speak or come. Reads what strangers say, and lets new ones in.
  void listen_once(std::int64_t ns) {
    std::vector<int> sockets{listener_.file.get()};
    for (stranger const& s : strangers_)
      sockets.push_back(s.socket.get());
    std::vector<bool> ready;  // the listener, then each stranger
    os::wait_readable(sockets, ready, std::chrono::nanoseconds(ns));
    std::int64_t const now = base::now_ns();
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      stranger& s = strangers_[i];
      if (ready[i + 1]) {
        int const n = os::receive_some(s.socket.get(), std::span(s.said).subspan(s.got));
        if (n < 0)
          s.socket.close();
        else
          s.got += static_cast<std::size_t>(n);
      }
      if (s.socket.is_open() && s.got == s.said.size())
        know(s);
      if (now - s.since > most_hello_ns)
        s.socket.close();
    }
    std::erase_if(strangers_, [](stranger const& s) { return !s.socket.is_open(); });
    if (!ready[0])
      return;
    while (strangers_.size() < most_strangers) {
      os::owned_file s = os::accept_tcp(listener_.file.get());
      if (!s.is_open())
        return;
      strangers_.push_back({std::move(s), {}, 0, now});
    }
    strangers_.erase(strangers_.begin());  // all places are taken: the oldest makes room, for the next turn
  }

  // A stranger has said its hello: it gets its place, or is refused.
  void know(stranger& s) {
    hello h;
    std::memcpy(&h, s.said.data(), sizeof h);
    os::owned_file socket = std::move(s.socket);  // closed by this call unless the rank takes its place
    if (h.word != hello_word)
      return;  // not of weir, or of another version
    auto const refuse = [&](answer why, std::string const& text) { tell(socket.get(), why, text); };
    if (h.nonce != id_.nonce)
      return refuse(answer::another, "another communicator meets here");
    if (h.size != own_.size)
      return refuse(answer::refused, base::text("rank ", h.rank, " was started as one of ", h.size,
                                                " ranks, rank 0 as one of ", own_.size));
    if (h.rank < 1 || h.rank >= own_.size || (h.use != line::watch && h.use != line::data))
      return refuse(answer::refused, base::text("there is no place for rank ", h.rank, " among ", own_.size));
    if ((h.simulated != 0) != own_.simulated)
      return refuse(answer::refused, base::text("rank ", h.rank, " has ", machine_text(h.simulated != 0),
                                                ", rank 0 has ", machine_text(own_.simulated)));
    if (all_met_)
      return refuse(answer::late, base::text("a second rank ", h.rank, " came, after all had met"));
    auto& place = (h.use == line::watch ? with_.watch : with_.data)[static_cast<std::size_t>(h.rank)];
    // A rank that was started again replaces its earlier connection.
    if (place.is_open() && !os::has_hung_up(place.get()))
      return refuse(answer::refused, base::text("a second rank ", h.rank, " came"));
    place = std::move(socket);
  }

  os::tcp_socket listener_;
  rendezvous_id const id_;
  membership const own_;
  lines with_;
  std::vector<stranger> strangers_;
  bool all_met_ = false;
};

// Returns: the reply and its text; none: the connection ended, or the other end is not weir.
std::optional<std::pair<answer, std::string>> hear_reply(int socket, base::time_limit limit) {
  reply head;
  if (os::receive_bytes(socket, std::as_writable_bytes(std::span(&head, 1)), limit) != os::heard::message)
    return {};
  if (head.is < answer::welcome || head.is > answer::late || head.bytes > most_text)
    return {};
  std::string text(head.bytes, '\0');
  if (os::receive_bytes(socket, std::as_writable_bytes(std::span(text)), one_message) != os::heard::message)
    return {};
  return std::pair(head.is, std::move(text));
}

}  // namespace

std::string text_of(rendezvous_id const& id) {
  char nonce[17] = {};
  std::to_chars(nonce, nonce + 16, id.nonce, 16);
  return base::text("weir:", nonce, ":", id.port, ":", id.host);
}

std::optional<rendezvous_id> rendezvous_id_of(std::string_view text) {
  constexpr std::string_view first = "weir:";
  if (!text.starts_with(first))
    return {};
  char const* at = text.data() + first.size();
  char const* const end = text.data() + text.size();
  rendezvous_id id;
  auto const read_number = [&](auto& into, int base) {
    auto const [next, failed] = std::from_chars(at, end, into, base);
    if (failed != std::errc{} || next == end || *next != ':')
      return false;
    at = next + 1;
    return true;
  };
  constexpr std::size_t most_host = 255;
  if (!read_number(id.nonce, 16))
    return {};
  if (!read_number(id.port, 10) || id.port == 0)
    return {};
  id.host.assign(at, end);
  if (id.host.empty() || id.host.size() > most_host ||
      id.host.find_first_of(std::string_view(" \n\t\0", 4)) != id.host.npos)
    return {};
  return id;
}

met meet_others(os::tcp_socket listener, rendezvous_id const& id, membership m, std::string greeting,
                base::time_limit limit, source_location at) {
  auto const here = std::make_shared<reception>(std::move(listener), id, m);
  met out = here->receive_all(std::move(greeting), limit, at);
  out.turn_away = [here] {
    try {
      here->turn_away();
    } catch (...) {}  // no host memory: they come again
  };
  return out;
}

namespace {
// One rank, that meets rank 0.
struct visitor {
  rendezvous_id id;
  membership m;
  std::int64_t end;  // ns
  bool may_ask_again;
  source_location at;
  std::string why_not{};  // of the last try

  std::string subject() const { return base::text("rank ", m.rank, " of ", m.size); }
  std::chrono::nanoseconds left(std::int64_t least_ns) const {
    return std::chrono::nanoseconds(std::max(end - base::now_ns(), least_ns));
  }

  // Rank 0 welcomes all once it has both lines of each: so both say hello before one waits for its answer.
  // Returns: whether rank 0 welcomed it on both. Throws: as take()
  bool try_to_meet(met& got) {
    why_not.clear();
    return connect(line::watch, got.with.watch) && connect(line::data, got.with.data) && hear(got.with.watch[0], got) &&
           hear(got.with.data[0], got);
  }

 private:
  bool connect(line use, std::vector<os::owned_file>& into) {
    os::tcp_socket to = os::connect_tcp(id.host, id.port, left(1'000'000));
    hello h;
    h.nonce = id.nonce;
    h.rank = m.rank;
    h.size = m.size;
    h.use = use;
    h.simulated = m.simulated;
    if (!to.file.is_open())
      why_not = to.why_not;
    else if (os::send_bytes(to.file.get(), bytes_of(h), one_message) != os::heard::message)
      why_not = "it hung up";
    if (!why_not.empty())
      return false;
    into.push_back(std::move(to.file));
    return true;
  }

  bool hear(os::owned_file const& from, met& got) {
    auto const said = hear_reply(from.get(), left(0));
    if (!said) {
      // Only a silent rank 0 takes until the limit.
      bool const is_silent = base::now_ns() >= end;
      why_not = is_silent ? "it waits for other ranks" : "it hung up, or is not of this program";
      return false;
    }
    return take(said->first, said->second, got);
  }

  // Returns: whether this rank is welcome; else it may come again.
  // Throws: invalid_use, timed_out (to come again is of no use)
  bool take(answer is, std::string const& words, met& got) {
    // The address may be that of an earlier rank 0: it is asked for again.
    if (is == answer::late && may_ask_again) {
      why_not = "all ranks have met there";
      return false;
    }
    if (is == answer::refused || is == answer::late)
      throw invalid_use("communicator", subject() + ": rank 0 refuses it: " + base::visible(words),
                        "Start every rank once, with the same number of ranks and the same kind of devices", at,
                        error_id{423});
    if (is == answer::over)
      throw timed_out("communicator", subject() + ": rank 0 gave up: " + base::visible(words),
                      "Check the output of those ranks, and start one process for each rank", at, error_id{424});
    if (is == answer::another) {
      why_not = "another communicator meets there";
      return false;
    }
    got.greeting = words;
    return true;
  }
};
}  // namespace

met meet_rank_0(rendezvous_id id, std::function<rendezvous_id()> const& ask_again, membership m, base::time_limit limit,
                source_location at) {
  visitor here{std::move(id), m, limit.after(base::now_ns()), ask_again != nullptr, at};
  while (true) {
    met got;
    if (here.try_to_meet(got))
      return got;
    if (base::now_ns() >= here.end)
      throw timed_out("communicator",
                      base::text(here.subject(), ": rank 0 at ", base::visible(here.id.host), " port ", here.id.port,
                                 ": ", here.why_not, ", for ", limit.ns() / 1'000'000, " ms"),
                      "Check the output of rank 0, the address, and that no firewall is between them", at,
                      error_id{425});
    base::sleep_ns(retry_ns);
    if (ask_again)
      here.id = ask_again();
  }
}

}  // namespace weir::peer
