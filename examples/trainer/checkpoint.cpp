// Writes a temporary file, and renames it once the disk has it. Validates every length before use.
// Threads: see checkpoint.h.
#include "checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/crc.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <type_traits>

namespace trainer {
namespace {

constexpr char magic[] = "weirckpt";
constexpr std::uint32_t version = 2;

std::uint32_t crc_of(std::string const& bytes, std::size_t count) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), count);
  return crc.checksum();
}

template <class T>
void put(std::string& bytes, T const& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<char const*>(&value), sizeof value);
}

struct descriptor {
  int const is;
  descriptor(std::filesystem::path const& file, int flags) : is(::open(file.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~descriptor() {
    if (is >= 0)
      ::close(is);
  }
};

void put_on_disk(std::filesystem::path const& file, std::string const& bytes) {
  descriptor const to(file, O_WRONLY | O_CREAT | O_TRUNC);
  std::size_t at = 0;
  bool good = to.is >= 0;
  while (good && at < bytes.size()) {
    ssize_t const n = ::write(to.is, bytes.data() + at, bytes.size() - at);
    if (n >= 0)
      at += static_cast<std::size_t>(n);
    else
      good = errno == EINTR;
  }
  if (good && ::fsync(to.is) == 0)
    return;
  std::string const why = std::strerror(errno);
  throw std::runtime_error("checkpoint: " + file.string() + " cannot be written: " + why +
                           ". Check the disk space and the permissions of the folder");
}

class reader {
 public:
  reader(std::string const& bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}
  [[noreturn]] void refuse(std::string const& why) const {
    throw std::runtime_error("checkpoint: " + file_ + " " + why);
  }
  char const* take(std::size_t count) {
    if (count > bytes_.size() - at_)
      refuse("is damaged: it ends too early");
    char const* const p = bytes_.data() + at_;
    at_ += count;
    return p;
  }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::size_t at() const noexcept { return at_; }
  std::size_t left() const noexcept { return bytes_.size() - at_; }

 private:
  std::string const& bytes_;
  std::string file_;
  std::size_t at_ = 0;
};

}  // namespace

void write_checkpoint(std::filesystem::path const& file, checkpoint const& c) {
  std::string bytes(magic, 8);
  put(bytes, version);
  for (std::int32_t const n : {c.shape.context, c.shape.vocabulary, c.shape.embedding, c.shape.hidden, c.shape.layers})
    put(bytes, n);
  put(bytes, c.by);
  put(bytes, c.step);
  bytes += c.characters;
  put(bytes, static_cast<std::uint64_t>(c.values.size()));
  bytes.append(reinterpret_cast<char const*>(c.values.data()), c.values.size() * sizeof(float));
  put(bytes, crc_of(bytes, bytes.size()));

  std::filesystem::path beside = file;
  beside += ".part";
  put_on_disk(beside, bytes);
  std::error_code failed;
  std::filesystem::rename(beside, file, failed);
  if (failed)
    throw std::runtime_error("checkpoint: " + file.string() + " cannot be replaced: " + failed.message());
  descriptor const folder(file.has_parent_path() ? file.parent_path() : ".", O_RDONLY | O_DIRECTORY);
  if (folder.is >= 0)
    (void)::fsync(folder.is);  // the new name; some file systems cannot
}

checkpoint read_checkpoint(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  std::string const bytes{std::istreambuf_iterator<char>(in), {}};
  reader from(bytes, file.string());
  if (!in.is_open() || in.bad())
    from.refuse("cannot be read");
  if (bytes.size() < 8 || std::memcmp(from.take(8), magic, 8) != 0)
    from.refuse("is no checkpoint of this trainer");
  std::uint32_t const v = from.get<std::uint32_t>();
  if (v < 1 || v > version)
    from.refuse("has version " + std::to_string(v) + ", this trainer reads versions 1 to " + std::to_string(version));
  if (bytes.size() < from.at() + 4)
    from.refuse("is damaged: it ends too early");
  std::uint32_t said;
  std::memcpy(&said, bytes.data() + bytes.size() - 4, 4);
  if (said != crc_of(bytes, bytes.size() - 4))
    from.refuse("is damaged: its checksum does not match");

  checkpoint c;
  for (int* const n : {&c.shape.context, &c.shape.vocabulary, &c.shape.embedding, &c.shape.hidden, &c.shape.layers})
    *n = from.get<std::int32_t>();
  if (v > 1)
    c.by = from.get<optimizer>();
  if (c.by != optimizer::sgd && c.by != optimizer::adamw)
    from.refuse("is damaged: it names no optimizer");
  c.step = from.get<std::int64_t>();
  if (c.shape.vocabulary < 1 || c.shape.vocabulary > 256)
    from.refuse("is damaged: no vocabulary has " + std::to_string(c.shape.vocabulary) + " characters");
  c.characters.assign(from.take(static_cast<std::size_t>(c.shape.vocabulary)),
                      static_cast<std::size_t>(c.shape.vocabulary));
  std::uint64_t const count = from.get<std::uint64_t>();
  if (from.left() < 4 || count != (from.left() - 4) / sizeof(float))
    from.refuse("is damaged: it says " + std::to_string(count) + " values and holds " +
                std::to_string(from.left() / sizeof(float)));
  c.values.resize(count);
  std::memcpy(c.values.data(), from.take(count * sizeof(float)), count * sizeof(float));
  std::int64_t expected = 0;
  for (auto const& row : parameter_table(c.shape))
    expected += (1 + states_of(c.by)) * row.count();
  if (expected != static_cast<std::int64_t>(count))
    from.refuse("is damaged: a model of its shape has " + std::to_string(expected) + " values, not " +
                std::to_string(count));
  return c;
}

}  // namespace trainer
