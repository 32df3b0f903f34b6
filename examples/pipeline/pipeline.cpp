// The pipeline: file input and output, three streams, as many concurrent batches as slots, and a checksum.
#include "examples/pipeline/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "examples/pipeline/scramble.h"
#include "weir/copy.h"

namespace pipeline {
namespace {

std::size_t words_of(std::size_t bytes) {
  return (bytes + 7) / 8;
}

struct checksum {
  std::uint64_t is = 0xcbf29ce484222325u;
  void add(std::uint64_t word) { is = (is ^ word) * 0x9e3779b97f4a7c15u, is ^= is >> 29; }
  void add(std::uint64_t const* words, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      add(words[i]);
  }
};

class source {
 public:
  explicit source(std::filesystem::path const& path) : path_(path) {
    std::error_code failed;
    auto const kind = std::filesystem::status(path, failed).type();
    if (kind == std::filesystem::file_type::directory)
      throw std::runtime_error(path.string() + " is a directory");
    if (kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found)
      throw std::runtime_error(path.string() + " is no file with an end: write it to one first");
    file_.open(path, std::ios::binary);
    size_ = std::filesystem::file_size(path, failed);
    if (!file_ || failed)
      throw std::runtime_error(path.string() + " cannot be read");
    if (size_ == 0 && file_.peek() != std::ifstream::traits_type::eof())
      throw std::runtime_error(path.string() +
                               " does not say its size, as files of the kernel do: write it to a file first");
  }
  std::size_t size() const { return size_; }
  // Pads the last word with zeros.
  void read(std::uint64_t* to, std::size_t bytes) {
    if (bytes % 8)
      to[bytes / 8] = 0;
    file_.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(bytes));
    auto const got = static_cast<std::size_t>(file_.gcount());
    if (got != bytes)
      throw std::runtime_error(path_.string() + " ended at byte " + std::to_string(at_ + got) + ", it had " +
                               std::to_string(size_) + " when it was opened");
    at_ += bytes;
  }

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  std::size_t size_ = 0, at_ = 0;
};

class sink {
 public:
  explicit sink(std::filesystem::path const& path) : path_(path), file_(path, std::ios::binary | std::ios::trunc) {
    if (!file_)
      throw std::runtime_error(path.string() + " cannot be written");
  }
  void write(std::uint64_t const* from, std::size_t bytes) {
    file_.write(reinterpret_cast<char const*>(from), static_cast<std::streamsize>(bytes));
    flush(bytes);
  }
  void flush(std::size_t bytes = 0) {
    file_.flush();
    if (!file_)
      throw std::runtime_error(path_.string() + " takes no more at byte " + std::to_string(at_) +
                               ". Check whether the disk is full");
    at_ += bytes;
  }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::size_t at_ = 0;
};

struct lap {  // start and end of one batch's stage, on that stage's stream
  weir::event from{{.timing = true}}, to{{.timing = true}};
};
struct under_way {  // one batch in flight
  std::size_t bytes = 0;
  lap in, work, out;
  weir::stamp done;
};

}  // namespace

void require_room(std::filesystem::path const& file, std::size_t bytes) {
  std::error_code failed;
  auto const there = std::filesystem::status(file, failed);
  bool const is_new = there.type() == std::filesystem::file_type::not_found;
  if (!is_new && !std::filesystem::is_regular_file(there))
    return;  // for example a device file
  std::size_t const replaced = is_new ? 0 : std::filesystem::file_size(file, failed);
  auto const disk = std::filesystem::space(is_new ? std::filesystem::absolute(file).parent_path() : file, failed);
  if (failed || bytes <= replaced || bytes - replaced <= disk.available)
    return;
  throw std::runtime_error(file.string() + " would have " + std::to_string(bytes) +
                           " bytes, and its disk has room for " + std::to_string(disk.available + replaced));
}

outcome run(settings const& s) {
  if (s.batch == 0 || s.batch % 8 || s.depth < 1)
    throw std::runtime_error("batches are of a multiple of 8 bytes, and at least one is under way");
  source from(s.input);
  std::error_code not_there;
  if (std::filesystem::equivalent(s.input, s.output, not_there))
    throw std::runtime_error(s.output.string() + " is " + s.input.string() + " itself: name another output");
  require_room(s.output, from.size());
  sink to(s.output);
  weir::stream in, work, out;
  std::vector<weir::buffer> sources, results;  // pinned: a slot for each batch in flight
  std::vector<under_way> batches(from.size() / s.batch + (from.size() % s.batch ? 1 : 0));
  while (sources.size() < std::min(batches.size(), static_cast<std::size_t>(s.depth)))
    sources.push_back(weir::pinned(s.batch)), results.push_back(weir::pinned(s.batch));

  outcome o;
  o.bytes = from.size();
  checksum sum;
  weir::event start{{.timing = true}};
  start.record(in);
  start.synchronize();
  using clock = std::chrono::steady_clock;
  auto const began = clock::now();
  auto const now = [&] { return std::chrono::duration<double, std::milli>(clock::now() - began).count(); };
  std::size_t written = 0;
  auto const write = [&](std::size_t i) {
    under_way& b = batches[i];
    b.done.synchronize();
    double const at = now();
    to.write(results[i % sources.size()].data<std::uint64_t>(), b.bytes);
    o.spans.push_back({stage::write, static_cast<int>(i), at, now()});
    written += b.bytes;
    if (s.progress)
      s.progress(written, o.bytes);
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (i >= sources.size())
      write(i - sources.size());  // frees the slots that this batch needs
    under_way& b = batches[i];
    b.bytes = std::min(s.batch, o.bytes - i * s.batch);
    std::size_t const words = words_of(b.bytes), slot = i % sources.size();
    auto* const words_in = sources[slot].data<std::uint64_t>();
    double const at = now();
    from.read(words_in, b.bytes);
    sum.add(words_in, words);
    o.spans.push_back({stage::read, static_cast<int>(i), at, now()});

    // weir delays the reuse of x and y until the streams have finished with them.
    std::optional<weir::stream_guard> on{in};
    weir::buffer const x(words * 8);
    b.in.from.record(in);
    weir::copy(in, x.data(), words_in, words * 8, weir::non_blocking);
    b.in.to.record(in);
    on.reset(), on.emplace(work);
    weir::buffer const y(words * 8);
    work.wait(in);
    b.work.from.record(work);
    scramble(work, y.data<std::uint64_t>(), x.data<std::uint64_t>(), i * (s.batch / 8), words);
    b.work.to.record(work);
    out.wait(work);
    b.out.from.record(out);
    b.done = weir::copy(out, results[slot].data(), y.data(), words * 8, weir::non_blocking);
    b.out.to.record(out);
  }
  for (std::size_t i = batches.size() - std::min(batches.size(), sources.size()); i < batches.size(); ++i)
    write(i);
  to.flush();
  o.ms = now();
  o.checksum = sum.is;
  for (auto const* one : {&in, &work, &out})
    one->synchronize();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    auto const add = [&](stage what, lap const& l) {
      o.spans.push_back(
          {what, static_cast<int>(i), start.elapsed_time(l.from).count(), start.elapsed_time(l.to).count()});
    };
    add(stage::copy_in, batches[i].in);
    add(stage::work, batches[i].work);
    add(stage::copy_out, batches[i].out);
  }
  return o;
}

std::uint64_t checksum_of_restored(std::filesystem::path const& output) {
  source from(output);
  checksum sum;
  std::vector<std::uint64_t> part(std::size_t{1} << 17);
  std::uint64_t place = 0;
  for (std::size_t left = from.size(); left > 0;) {
    std::size_t const bytes = std::min(left, part.size() * 8);
    from.read(part.data(), bytes);
    for (std::size_t i = 0; i < words_of(bytes); ++i)
      part[i] = scrambled(part[i], place++);
    // The bytes beyond the end of the file were not written.
    if (bytes % 8)
      part[bytes / 8] &= (std::uint64_t{1} << (bytes % 8 * 8)) - 1;
    sum.add(part.data(), words_of(bytes));
    left -= bytes;
  }
  return sum.is;
}

}  // namespace pipeline
