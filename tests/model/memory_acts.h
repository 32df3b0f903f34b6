// What random programs of device memory do: they allocate, write, read, mark, copy, hand over and free blocks, and check
// every byte of every block.
// Threads: one at a time, switched inside calls of weir. A block that one uses, no other takes.
//
// A program relies only on its own order: it fills a block on its home stream, orders a reader after that, by
// weir's clocks or by an event unknown to weir, and reads. The rest is weir's task.
//
// A program is a list of numbers, which the runner gives: by a seed and on one thread (memory_program.h), or by a tape
// and among threads (tests/explore/memory_program.h). So it can be played again and shrunk.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/memory/heap/fast_path.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class memory_acts {
 public:
  memory_acts() = default;
  memory_acts(memory_acts const&) = delete;
  virtual ~memory_acts() = default;

  std::uint64_t allocations = 0, ooms = 0;

 protected:
  struct piece {
    unsigned char* at;
    std::size_t bytes;
    std::uint32_t pattern;  // its four bytes, repeated
    int home;
    int ordered;                 // the stream that wrote it last
    std::vector<int> readers{};  // streams that may still read it: ordered behind the write, not before the next one
    bool in_use = false;         // by a thread
  };

  // The runner's part.
  virtual std::uint32_t number(std::uint32_t n) = 0;  // from 0 to n - 1
  virtual std::uint32_t some_pattern() = 0;
  virtual void fail(check by, std::string what) = 0;
  virtual bool traces() const { return false; }
  virtual void told(std::string const&) {}

  int below(int n) { return static_cast<int>(number(static_cast<std::uint32_t>(n))); }
  clock::stream_clock& line(int i) { return *lines_[static_cast<std::size_t>(i)]; }
  int some_line() { return below(static_cast<int>(lines_.size())); }
  int some_line_of(int device) {
    int s = some_line();
    for (int tries = 0; device_of(s) != device && tries < 64; ++tries)
      s = some_line();
    while (device_of(s) != device)  // the numbers have ended, and all are 0
      s = (s + 1) % static_cast<int>(lines_.size());
    return s;
  }
  int device_of(int line) { return lines_[static_cast<std::size_t>(line)]->device(); }
  memory::allocator& on(int device) { return bench_->on(device); }
  driver::driver& machine() { return bench_->machine(); }
  template <class... Words>
  void say(Words const&... words) {
    if (!traces())
      return;
    std::ostringstream text;
    (text << ... << words);
    told(text.str());
  }
  void must(driver::status s, char const* what) {
    if (!s.ok())
      fail(check::answers, std::string(what) + " answered " + std::string(driver::name_of(s.what)));
  }

  // Blocks ----------------------------------------------------------------------------------------------------
  piece* some_block() {  // null: there is none, or another thread uses it
    if (blocks_.empty())
      return nullptr;
    piece* const b = blocks_[static_cast<std::size_t>(below(static_cast<int>(blocks_.size())))].get();
    return b->in_use ? nullptr : b;
  }
  class used {  // until its end
   public:
    explicit used(piece& b) : b_(b) { b.in_use = true; }
    ~used() { b_.in_use = false; }
    used(used const&) = delete;

   private:
    piece& b_;
  };
  std::unique_ptr<piece> take_out(piece const& b) {  // before its free, after which another thread may get its memory
    auto const at = std::ranges::find(blocks_, &b, &std::unique_ptr<piece>::get);
    std::swap(*at, blocks_.back());
    auto out = std::move(blocks_.back());
    blocks_.pop_back();
    return out;
  }
  void add(void* p, std::size_t bytes, std::uint32_t pattern, int home) {
    blocks_.push_back(std::make_unique<piece>(piece{static_cast<unsigned char*>(p), bytes, pattern, home, home}));
  }

  // Work ------------------------------------------------------------------------------------------------------
  static unsigned char byte_of(std::uint32_t pattern, std::size_t i) {
    return static_cast<unsigned char>(pattern >> (i % 4 * 8));
  }
  static void paint(unsigned char* at, std::size_t bytes, std::uint32_t pattern) {
    for (std::size_t i = 0; i < std::min<std::size_t>(bytes, 4); ++i)
      at[i] = byte_of(pattern, i);
    for (std::size_t done = 4; done < bytes; done *= 2)
      std::memcpy(at + done, at, std::min(done, bytes - done));
  }
  static bool painted(unsigned char const* at, std::size_t bytes, std::uint32_t pattern) {
    for (std::size_t i = 0; i < std::min<std::size_t>(bytes, 4); ++i) {
      if (at[i] != byte_of(pattern, i))
        return false;
    }
    return bytes <= 4 || std::memcmp(at, at + 4, bytes - 4) == 0;
  }
  void fill(piece const& b, int s) {
    if (b.bytes == 0)
      return;
    say("fill ", static_cast<void const*>(b.at), " on ", s, " with ", b.pattern);
    if (b.bytes % 4 == 0 && below(2)) {
      must(machine().fill(device_of(s), line(s).handle(), b.at, b.pattern, 4, b.bytes / 4), "fill");
      return;
    }
    enqueue(b, s, true, "", [](void* p) {
      auto const* const x = static_cast<expected*>(p);
      paint(x->at, x->bytes, x->pattern);
    });
  }
  void look(piece const& b, int s, char const* where) {
    if (b.bytes == 0)
      return;
    say("read ", static_cast<void const*>(b.at), " on ", s, ", ", where);
    enqueue(b, s, false, where, [](void* p) {
      auto const* const x = static_cast<expected*>(p);
      if (!painted(x->at, x->bytes, x->pattern))
        x->in->fail(check::bytes, std::string("a block in use was overwritten, seen ") + x->where);
    });
  }
  void order(int before, int after) {  // earlier work of `before` precedes later work of `after`
    if (before == after)
      return;
    say(before, " before ", after);
    if (below(2)) {
      clock::named_in_call const named(line(before));
      return must(line(after).wait(line(before).now()), "wait");
    }
    // an event unknown to weir
    auto const e = machine().create_event(device_of(before), driver::event_kind::order_only);
    must(e.is, "create_event");
    must(machine().record(device_of(before), line(before).handle(), e.value), "record");
    must(machine().wait(device_of(after), line(after).handle(), e.value), "wait");
    must(machine().destroy_event(device_of(before), e.value), "destroy_event");
  }

  // Acts ------------------------------------------------------------------------------------------------------
  // Sizes of all kinds, up to a third of the device; or a few small ones, so that a freed block soon serves again.
  std::size_t some_size() {
    if (small_)
      return std::size_t{64} << 2 * below(3);
    auto const up_to = [this](std::size_t n) { return static_cast<std::size_t>(below(static_cast<int>(n))); };
    switch (below(8)) {
      case 0: return up_to(64);
      case 1:
      case 2: return up_to(4096);
      case 3: return up_to(40 << 10);
      case 4:
      case 5: return capacity_ / 16 + up_to(capacity_ / 16);
      case 6: return up_to(capacity_ / 3);
      default: return (1 + up_to(8)) << 14;
    }
  }
  void allocate() { allocate(some_line()); }
  void allocate(int s) {
    std::size_t const bytes = some_size();
    std::size_t const alignment = below(6) == 0 ? std::size_t{1} << below(18) : 0;
    memory::allocator& a = on(device_of(s));
    void* p = nullptr;
    try {
      if (!(p = memory::fast_allocate(&line(s), bytes, alignment)))
        p = a.allocate(line(s), bytes, alignment, source_location::current());
    } catch (out_of_memory const& e) {
      ++ooms;
      auto const borrowed = [](auto const* l) { return l->alive() == clock::life::borrowed; };
      // What such a stream leaves unfenced stays in its heap.
      if (std::ranges::any_of(lines_, borrowed) || e.report().pool.limit || kept_)
        return;
      if (!unkind_ && maps_ && !captured_ && a.statistics().allocation.all.current == 0 && bytes < capacity_ / 4)
        fail(check::answers, "out of memory on an empty device:\n" + e.report().text());
      return;
    } catch (error const& e) {
      if (!unkind_)
        fail(check::answers, "allocate: " + std::string(e.operands()));
      return;
    }
    ++allocations;
    say("allocate ", p, ", ", bytes, " B aligned to ", alignment, " on ", s);
    if (alignment && reinterpret_cast<std::uintptr_t>(p) % alignment)
      fail(check::answers, "a block is not aligned as asked");
    auto const found = a.find(static_cast<char*>(p) + (bytes ? bytes - 1 : 0));
    if (!found || found->base != p || found->bytes != bytes || found->home != &line(s))
      fail(check::answers, "find does not know a block it just gave");
    piece const b{static_cast<unsigned char*>(p), bytes, some_pattern(), s, s};
    for (auto const& other : blocks_) {
      if (b.at < other->at + other->bytes && other->at < b.at + b.bytes)
        fail(check::answers, "two live blocks overlap");
    }
    fill(b, s);
    add(p, bytes, b.pattern, s);
  }

  void free_used(piece const& b, int by) {
    say("free ", static_cast<void const*>(b.at), " of ", b.home, ", last used on ", by);
    clock::named_in_call const named(line(by));
    if (!memory::fast_deallocate_used(&line(by), b.at))
      on(device_of(b.home)).deallocate(b.at, &line(by), source_location::current());
  }
  void free_block() {
    piece* const at = some_block();
    if (!at)
      return;
    auto const b = take_out(*at);
    if (below(2)) {
      order(b->ordered, b->home);
      look(*b, b->home, "on its home stream before its free");
    }
    if (b->ordered != b->home && below(2))
      return free_used(*b, b->ordered);  // also if marked: an exact last use
    say("free ", static_cast<void const*>(b->at), " of ", b->home, ", last written on ", b->ordered);
    if (!memory::fast_deallocate(b->at))
      on(device_of(b->home)).deallocate(b->at, nullptr, source_location::current());
  }
  void drop_block() {  // enqueues nothing
    if (piece* const at = some_block())
      free_used(*take_out(*at), at->ordered);
  }

  void use_elsewhere() {
    piece* const b = some_block();
    if (!b)
      return;
    used const now(*b);
    int const t = some_line_of(device_of(b->home));
    on(device_of(b->home)).record_use(b->at + (b->bytes ? b->bytes / 2 : 0), line(t), source_location::current());
    order(b->ordered, t);
    look(*b, t, "on a stream it was marked for");
    b->readers.push_back(t);
    if (below(2)) {
      for (int r : b->readers)
        order(r, t);
      b->readers.clear();
      b->pattern = some_pattern();
      fill(*b, t);
      b->ordered = t;
    }
  }
  void use_elsewhere_once() {  // not marked: the free names the stream
    piece* const at = some_block();
    if (!at)
      return;
    auto const b = take_out(*at);
    int const t = some_line_of(device_of(b->home));
    order(b->ordered, t);
    look(*b, t, "on the stream its free names");
    free_used(*b, t);
  }
  void copy_block() {  // within a device or between two
    piece* const from = some_block();
    if (!from || from->bytes == 0)
      return;
    used const now(*from);
    int const s = some_line(), here_is = device_of(from->home), there = device_of(s);
    void* p = nullptr;
    try {
      p = on(there).allocate(line(s), from->bytes, 0, source_location::current());
    } catch (error const&) {
      ++ooms;
      return;
    }
    ++allocations;
    on(here_is).record_use(from->at, line(s), source_location::current());
    order(from->ordered, s);
    say("copy ", static_cast<void const*>(from->at), " to ", p, " on ", s);
    if (here_is == there)
      must(machine().copy(there, line(s).handle(), p, from->at, from->bytes), "copy");
    else
      must(machine().copy_peer(there, line(s).handle(), p, there, from->at, here_is, from->bytes), "copy_peer");
    from->readers.push_back(s);
    add(p, from->bytes, from->pattern, s);
  }
  void hand_over() {
    piece* const b = some_block();
    auto const borrowed = [&](int i) { return line(i).alive() == clock::life::borrowed; };
    if (!b || std::ranges::any_of(b->readers, borrowed))
      return;  // no call names those
    used const now(*b);
    clock::named_in_call const named(line(b->home));
    int const t = some_line_of(device_of(b->home));
    say("set_stream ", static_cast<void const*>(b->at), " from ", b->home, " to ", t);
    on(device_of(b->home)).set_stream(b->at, line(t), source_location::current());
    b->home = b->ordered = t;  // ordered after its home and all its marks
    b->readers.clear();
    look(*b, t, "on its new home stream");
  }
  void fence(clock::stream_clock& s) {
    clock::named_in_call const named(s);
    must(s.fence().is, "fence");
  }
  virtual void rare() { (void)on(below(devices_)).empty_cache(); }

  static constexpr int kinds = 20;  // of acts
  void act(int kind) {
    switch (kind) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: return allocate();
      case 6:
      case 7:
      case 8:
      case 9: return free_block();
      case 10:
      case 11:
      case 12: return use_elsewhere();
      case 13: return below(2) ? copy_block() : use_elsewhere_once();
      case 14: return hand_over();
      case 15: return order(some_line(), some_line());
      case 16: return fence(line(some_line()));
      case 17: return must(bench_->clocks().poll(line(some_line()).now()).is, "poll");
      case 18: return rare();
      default:
        return below(3) ? allocate() : must(bench_->clocks().synchronize(line(some_line()).now()), "synchronize");
    }
  }

  // Looks at all blocks and frees them. All memory must go back then.
  void end() {
    for (auto const& b : blocks_) {
      order(b->ordered, b->home);
      look(*b, b->home, "at the end");
    }
    for (auto* l : lines_)
      must(bench_->clocks().synchronize(l->now()), "synchronize");
    validate("with live blocks");
    while (!blocks_.empty()) {
      auto const b = take_out(*blocks_.back());
      on(device_of(b->home)).deallocate(b->at, nullptr, source_location::current());
    }
    if (before_end_)
      before_end_();
    for (int d = 0; d < devices_; ++d) {
      on(d).empty_cache();
      auto const s = on(d).statistics();
      if (s.reserved_bytes.all.current || s.pending_bytes.all.current || s.allocated_bytes.all.current) {
        fail(check::invariants,
             "after all was freed and complete, " + std::to_string(s.reserved_bytes.all.current) + " B stay reserved");
      }
    }
    validate("after all was freed");
  }
  void validate(char const* when) {
    for (int d = 0; d < devices_; ++d) {
      for (auto const& w : on(d).validate())
        fail(check::invariants, std::string(when) + ": " + w);
    }
    for (auto const& w : bench_->clocks().validate())
      fail(check::invariants, std::string(when) + ": " + w);
  }

  memory_bench* bench_ = nullptr;
  int devices_ = 1;
  std::size_t capacity_ = 0;
  bool small_ = false, maps_ = true, unkind_ = false, captured_ = false;
  bool kept_ = false;  // a refusal on an empty device is right, because pools or other threads keep some
  std::vector<clock::stream_clock*> lines_;
  std::vector<std::unique_ptr<piece>> blocks_;
  std::function<void()> before_end_;

 private:
  struct expected {
    memory_acts* in;
    unsigned char* at;
    std::size_t bytes;
    std::uint32_t pattern;
    char const* where;
  };
  void enqueue(piece const& b, int s, bool writes, char const* where, void (*run)(void*)) {
    driver::touch const t{reinterpret_cast<driver::address>(b.at), b.bytes, writes};
    must(machine().enqueue(device_of(s), line(s).handle(), {&t, 1},
                           {run, [](void* p) { delete static_cast<expected*>(p); },
                            new expected{this, b.at, b.bytes, b.pattern, where}}),
         "enqueue");
  }
};

}  // namespace weir::tests
