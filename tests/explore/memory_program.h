// Threads allocate, write, mark, hand over, copy and free blocks. Stream work checks every byte.
// Threads: those of a run.
#pragma once
#include <cstring>
#include <optional>

#include "runtime/memory/heap/fast_path.h"
#include "tests/explore/explore.h"
#include "tests/explore/policies.h"

namespace weir::tests {

class memory_among_threads {
 public:
  explicit memory_among_threads(trial& t) : t_(t), bench_(start(t)) {
    for (int i = 0, n = 2 + static_cast<int>(t.draw(3)); i < n; ++i)
      lines_.push_back(&t.stream(i % devices()));
    t.among_threads(3, 10, [this](int n) {
      for (int k = 0; k < n && !t_.failed(); ++k)
        step();
    });
    if (!t.failed())
      end();
  }

 private:
  struct block {
    unsigned char* at;
    std::size_t bytes;
    unsigned char value;
    int home, written_on;      // streams
    std::vector<int> readers;  // streams that may still read it, ordered after the write
  };
  static memory_bench& start(trial& t) {
    std::size_t const capacity = std::size_t{4} << (16 + t.draw(3));  // four pages or more
    int const devices = 1 + static_cast<int>(t.draw(2));
    return t.bench({.devices = devices, .memory = capacity}, drawn_policies(t));
  }
  int devices() { return bench_.core.device_count(); }
  clock::stream_clock& line(int i) { return *lines_[static_cast<std::size_t>(i)]; }
  int device_of(int i) { return line(i).device(); }
  memory::allocator& on(int device) { return bench_.on(device); }
  int some_line() { return static_cast<int>(t_.draw(static_cast<std::uint32_t>(lines_.size()))); }
  void must(driver::status s, char const* what) {
    if (!s.ok())
      t_.fail(std::string(what) + " answered " + std::string(driver::name_of(s.what)));
  }

  struct look {
    trial* t;
    unsigned char const* at;
    std::size_t bytes;
    unsigned char value;
    char const* where;
  };
  void write(block const& b, int s) {
    must(bench_.machine().fill(device_of(s), line(s).handle(), b.at, b.value, 1, b.bytes), "fill");
  }
  void read(block const& b, int s, char const* where) {
    driver::touch const all{reinterpret_cast<driver::address>(b.at), b.bytes, false};
    must(bench_.machine().enqueue(
             device_of(s), line(s).handle(), {&all, 1},
             {[](void* p) {
                auto const& l = *static_cast<look*>(p);
                if (l.at[0] != l.value || std::memcmp(l.at, l.at + 1, l.bytes - 1) != 0)
                  l.t->fail(std::string("a block in use was overwritten, seen ") + l.where);
              },
              [](void* p) { delete static_cast<look*>(p); }, new look{&t_, b.at, b.bytes, b.value, where}}),
         "enqueue");
  }
  void order(int before, int after) {
    if (before != after)
      must(line(after).wait(line(before).now()), "wait");
  }

  // A block that no other thread has. The caller may put it back.
  std::optional<block> take() {
    auto all = blocks_.lock();
    if (all->empty())
      return std::nullopt;
    std::swap((*all)[t_.draw(static_cast<std::uint32_t>(all->size()))], all->back());
    block b = std::move(all->back());
    all->pop_back();
    return b;
  }
  void give(block b) { blocks_.lock()->push_back(std::move(b)); }

  std::optional<block> allocate(int s, std::size_t bytes) {
    try {
      auto* const p =
          static_cast<unsigned char*>(on(device_of(s)).allocate(line(s), bytes, 0, source_location::current()));
      return block{p, bytes, static_cast<unsigned char>(1 + t_.draw(200)), s, s, {}};
    } catch (out_of_memory const&) {
      return std::nullopt;
    }
  }

  void step() {
    switch (t_.draw(8)) {
      case 0:
      case 1:
      case 2: {
        static constexpr std::size_t sizes[] = {64, 512, 4000, 20'000, 65'536, 100'000};
        int const s = some_line();
        if (auto b = allocate(s, sizes[t_.draw(6)])) {
          t_.say("took ", b->bytes, " bytes on ", s);
          write(*b, s);
          give(std::move(*b));
        }
        break;
      }
      case 3:
      case 4: {
        if (auto b = take()) {
          t_.say("frees a block of ", b->home, " written on ", b->written_on);
          if (t_.coin()) {
            order(b->written_on, b->home);
            read(*b, b->home, "before its free");
          }
          clock::stream_clock* const user = b->written_on != b->home && t_.coin() ? &line(b->written_on) : nullptr;
          if (!user || !memory::fast_deallocate_used(user, b->at))
            on(device_of(b->home)).deallocate(b->at, user, source_location::current());
        }
        break;
      }
      case 5:
      case 6: {
        if (auto b = take()) {
          int const s = some_line();
          if (device_of(s) == device_of(b->home)) {
            t_.say("uses a block of ", b->home, " on ", s);
            on(device_of(s)).record_use(b->at, line(s), source_location::current());
            order(b->written_on, s);
            read(*b, s, "on a stream it was marked for");
            b->readers.push_back(s);
            if (t_.coin()) {
              for (int r : b->readers)
                order(r, s);
              b->readers.clear();
              b->value = static_cast<unsigned char>(1 + t_.draw(200));
              write(*b, s);
              b->written_on = s;
            }
          }
          give(std::move(*b));
        }
        break;
      }
      case 7: rare(); break;
    }
  }

  void rare() {
    int const s = some_line();
    switch (t_.draw(5)) {
      case 0: return must(line(s).fence().is, "fence");
      case 1: return must(bench_.clocks().poll(line(s).now()).is, "poll");
      case 2: return must(bench_.clocks().synchronize(line(s).now()), "synchronize");
      case 3: return void(on(device_of(s)).empty_cache());
      case 4: copy(s);
    }
  }

  void copy(int s) {
    auto from = take();
    if (!from)
      return;
    if (auto to = allocate(s, from->bytes)) {
      int const here_is = device_of(from->home), there = device_of(s);
      t_.say("copies a block of ", from->home, " to ", s);
      on(here_is).record_use(from->at, line(s), source_location::current());
      order(from->written_on, s);
      must(bench_.machine().copy_peer(there, line(s).handle(), to->at, there, from->at, here_is, from->bytes),
           "copy_peer");
      to->value = from->value;
      from->readers.push_back(s);
      give(std::move(*to));
    }
    give(std::move(*from));
  }

  void end() {
    auto& all = *blocks_.lock();  // all other threads have ended
    for (auto const& b : all) {
      order(b.written_on, b.home);
      read(b, b.home, "at the end");
    }
    for (auto* l : lines_)
      must(bench_.clocks().synchronize(l->now()), "synchronize");
    check("with live blocks");
    for (auto const& b : all)
      on(device_of(b.home)).deallocate(b.at, nullptr, source_location::current());
    for (int d = 0; d < devices(); ++d) {
      on(d).empty_cache();
      auto const s = on(d).statistics();
      if (s.reserved_bytes.all.current || s.pending_bytes.all.current || s.allocated_bytes.all.current) {
        t_.fail("after all was freed and complete, " + std::to_string(s.reserved_bytes.all.current) +
                " B stay reserved");
      }
    }
    check("after all was freed");
  }
  void check(char const* when) {
    for (int d = 0; d < devices(); ++d) {
      for (auto const& w : on(d).validate())
        t_.fail(std::string(when) + ": " + w);
    }
    for (auto const& w : bench_.clocks().validate())
      t_.fail(std::string(when) + ": " + w);
  }

  trial& t_;
  memory_bench& bench_;
  std::vector<clock::stream_clock*> lines_;
  base::guarded<std::vector<block>> blocks_;
};

}  // namespace weir::tests
