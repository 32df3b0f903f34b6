// A random hostile peer, and the receiver that it must not harm. The peer sends bytes; messages that are
// changed, cut or repeated; descriptors of other kinds; and its own memory under other owners' names. It
// talks on importers' sockets, sends and opens memory as weir does, and dies at any point. The receiver makes
// a program's calls. After each of them:
// //   a call returns, or throws an error that share.h names for it, and has no other effect;
// //   an imported buffer is the file that came with its message, byte for byte;
// //   a message arrives on an open channel, whatever the peer sent before;
// //   an honest owner's memory on a channel of its own is unchanged. After the peer has gone, nothing of it
// stays mapped and no descriptor stays open.
// Threads: one.
#pragma once
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <random>

#include "tests/model/verdict.h"
#include "tests/peer/raw_end.h"
#include "tests/peer/share_fixture.h"

namespace weir::tests {

class hostile_peer {
 public:
  static constexpr std::uint64_t messages = 100;

  explicit hostile_peer(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 11) {
    for (int i = 0; i < 2; ++i) {
      own_.push_back(i ? pool_.allocate(bytes) : exportable_buffer(bytes));
      write(own_[std::size_t(i)], i + 1);
    }
    if (below(2))
      its_ = test::caught(own_[below(2)]), fellow_ = true;  // the honest owner sends to it, too
    else
      names_ = test::caught(own_[below(2)]).what;
    if (fellow_)
      names_ = its_.what;
    connect();
  }

  std::uint64_t sent() const { return sent_; }
  std::uint64_t taken() const { return taken_; }
  verdict run() {
    try {
      for (std::uint64_t steps = 0; steps < 4 * messages && sent_ < messages && wrong_.ok(); ++steps)
        step();
      end();
    } catch (std::exception const& e) {
      wrong_.note(check::answers, std::string("an honest call fails: ") + e.what());
    }
    for (auto const& found : machine_.control().findings())
      wrong_.note(check_of(found), found);
    return wrong_;
  }

 private:
  using owned_file = test::owned_file;
  static constexpr std::size_t bytes = 5000;
  struct lent {  // sent or passed on by the peer
    test::lent_memory what;
    bool sent = false;
  };
  struct open {
    imported_buffer memory;
    owned_file file;
    std::uint64_t offset = 0;
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

  // // The honest ends
  // -----------------------------------------------------------------------------------------
  void write(exportable_buffer const& b, int value) { fill(b.data(), static_cast<std::byte>(value), bytes); }
  void exchange(share_channel& from, share_channel& to) {
    auto& b = own_[below(own_.size())];
    int const value = 1 + int(below(250));
    if (!one_in(3))
      write(b, value);
    from.send(b, default_stream(0));
    auto o = to.receive();
    if (o.size() != bytes ||
        test::read_back(o.data(), bytes, o.device().index()) != test::read_back(b.data(), bytes, 0))
      wrong_.note(check::bytes, "an honest buffer does not hold what its owner wrote");
    auto const inside = find_block(o.data<std::byte>() + below(bytes));
    if (!inside || static_cast<std::byte*>(inside->base) + inside->bytes < o.data<std::byte>() + bytes)
      wrong_.note(check::answers, "an honest buffer is known as a smaller one");
    if (one_in(2))
      o.release(default_stream(0));
  }

  // // The peer
  // ------------------------------------------------------------------------------------------------
  void connect() {
    auto const [a, theirs] = os::make_sockets();
    raw_.emplace(theirs);
    line_.emplace(a, std::chrono::milliseconds(1));
  }
  owned_file again(int file) { return owned_file(::fcntl(file, F_DUPFD_CLOEXEC, 3)); }

  owned_file any_file() {
    int both[2] = {-1, -1};
    std::size_t const whole = machine_page;
    switch (below(16)) {
      case 0: return owned_file(::open("/dev/null", O_RDWR | O_CLOEXEC));
      case 1: return owned_file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
      case 2: return owned_file(::open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      case 3: return owned_file(::eventfd(0, EFD_CLOEXEC));
      case 4: return owned_file(::epoll_create1(EPOLL_CLOEXEC));
      case 5: return test::memory_file(whole, 0);
      case 6: return test::memory_file(whole, one_in(2) ? F_SEAL_SHRINK : F_SEAL_SEAL);
      case 7: return test::memory_file(whole, test::all_seals | (one_in(2) ? F_SEAL_WRITE : F_SEAL_FUTURE_WRITE));
      case 8: return test::memory_file(one_in(2) ? whole - 4096 : 2 * whole);
      case 9: {
        auto const file = test::memory_file(whole);
        return owned_file(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(),
                                 (one_in(2) ? O_RDONLY : O_RDWR) | O_CLOEXEC));
      }
      case 10: return again(raw_->get());
      case 11: return owned_file(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      case 12:
        if (::socketpair(AF_UNIX, (one_in(2) ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0, both) != 0)
          break;
        kept_.emplace_back(both[0]);
        return owned_file(both[1]);
      case 13:
        if (::pipe2(both, O_CLOEXEC) != 0)
          break;
        kept_.emplace_back(both[0]);
        return owned_file(both[1]);
      case 14: return fellow_ ? again(its_.memory.get()) : test::memory_file(whole);
      default: return test::memory_file(whole);
    }
    return {};
  }

  test::lent_memory own_memory() {
    static constexpr char const* words[] = {"l", "l", "l", "l", "l", "l", "", "x", "lo", "r"};
    auto out = test::lent_under_names_of(names_,
                                         one_in(4)              ? any_file()
                                         : fellow_ && one_in(4) ? again(its_.memory.get())
                                                                : test::memory_file(machine_page),
                                         words[below(std::size(words))]);
    auto& m = out.what;
    if (one_in(3))
      m.origin = random_(), m.serial = below(5);
    if (one_in(3))
      m.offset = below(8) * 512, m.bytes = 1 + below(machine_page - m.offset);
    if (one_in(20))
      out.memory = test::memory_file(m.handle_bytes = 1_GiB);
    if (one_in(12))
      out.life = any_file();
    else if (one_in(12)) {
      while (::send(out.life.get(), "r", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {}
    }
    out.sealed();
    return out;
  }

  std::uint64_t any_number() {
    constexpr std::uint64_t some[] = {0,
                                      1,
                                      511,
                                      512,
                                      4096,
                                      2u << 20,
                                      3u << 20,
                                      std::uint64_t{1} << 40,
                                      std::uint64_t{1} << 63,
                                      ~std::uint64_t{0},
                                      ~std::uint64_t{0} - 511};
    return one_in(3) ? random_() : some[below(std::size(some))];
  }

  void change(peer::message& m) {
    switch (below(9)) {
      case 0: m.bytes = any_number(); break;
      case 1: m.handle_bytes = any_number(); break;
      case 2: m.offset = any_number(); break;
      case 3: m.origin = any_number(); break;
      case 4: m.kind = static_cast<peer::message_kind>(one_in(2) ? below(4) : random_()); break;
      case 5: m.version = static_cast<std::uint32_t>(below(5)); break;
      case 6: m.device[below(m.device.size())] = static_cast<char>(random_()); break;
      case 7: m.device = one_in(2) ? decltype(m.device){"SIM-1"} : decltype(m.device){}; break;
      default: {
        std::size_t const at = below(sizeof m);
        reinterpret_cast<unsigned char*>(&m)[at] ^= static_cast<unsigned char>(1u << below(8));
      }
    }
    if (!one_in(4))
      m.checksum = peer::checksum_of(m);
  }

  bool say(std::span<std::byte const> text, std::vector<int> const& files) {
    bool const is_sent = raw_->send(text, files);
    sent_ += is_sent;
    return is_sent;
  }

  // Returns: whether it sent something.
  bool lie() {
    switch (below(8)) {
      case 0: {
        std::array<std::byte, 300> text;
        for (auto& b : text)
          b = static_cast<std::byte>(random_());
        std::vector<owned_file> with(one_in(2) ? 0 : one_in(20) ? 60 : below(7));
        std::vector<int> files;
        for (auto& f : with)
          f = any_file(), files.push_back(f.is_open() ? f.get() : raw_->get());
        return say(std::span(text).first(one_in(4) ? 0 : below(text.size())), files);
      }
      case 1: {
        peer::message m{.number = random_()};
        m.checksum = peer::checksum_of(m);
        if (one_in(2))
          change(m);
        return say(peer::bytes_of(m), {});
      }
      case 2: {  // a repeated message
        if (lent_.empty())
          return false;
        auto& l = lent_[below(lent_.size())];
        now_ = &l;
        return say(peer::bytes_of(l.what.what), l.what.files());
      }
      case 3: {  // a cut message, or one with other descriptors
        auto l = own_memory();
        auto files = l.files();
        if (one_in(2))
          std::swap(files.front(), files.back());
        else if (one_in(2))
          files.resize(below(2));
        else
          files.push_back(files[0]);
        return say(peer::bytes_of(l.what).first(one_in(2) ? sizeof l.what : below(sizeof l.what)), files);
      }
      case 4: {
        auto l = own_memory();
        change(l.what);
        return lend(std::move(l));
      }
      case 5: return fellow_ && lend({its_.what, again(its_.memory.get()), again(its_.life.get()), {}});
      default: return lend(own_memory());
    }
  }
  bool lend(test::lent_memory l) {
    if (lent_.size() > 8)
      lent_.erase(lent_.begin() + std::ptrdiff_t(below(lent_.size())));
    lent_.push_back({std::move(l)});
    now_ = &lent_.back();
    return say(peer::bytes_of(now_->what.what), now_->what.files());
  }

  void talk_on_loans() {
    std::array<std::byte, 3> text{std::byte('o'), std::byte('r'), static_cast<std::byte>(random_())};
    std::vector<int> const files(below(3), raw_->get());
    auto const on = [&](int socket) {
      test::raw_end const by(::fcntl(socket, F_DUPFD_CLOEXEC, 3));
      for (std::size_t n = below(12); n > 0; --n)
        (void)by.send(std::span(text).subspan(below(3), below(2)), files);
    };
    if (fellow_ && one_in(2))
      on(its_.life.get());
    else if (!lent_.empty()) {
      auto& l = lent_[below(lent_.size())].what;
      if (l.owners_end.is_open())
        on(l.owners_end.get());
      if (one_in(3))
        l.owners_end.close();
    }
  }

  // // The receiver
  // --------------------------------------------------------------------------------------------
  template <class Call>
  std::string heard(Call call) {
    try {
      call();
      return "";
    } catch (invalid_use const& e) {
      return std::string(e.operands());
    } catch (not_supported const& e) {
      return std::string(e.operands());
    } catch (peer_disconnected const& e) {
      return std::string(e.operands());
    } catch (timed_out const& e) {
      return std::string(e.operands());
    } catch (error const& e) {
      wrong_.note(check::answers,
                  "of a peer's message: " + std::string(e.operation()) + ": " + std::string(e.operands()));
      return "wrong";
    }
  }

  void hear() {
    imported_buffer o;
    auto const files = now_ ? now_->what.memory.get() : -1;
    auto const offset = now_ ? now_->what.what.offset : 0;
    auto const why = heard([&] { o = line_->receive(device(int(one_in(4)))); });
    if (why == "the next message is a signal")
      (void)heard([&] { (void)line_->wait(); });
    if (why == "the other process has ended or closed the channel")
      wrong_.note(check::answers, "a peer that lives is taken for gone");
    if (!why.empty())
      return;
    struct ::stat about {};
    if (!now_ || ::fstat(files, &about) != 0)
      return wrong_.note(check::answers, "opened what no message lent");
    auto const size = static_cast<std::uint64_t>(about.st_size);
    if (size != now_->what.what.handle_bytes || size > test::sharing::small().memory)
      return wrong_.note(check::answers, "opened a file of " + std::to_string(size) + " B");
    opened_.push_back({std::move(o), again(files), offset});
    ++taken_;
    expect_own(opened_.back());
  }
  // Bytes written through the descriptor appear in the memory, at both ends, and the file cannot be cut
  // short.
  void expect_own(open const& o) {
    auto const n = o.memory.size();
    if (::ftruncate(o.file.get(), 0) == 0)
      return wrong_.note(check::crash, "opened memory can be cut short");
    for (std::size_t const at : {std::size_t{0}, n - 1}) {
      auto const value = static_cast<char>(random_());
      auto const place = static_cast<off_t>(o.offset + at);
      char there = 0;
      if (::pwrite(o.file.get(), &value, 1, place) != 1 || ::pread(o.file.get(), &there, 1, place) != 1)
        return wrong_.note(check::answers, "its file is not as large");
      if (test::read_back(o.memory.data<char>() + at, 1, o.memory.device().index())[0] != static_cast<std::byte>(there))
        return wrong_.note(check::bytes, "opened memory is not the file that came with its message");
    }
  }
  void drop_one() {
    auto& o = opened_[below(opened_.size())];
    if (one_in(2))
      o.memory.release(default_stream(0));
    std::swap(o, opened_.back());
    opened_.pop_back();
  }

  void expect_line_works() {
    std::uint64_t const number = random_();
    peer::message m{.number = number};
    m.checksum = peer::checksum_of(m);
    if (!raw_->send(m))
      return wrong_.note(check::answers, "the line is full although its receiver heard everything");
    for (int tries = 0; tries < 3; ++tries) {
      std::uint64_t got = ~number;
      auto const why = heard([&] { got = line_->wait(); });
      if (why.empty() && got == number)
        return;
      if (why == "the next message is a buffer")
        (void)heard([&] { (void)line_->receive(); });
    }
    wrong_.note(check::answers, "a message does not arrive on a line that is open");
  }

  void die() {
    raw_->close();
    if (one_in(2))
      lent_.clear(), now_ = nullptr;
    (void)heard([&] { (void)line_->wait(); });
    connect();
  }

  void step() {
    now_ = nullptr;
    if (lie())
      hear();
    if (one_in(4))
      talk_on_loans();
    if (!opened_.empty() && one_in(3))
      expect_own(opened_[below(opened_.size())]);
    if (opened_.size() > below(6))
      drop_one();
    if (one_in(6))
      expect_line_works();
    if (one_in(10))
      exchange(ends_.first, ends_.second);
    if (one_in(30))
      die();
    if (one_in(20))
      (void)own_[below(own_.size())].importers();
  }

  void end() {
    opened_.clear();
    lent_.clear();
    kept_.clear();
    its_ = {};
    if (one_in(2))
      raw_->close();
    line_.reset();
    raw_.reset();
    auto [from, to] = test::sharing::lines();
    for (int i = 0; i < 4; ++i)
      exchange(from, to), exchange(ends_.first, ends_.second);
    auto const mapped = machine_.get().part<peer::imports>().mapped();
    if (mapped > own_.size())
      wrong_.note(check::invariants, std::to_string(mapped) + " handles are mapped, " + std::to_string(own_.size()) +
                                         " are the honest owner's");
  }

  static constexpr std::size_t machine_page = std::size_t{2} << 20;
  std::mt19937_64 random_;
  test::machine machine_{test::sharing::small()};
  std::pair<share_channel, share_channel> ends_ = test::sharing::lines();
  share_pool pool_{{.handle_bytes = machine_page}};
  std::vector<exportable_buffer> own_;
  bool fellow_ = false;
  test::lent_memory its_;  // what the honest owner sent to the peer
  peer::message names_;    // the names of the honest owner's memory
  std::optional<test::raw_end> raw_;
  std::optional<share_channel> line_;
  std::vector<lent> lent_;
  lent* now_ = nullptr;  // the last message sent, if it can be opened
  std::vector<open> opened_;
  std::vector<owned_file> kept_;
  std::uint64_t sent_ = 0, taken_ = 0;
  verdict wrong_;
};

}  // namespace weir::tests
