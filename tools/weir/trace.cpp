// Reads a trace line by line and refuses what cannot have happened.
// Threads: one.
#include "trace.h"

#ifdef WEIR_WITH_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir::tool {
namespace {

[[noreturn]] void refuse(std::string what, std::string remedy) {
  throw invalid_use("replay", std::move(what), std::move(remedy), source_location::current());
}

#ifdef WEIR_WITH_ZLIB
std::string unpacked(std::string const& path) {
  struct file {
    gzFile f;
    ~file() { gzclose(f); }
  } const in{gzopen(path.c_str(), "rb")};
  if (!in.f)
    refuse(path + " cannot be opened", "Pass a readable file");
  std::string text;
  char chunk[1 << 16];
  int n = 0;
  while ((n = gzread(in.f, chunk, sizeof chunk)) > 0)
    text.append(chunk, static_cast<std::size_t>(n));
  int fault = 0;
  char const* const said = gzerror(in.f, &fault);
  if (n < 0 || (fault != Z_OK && fault != Z_STREAM_END)) {
    refuse(path + ": decompression fails after line " + std::to_string(std::count(text.begin(), text.end(), '\n')) +
               ": " + said,
           "Fetch the file again: it is truncated or damaged");
  }
  return text;
}
#else
std::string unpacked(std::string const& path) {
  refuse(path + " is compressed, and this build cannot decompress",
         "Decompress it first (gzip -d), or build with zlib's headers");
}
#endif

std::string contents(std::string const& path) {
  if (std::error_code whatever; std::filesystem::is_directory(path, whatever))
    refuse(path + " is a directory", "Pass a file in it");
  std::ifstream in(path, std::ios::binary);
  std::string text;
  bool fails = !in;
  try {
    text.assign(std::istreambuf_iterator<char>(in), {});
  } catch (std::ios_base::failure const&) {
    fails = true;
  }
  if (fails)
    refuse(path + " cannot be read", "Pass a readable file");
  return text.starts_with("\x1f\x8b") ? unpacked(path) : text;
}

// One line's words, each a whole number but the first.
class words {
 public:
  explicit words(std::string_view line) : left_(line) {}
  std::string_view word() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r"), left_.size()));
    std::string_view const w = left_.substr(0, left_.find_first_of(" \t\r"));
    left_.remove_prefix(w.size());
    return w;
  }
  std::optional<std::uint64_t> number() {
    std::string_view const w = word();
    std::uint64_t n = 0;
    auto const [end, failed] = std::from_chars(w.data(), w.data() + w.size(), n);
    if (w.empty() || failed != std::errc{} || end != w.data() + w.size())
      return {};
    return n;
  }
  bool at_end() { return word().empty(); }

 private:
  std::string_view left_;
};

// A word of a file that may be anything: its beginning, and of that what a terminal shows as it stands.
std::string shown(std::string_view word) {
  constexpr std::size_t most = 20;
  return base::in_quotes(base::visible(word.substr(0, most)) + (word.size() > most ? "…" : ""));
}

class reader {
 public:
  explicit reader(std::string const& path) : path_(path) {}

  void line(std::string_view text) {
    ++number_;
    words w(text);
    std::string_view const kind = w.word();
    if (kind.empty())
      return;
    if (kind.front() == '#') {
      if (number_ == 1)
        read_torch_peak(text);
      return comment(kind, w);
    }
    if (kind != "a" && kind != "f" && kind != "c")
      wrong("begins with " + shown(kind), "Begin a line with a, f, c or #");
    auto const id = w.number();
    if (!id)
      wrong("has no ID after \"" + std::string(kind) + "\"", "Write a whole number there");
    if (kind == "a")
      take(*id, w);
    else if (kind == "f")
      give(*id);
    else
      done(*id);
    if (!w.at_end())
      wrong("goes on after its last number", "Write one operation a line");
  }
  trace finish() {
    if (out_.operations.empty())
      refuse(path_ + " has no operations", "Write lines like \"a 0 1024 0\" and \"f 0\"");
    out_.blocks = static_cast<std::uint32_t>(seen_.size());
    for (auto& op : out_.operations) {
      if (op.does == trace::kind::give && seen_[op.block].completes)
        op.does = trace::kind::give_in_use;
    }
    number_streams();
    count_peak();
    if (out_.refused)
      out_.needed = std::max(out_.needed, out_.peak_held);
    return std::move(out_);
  }

 private:
  struct block {
    std::size_t bytes = 0;
    bool given = false, completes = false;
  };
  static constexpr std::size_t most_bytes = std::size_t{1} << 46;
  [[noreturn]] void wrong(std::string what, std::string remedy) {
    refuse(path_ + " line " + std::to_string(number_) + " " + std::move(what), std::move(remedy));
  }

  // "# WHERE, reserved BYTES bytes", and perhaps ", failed". Any other text is a comment.
  void read_torch_peak(std::string_view text) {
    constexpr std::string_view before = ", reserved ", mark = "# ";
    auto const at = text.find(before);
    if (at == text.npos || !text.starts_with(mark))
      return;
    words w(text.substr(at + before.size()));
    auto const bytes = w.number();
    if (!bytes || !w.word().starts_with("bytes"))
      return;
    out_.of_torch = *bytes;
    out_.where = base::visible(text.substr(mark.size(), at - mark.size()));
  }
  void comment(std::string_view kind, words& w) {
    if (kind != "#")
      return;
    std::string_view const word = w.word();
    if (word == "began")
      return begin_with(w);
    if (word != "refused")
      return;
    auto const bytes = w.number();
    if (!bytes || *bytes > most_bytes)
      wrong("is no \"# refused BYTES\"", "Write the bytes of the refused allocation");
    if (live_ + *bytes <= out_.needed)
      return;
    out_.refused = *bytes;
    out_.needed = live_ + *bytes;
  }
  void begin_with(words& w) {
    bool const with = w.word() == "with", blocks = w.number().has_value();
    bool const comma = w.word() == "blocks,";
    auto const bytes = w.number();
    if (!with || !blocks || !comma || !bytes || *bytes > most_bytes)
      wrong("is no \"# began with BLOCKS blocks, BYTES bytes\"", "Write what was in use when the recording began");
    out_.began_with = *bytes;
  }
  void take(std::uint64_t id, words& w) {
    auto const bytes = w.number(), stream = w.number();
    if (!bytes || !stream)
      wrong("is no \"a ID BYTES STREAM\"", "Write three whole numbers after the a");
    if (*stream >= most_streams)
      wrong("names stream " + std::to_string(*stream), "Number streams from 0 to " + std::to_string(most_streams - 1));
    if (*bytes > most_bytes)
      wrong("asks for " + std::to_string(*bytes) + " B", "Check the number: no machine has so much");
    if (seen_.size() == ~std::uint32_t{0})
      wrong("is beyond the last supported block", "Replay at most 4,294,967,295 blocks");
    if (!by_id_.emplace(id, static_cast<std::uint32_t>(seen_.size())).second)
      wrong("takes block " + std::to_string(id) + " a second time", "Give each block an ID of its own");
    out_.operations.push_back(
        {*bytes, static_cast<std::uint32_t>(seen_.size()), static_cast<std::uint16_t>(*stream), trace::kind::take});
    used_[*stream] = true;
    seen_.push_back({*bytes});
    live_ += *bytes;
  }
  void give(std::uint64_t id) {
    block& b = find(id, "frees");
    if (b.given)
      wrong("frees block " + std::to_string(id) + " a second time", "Free each block once");
    b.given = true;
    live_ -= b.bytes;
    out_.operations.push_back({0, by_id_[id], 0, trace::kind::give});
  }
  void done(std::uint64_t id) {
    block& b = find(id, "completes");
    if (!b.given)
      wrong("completes block " + std::to_string(id) + " before it is freed", "Write its f line first");
    if (b.completes)
      wrong("completes block " + std::to_string(id) + " a second time", "Write one c line a block");
    b.completes = true;
    out_.operations.push_back({0, by_id_[id], 0, trace::kind::done});
  }
  block& find(std::uint64_t id, std::string_view does) {
    auto const found = by_id_.find(id);
    if (found == by_id_.end())
      wrong(std::string(does) + " block " + std::to_string(id) + ", which was not allocated", "Write its a line first");
    return seen_[found->second];
  }
  void number_streams() {  // those that there are: a number that is left out is no stream
    std::vector<std::uint16_t> dense(used_.size());
    for (std::size_t i = 0; i < used_.size(); ++i)
      dense[i] = static_cast<std::uint16_t>(out_.streams), out_.streams += used_[i];
    for (auto& op : out_.operations) {
      if (op.does == trace::kind::take)
        op.stream = dense[op.stream];
    }
  }
  void count_peak() {
    std::size_t live = 0, held = 0;
    for (auto const& op : out_.operations) {
      if (op.does == trace::kind::take)
        live += op.bytes, held += op.bytes;
      if (op.does == trace::kind::give || op.does == trace::kind::done)
        live -= seen_[op.block].bytes;
      if (op.does == trace::kind::give || op.does == trace::kind::give_in_use)
        held -= seen_[op.block].bytes;
      out_.peak_requested = std::max(out_.peak_requested, live);
      out_.peak_held = std::max(out_.peak_held, held);
    }
  }

  std::string const path_;
  std::size_t number_ = 0;
  trace out_;
  std::vector<block> seen_;
  std::vector<bool> used_ = std::vector<bool>(most_streams);  // streams
  std::unordered_map<std::uint64_t, std::uint32_t> by_id_;
  std::size_t live_ = 0;  // bytes allocated and not freed
};

}  // namespace

trace read_trace(std::string const& path) {
  std::string const text = contents(path);
  reader r(path);
  for (std::string_view left = text; !left.empty();) {
    std::string_view const line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    r.line(line);
  }
  return r.finish();
}

}  // namespace weir::tool
