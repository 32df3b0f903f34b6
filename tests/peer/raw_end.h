// The other end of a channel without weir: it sends any bytes with any descriptors, and keeps what it
// receives.
// Threads: one.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "peer/share/message.h"
#include "runtime/base/os_socket.h"
#include "weir/share.h"

namespace weir::test {

using peer::owned_file;

struct parcel {
  std::vector<std::byte> bytes;
  std::vector<owned_file> files;
};

class raw_end {
 public:
  explicit raw_end(int socket) : socket_(socket) {}
  int get() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  void close() { socket_.close(); }

  // Blocks: no. Returns: false if the queue is full or the other end is closed.
  bool send(std::span<std::byte const> bytes, std::span<int const> files = {}) const {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 256)> room{};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    if (!files.empty()) {
      m.msg_control = room.data();
      m.msg_controllen = CMSG_SPACE(files.size_bytes());
      cmsghdr* const c = CMSG_FIRSTHDR(&m);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(files.size_bytes());
      std::memcpy(CMSG_DATA(c), files.data(), files.size_bytes());
    }
    return ::sendmsg(socket_.get(), &m, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  bool send(peer::message const& what, std::span<int const> files = {}) const {
    return send(peer::bytes_of(what), files);
  }

  // Blocks: no. Returns: an empty parcel if nothing has arrived.
  parcel receive() const {
    parcel out{std::vector<std::byte>(512), {}};
    iovec part{out.bytes.data(), out.bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 16)> room{};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room.data();
    m.msg_controllen = room.size();
    auto const n = ::recvmsg(socket_.get(), &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    out.bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    for (cmsghdr* c = n < 0 ? nullptr : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
      if (c->cmsg_type != SCM_RIGHTS)
        continue;
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int file = -1;
        std::memcpy(&file, CMSG_DATA(c) + i * sizeof(int), sizeof file);
        out.files.emplace_back(file);
      }
    }
    return out;
  }

 private:
  owned_file socket_;
};

// A message about memory as weir sends it, with its descriptors: intercepted, or made by hand.
struct lent_memory {
  peer::message what;
  owned_file memory, life, owners_end;  // the last: of an importer made by hand

  std::vector<int> files() const {
    std::vector<int> all;
    for (owned_file const* one : {&memory, &life}) {
      if (one->is_open())
        all.push_back(one->get());
    }
    return all;
  }
  peer::message const& sealed() {
    what.checksum = peer::checksum_of(what);
    return what;
  }
};

inline lent_memory caught(exportable_buffer const& b) {
  auto const [mine, other] = os::make_sockets();
  raw_end const raw(other);
  share_channel(mine).send(b, default_stream(b.device()));
  auto got = raw.receive();
  lent_memory out;
  if (got.bytes.size() == sizeof out.what && got.files.size() == 2) {
    std::memcpy(&out.what, got.bytes.data(), sizeof out.what);
    out.memory = std::move(got.files[0]), out.life = std::move(got.files[1]);
  }
  return out;
}

inline constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // as weir seals its own files

inline owned_file memory_file(std::size_t bytes, int seals = all_seals) {
  owned_file out(::memfd_create("of a raw end", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(out.get(), static_cast<off_t>(bytes)) != 0 || ::fcntl(out.get(), F_ADD_SEALS, seals) != 0)
    out.close();
  return out;
}

// The raw end's own memory, under the names, device and size of another message. `said`: the owner's words on
// the importer's socket.
inline lent_memory lent_under_names_of(peer::message const& names, owned_file memory, char const* said = "l") {
  lent_memory out;
  out.what = names;
  out.memory = std::move(memory);
  auto const [a, b] = os::make_sockets();
  out.owners_end = owned_file(a), out.life = owned_file(b);
  (void)::send(a, said, std::strlen(said), MSG_DONTWAIT | MSG_NOSIGNAL);
  out.sealed();
  return out;
}

inline std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

}  // namespace weir::test
