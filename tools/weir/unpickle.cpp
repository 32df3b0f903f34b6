// A stack machine for pickle opcodes, as documented in pickletools.py of CPython. A dictionary of a known
// kind (frame, block, trace entry, segment) becomes a record as soon as its items are complete: 10^6 events
// need no tree of values.
// Invariant: the numbers of values, containers, texts and memo entries are each at most `spare` plus one per
// `bytes_a_value` bytes read. A snapshot takes at least ten bytes for each.
#include "tools/weir/unpickle.h"

#include <algorithm>
#include <bit>
#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstring>
#include <tuple>

#include "runtime/base/text.h"
#include "tools/weir/own_line.h"

namespace weir::report {
namespace {

struct value {
  enum class type : std::uint8_t { none, number, real, text, list, dict, mark } is = type::none;
  std::uint64_t what = 0;  // the number, or the index of the text, list or dictionary
};
using fields = std::vector<std::pair<value, value>>;
struct dictionary {
  enum class type : std::uint8_t { plain, frame, block, entry, segment } is = type::plain;
  std::uint32_t record = 0;
  std::uint64_t at = 0;  // file offset of its completion
};
struct found_block {
  memory_block block;
  std::uint64_t frames;
};
struct found_entry {
  trace_entry entry;
  std::uint64_t frames;
};
using found_frame = std::tuple<std::string const*, std::string const*, std::uint32_t>;  // name, file, line
using frame_numbers = std::vector<std::uint32_t>;                                       // innermost first
struct found_place {
  source_location where{nullptr, nullptr, 0};
  std::uint32_t stack = 0;
};
struct found_segment {
  memory_segment segment;
  int device;
  std::uint64_t blocks;
};

constexpr std::size_t largest_file = std::size_t{1} << 30;
constexpr std::size_t largest_stacks = std::size_t{1} << 28;  // bytes of text; a file may repeat a text
constexpr std::size_t spare = 10'000, bytes_a_value = 8;
constexpr std::uint64_t no_list = ~std::uint64_t{0};
constexpr std::string_view actions[] = {"alloc",       "free_requested",    "free_completed", "oom",
                                        "segment_map", "segment_unmap",     "segment_alloc",  "segment_free",
                                        "snapshot",    "workspace_snapshot"};

class reader {
 public:
  reader(std::string_view in, std::string_view file, source_location at) : in_(in), file_(file), called_(at) {}

  loaded_snapshot read() {
    if (in_.size() > largest_file)
      refuse("the file has more than 1 GiB", "Record fewer events");
    if (in_.substr(0, 1) != "\x80")
      refuse("this is not a pickle", "Pass a file of dump_memory_snapshot, or of torch.cuda.memory._dump_snapshot");
    while (step()) {}
    finish();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(
      std::string const& what,
      std::string remedy = "Record the file again: it is damaged, or not a memory snapshot") const {
    throw invalid_use("snapshot", std::string(file_) + ", byte " + std::to_string(next_) + ": " + what,
                      std::move(remedy), called_);
  }
  template <class Container>
  void room_for_one_more(Container const& in) const {
    if (in.size() >= spare + next_ / bytes_a_value)
      refuse("the file has more values than a snapshot of its length");
  }
  std::string_view bytes(std::size_t n) {
    if (n > in_.size() - next_)
      refuse("the file ends within a value");
    std::string_view const out = in_.substr(next_, n);
    next_ += n;
    return out;
  }
  std::uint64_t little_endian(std::size_t n) {
    std::uint64_t v = 0;
    std::string_view const from = bytes(n);
    for (std::size_t i = n; i-- > 0;)
      v = v << 8 | static_cast<unsigned char>(from[i]);
    return v;
  }

  bool step() {
    auto const code = static_cast<unsigned char>(bytes(1)[0]);
    switch (code) {
      case 0x80:
        if (auto const v = little_endian(1); v < 2 || v > 5)
          refuse("protocol " + std::to_string(v) + " is not one of 2 to 5");
        break;
      case 0x95: (void)bytes(8); break;  // the length of a frame
      case '.': return false;
      case '(': push({value::type::mark}); break;
      case 'N': push({}); break;
      case 0x88:
      case 0x89: number(code == 0x88); break;
      case 'K': number(little_endian(1)); break;
      case 'M': number(little_endian(2)); break;
      case 'J': number(static_cast<std::uint64_t>(static_cast<std::int32_t>(little_endian(4)))); break;
      case 0x8a: long_number(); break;
      case 'G': real(); break;
      case 'X': text(bytes(little_endian(4))); break;
      case 0x8c: text(bytes(little_endian(1))); break;
      case 0x8d: text(bytes(little_endian(8))); break;
      case ']':
      case ')': tuple({}); break;
      case '}': new_dictionary(); break;
      case 't': tuple(from_mark()); break;
      case 0x85:
      case 0x86:
      case 0x87: tuple(top(code - 0x84u)); break;
      case 'a': append(top(1)); break;
      case 'e': append(from_mark()); break;
      case 's': set(top(2)); break;
      case 'u': set(from_mark()); break;
      case 'q': remember(little_endian(1)); break;
      case 'r': remember(little_endian(4)); break;
      case 0x94: remember(memo_.size()); break;
      case 'h': recall(little_endian(1)); break;
      case 'j': recall(little_endian(4)); break;
      default: --next_, refuse("opcode " + std::to_string(code) + " is not one of a memory snapshot's");
    }
    return true;
  }

  void push(value v) {
    room_for_one_more(stack_);
    stack_.push_back(v);
  }
  void new_dictionary() {
    room_for_one_more(dicts_);
    push({value::type::dict, dicts_.size()});
    dicts_.push_back({dictionary::type::plain, static_cast<std::uint32_t>(plain_.size()), 0});
    plain_.emplace_back();
  }
  void number(std::uint64_t n) { push({value::type::number, n}); }
  void long_number() {
    std::size_t const n = little_endian(1);
    if (n > 9)
      refuse("a number of " + std::to_string(n) + " bytes");
    std::uint64_t v = 0;
    std::string_view const from = bytes(n);
    if (n == 9 && from[8] != 0)
      refuse("a number of more than 64 bits");
    for (std::size_t i = std::min<std::size_t>(n, 8); i-- > 0;)
      v = v << 8 | static_cast<unsigned char>(from[i]);
    if (n > 0 && n < 8 && (from[n - 1] & 0x80))
      v |= ~std::uint64_t{0} << (8 * n);
    number(v);
  }
  void real() {
    std::uint64_t bits = 0;
    for (char const c : bytes(8))
      bits = bits << 8 | static_cast<unsigned char>(c);
    push({value::type::real, bits});
  }
  void text(std::string_view t) {
    room_for_one_more(out_.texts);
    push({value::type::text, reinterpret_cast<std::uint64_t>(&*out_.texts.emplace(t).first)});
  }
  static std::string const& text_of(value v) { return *reinterpret_cast<std::string const*>(v.what); }

  std::vector<value> top(std::size_t n) {
    if (stack_.size() < n)
      refuse("the stack of values is empty");
    std::vector<value> out(stack_.end() - static_cast<std::ptrdiff_t>(n), stack_.end());
    if (std::any_of(out.begin(), out.end(), [](value v) { return v.is == value::type::mark; }))
      refuse("a value below a mark is popped");
    stack_.resize(stack_.size() - n);
    return out;
  }
  std::vector<value> from_mark() {
    auto const mark = std::find_if(stack_.rbegin(), stack_.rend(), [](value v) { return v.is == value::type::mark; });
    if (mark == stack_.rend())
      refuse("a mark is missing");
    std::vector<value> out(mark.base(), stack_.end());
    stack_.resize(static_cast<std::size_t>(mark.base() - stack_.begin()) - 1);
    return out;
  }
  void tuple(std::vector<value> items) {
    room_for_one_more(lists_);
    push({value::type::list, lists_.size()});
    lists_.push_back(std::move(items));
  }
  value container(value::type wanted) const {
    if (stack_.empty() || stack_.back().is != wanted)
      refuse("items have no list or dictionary");
    return stack_.back();
  }
  void append(std::vector<value> const& items) {
    auto& list = lists_[container(value::type::list).what];
    list.insert(list.end(), items.begin(), items.end());
  }
  void remember(std::uint64_t n) {
    if (stack_.empty() || stack_.back().is == value::type::mark)
      refuse("the memo stores no value");
    if (n > memo_.size())
      refuse("number " + std::to_string(n) + " is stored out of order");
    if (n == memo_.size())
      room_for_one_more(memo_), memo_.push_back(stack_.back());
    else
      memo_[n] = stack_.back();
  }
  void recall(std::uint64_t n) {
    if (n >= memo_.size() || memo_[n].is == value::type::mark)
      refuse("number " + std::to_string(n) + " was never stored");
    push(memo_[n]);
  }

  // Dictionaries --------------------------------------------------------------------------------------------
  void set(std::vector<value> const& items) {
    if (items.size() % 2)
      refuse("a key has no value");
    dictionary& d = dicts_[container(value::type::dict).what];
    fields f;
    for (std::size_t i = 0; i < items.size(); i += 2)
      f.push_back({items[i], items[i + 1]});
    if (d.is != dictionary::type::plain)
      refuse("a complete record grows");
    if (!plain_[d.record].empty()) {
      plain_[d.record].insert(plain_[d.record].end(), f.begin(), f.end());
      return;
    }
    d.at = next_;
    if (field(f, "action"))
      make(d, dictionary::type::entry, entries_, entry(f));
    else if (field(f, "filename"))
      make_frame(d, f);
    else if (field(f, "blocks"))
      make(d, dictionary::type::segment, segments_, segment(f));
    else if (field(f, "state") && field(f, "size"))
      make(d, dictionary::type::block, blocks_, block(f));
    else
      plain_[d.record] = std::move(f);
  }
  // Frames of one function, file and line have one number: stacks are compared by these.
  void make_frame(dictionary& d, fields const& f) {
    found_frame const one{&string(f, "name"), &string(f, "filename"), static_cast<std::uint32_t>(whole(f, "line"))};
    auto const [known, fresh] = frame_numbers_.try_emplace(one, static_cast<std::uint32_t>(frames_.size()));
    if (fresh)
      frames_.push_back(one);
    if (d.record + 1 == plain_.size())
      plain_.pop_back();
    d.is = dictionary::type::frame, d.record = known->second;
  }
  template <class T>
  void make(dictionary& d, dictionary::type is, std::vector<T>& all, T one) {
    if (d.record + 1 == plain_.size())
      plain_.pop_back();  // mostly true: it had no items
    d.is = is, d.record = static_cast<std::uint32_t>(all.size());
    all.push_back(std::move(one));
  }
  static value const* field(fields const& f, std::string_view name) {
    for (auto const& [key, v] : f) {
      if (key.is == value::type::text && text_of(key) == name)
        return &v;
    }
    return nullptr;
  }
  value const& needed(fields const& f, std::string_view name, value::type wanted) const {
    value const* const v = field(f, name);
    if (!v || v->is != wanted)
      refuse("a dictionary's '" + std::string(name) + (v ? "' has another type" : "' is missing"));
    return *v;
  }
  std::uint64_t whole(fields const& f, std::string_view name) const {
    return needed(f, name, value::type::number).what;
  }
  std::uint64_t whole_or_0(fields const& f, std::string_view name) const { return field(f, name) ? whole(f, name) : 0; }
  std::string const& string(fields const& f, std::string_view name) const {
    return text_of(needed(f, name, value::type::text));
  }
  std::uint64_t list_or_none(fields const& f, std::string_view name) const {
    return field(f, name) ? needed(f, name, value::type::list).what : no_list;
  }

  found_entry entry(fields const& f) const {
    std::string const& action = string(f, "action");
    auto const known = std::find(std::begin(actions), std::end(actions), action);
    if (known == std::end(actions))
      refuse("the action '" + base::visible(action.substr(0, 40)) + "' is unknown");
    trace_entry e{*known};
    e.at = *known == "oom" ? whole_or_0(f, "device_free") : whole(f, "addr");
    e.bytes = whole(f, "size"), e.stream = whole_or_0(f, "stream"),
    e.us = static_cast<std::int64_t>(whole_or_0(f, "time_us")), e.user = whole_or_0(f, "still_used_by");
    return {e, list_or_none(f, "frames")};
  }
  found_block block(fields const& f) const {
    std::string const& state = string(f, "state");
    block_state const is = state == "active_allocated" ? block_state::active_allocated
                           : state == "inactive"       ? block_state::inactive
                                                       : block_state::active_pending_free;
    if (is == block_state::active_pending_free && !state.starts_with("active_"))
      refuse("the state '" + base::visible(state.substr(0, 40)) + "' is unknown");
    return {{field(f, "address") ? whole(f, "address") : 0,
             whole(f, "size"),
             whole_or_0(f, "requested_size"),
             is,
             {nullptr, nullptr, 0}},
            list_or_none(f, "frames")};
  }
  found_segment segment(fields const& f) const {
    bool const small = field(f, "segment_type") && string(f, "segment_type") == "small";
    return {{whole(f, "address"), whole(f, "total_size"), whole_or_0(f, "stream"), small, {}},
            static_cast<int>(whole_or_0(f, "device")),
            needed(f, "blocks", value::type::list).what};
  }

  // The end -------------------------------------------------------------------------------------------------
  void finish() {
    if (stack_.size() != 1 || stack_[0].is != value::type::dict || dicts_[stack_[0].what].is != dictionary::type::plain)
      refuse("the file does not hold a dictionary");
    fields const& top = plain_[dicts_[stack_[0].what].record];
    auto const& segments = lists_[needed(top, "segments", value::type::list).what];
    std::size_t devices = 0;
    for (value const v : segments)
      devices = std::max(devices, static_cast<std::size_t>(record(v, dictionary::type::segment, segments_).device) + 1);
    auto const* const traces =
        field(top, "device_traces") ? &lists_[needed(top, "device_traces", value::type::list).what] : nullptr;
    if (traces)
      devices = std::max(devices, traces->size());
    if (devices > 1024)
      refuse("memory of device " + std::to_string(devices - 1));
    for (std::size_t d = 0; d < devices; ++d)
      out_.devices.push_back({static_cast<int>(d), {}, {}});
    for (value const v : segments)
      add(record(v, dictionary::type::segment, segments_));
    for (std::size_t d = 0; traces && d < traces->size(); ++d)
      add((*traces)[d], out_.devices[d]);
    for (device_snapshot& d : out_.devices)
      std::sort(d.segments.begin(), d.segments.end(),
                [](auto const& a, auto const& b) { return a.address < b.address; });
  }
  template <class T>
  T const& record(value v, dictionary::type wanted, std::vector<T> const& all) const {
    if (v.is != value::type::dict || dicts_[v.what].is != wanted)
      refuse("a list has an item of another type");
    return all[dicts_[v.what].record];
  }
  void add(found_segment const& from) {
    memory_segment s = from.segment;
    std::uintptr_t next = s.address;
    for (value const v : lists_[from.blocks]) {
      found_block const& b = record(v, dictionary::type::block, blocks_);
      if (++blocks_used_ > blocks_.size())
        refuse("two segments share a list of blocks");
      memory_block one = b.block;
      if (one.address == 0)
        one.address = next;  // absent in older files
      next = one.address + one.bytes;
      if (one.address < s.address || next > s.address + s.bytes || next < one.address)
        refuse("a block lies outside its segment");
      std::uint32_t stack = 0;
      place(b.frames, one.where, stack);
      s.blocks.push_back(one);
    }
    if (from.device < 0)
      refuse("memory of device " + std::to_string(from.device));
    out_.devices[static_cast<std::size_t>(from.device)].segments.push_back(std::move(s));
  }
  void add(value trace, device_snapshot& to) {
    if (trace.is != value::type::list)
      refuse("a trace is not a list");
    for (value const v : lists_[trace.what]) {
      found_entry const& e = record(v, dictionary::type::entry, entries_);
      if (++entries_used_ > entries_.size())
        refuse("two devices share a trace");
      if (e.entry.action.ends_with("snapshot"))
        continue;
      to.trace.push_back(e.entry);
      place(e.frames, to.trace.back().where, to.trace.back().stack);
    }
  }
  // Sets `where` to the line of the program, and `stack` if the list has more frames.
  void place(std::uint64_t list, source_location& where, std::uint32_t& stack) {
    if (list == no_list || lists_[list].empty())
      return;
    auto const [known, fresh] = places_by_list_.try_emplace(list);
    if (fresh)
      known->second = place_of(lists_[list]);
    where = known->second.where, stack = known->second.stack;
  }
  // PyTorch writes a list of its own for each entry, also where two have the same frames.
  found_place place_of(std::vector<value> const& list) {
    frame_numbers numbers;
    for (value const v : list) {
      if (v.is != value::type::dict || dicts_[v.what].is != dictionary::type::frame)
        refuse("a list has an item of another type");
      numbers.push_back(dicts_[v.what].record);
    }
    auto const [known, fresh] = places_.try_emplace(std::move(numbers));
    if (fresh)
      known->second = named(known->first);
    return known->second;
  }
  found_place named(frame_numbers const& numbers) {
    stack_of all{static_cast<std::uint32_t>(out_.stacks.size() + 1), {}};
    for (std::uint32_t const n : numbers) {
      auto const& [name, file, line] = frames_[n];
      if ((spent_ += sizeof(frame) + name->size() + file->size()) > largest_stacks)
        refuse("the stacks are too long for the file");
      all.frames.push_back({*name, *file, line});
    }
    found_place place;
    std::size_t const own = own_line(all.frames);
    bool const has_line = own < all.frames.size();
    frame const is = has_line ? all.frames[own] : frame{"", own_call(all.frames), 0};
    if (!is.file.empty())
      place.where = {out_.texts.emplace(is.file).first->c_str(), out_.texts.emplace(is.name).first->c_str(), is.line};
    if (has_line && all.frames.size() == 1)
      return place;
    place.stack = all.number;
    out_.stacks.push_back(std::move(all));
    return place;
  }

  std::string_view in_, file_;
  source_location called_;
  std::size_t next_ = 0, spent_ = 0, blocks_used_ = 0, entries_used_ = 0;
  std::vector<value> stack_, memo_;
  std::vector<std::vector<value>> lists_;
  std::vector<dictionary> dicts_;
  std::vector<fields> plain_;
  std::vector<found_frame> frames_;
  std::vector<found_block> blocks_;
  std::vector<found_entry> entries_;
  std::vector<found_segment> segments_;
  boost::unordered_flat_map<found_frame, std::uint32_t, boost::hash<found_frame>> frame_numbers_;
  boost::unordered_flat_map<std::uint64_t, found_place> places_by_list_;
  boost::unordered_flat_map<frame_numbers, found_place, boost::hash<frame_numbers>> places_;
  loaded_snapshot out_;
};

}  // namespace

loaded_snapshot read_snapshot(std::string_view bytes, std::string_view file, source_location at) {
  return reader(bytes, file, at).read();
}

}  // namespace weir::report
