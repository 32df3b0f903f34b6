// Small blocks are written on one stream, read on one or more others by any thread, and freed in groups with that
// stream named, or marked for all of them. Meanwhile threads end, caches are drained, and memory is short.
// Threads: those of a run.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/memory/heap/fast_path.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class handed_over_among_threads {
 public:
  explicit handed_over_among_threads(trial& t)
      : t_(t), bench_(t.bench({.devices = 1, .memory = std::size_t{256} << (10 + t.draw(3))})) {
    for (auto*& l : lines_)
      l = &t.stream(0);
    t.among_threads(8, 16, [this](int n) {
      for (int k = 0; k < n && !t_.failed(); ++k)
        step();
    });
    if (!t.failed())
      end();
  }

  inline static std::uint64_t gathered = 0, alone = 0;  // frees of all runs so far, without and with the lock

 private:
  struct block {
    unsigned char* at;
    std::size_t bytes;
    unsigned char value;
    int home;
  };
  struct read_by_two {
    explicit read_by_two(block const& of) : b(of) {}
    block b;
    int next = 2, done = 0;  // the stream that reads it next; number of marks
  };
  memory::allocator& device() { return bench_.on(0); }
  clock::stream_clock& line(int i) { return *lines_[static_cast<std::size_t>(i)]; }
  int some_line() { return static_cast<int>(t_.draw(4)); }

  void read(block const& b, clock::stream_clock& on) {
    give_filled(t_, on, filled::still, b.at, b.bytes, b.value,
                "a block that another stream still read was overwritten");
  }
  void mark(block const& b, clock::stream_clock& user) {
    if (memory::fast_record_use(&user, b.at))
      return;
    device().record_use(b.at, user, source_location::current());
    memory::remember_user(user);
  }
  void make_some() {
    static constexpr std::size_t sizes[] = {9000, 20'000};  // a run has seven or three slots: many calls miss
    int const s = t_.draw(4) == 3;
    std::size_t const bytes = sizes[t_.draw(2)];
    for (std::uint32_t n = 1 + t_.draw(8); n > 0; --n) {
      void* p = memory::fast_allocate(&line(s), bytes, 0);
      try {
        if (!p)
          p = device().allocate(line(s), bytes, 0, source_location::current());
      } catch (out_of_memory const&) {
        return;
      }
      block const b{static_cast<unsigned char*>(p), bytes, static_cast<unsigned char>(1 + t_.draw(200)), s};
      t_.must(bench_.machine().fill(0, line(s).handle(), b.at, b.value, 1, b.bytes), "fill");
      blocks_.lock()->push_back(b);
    }
  }
  void use_some() {
    read_for_two();
    clock::stream_clock& user = line(t_.draw(8) == 7 ? 0 : 2 + static_cast<int>(t_.draw(2)));
    std::vector<block> mine;
    {
      auto all = blocks_.lock();
      std::size_t const n = std::min<std::size_t>(all->size(), 1 + t_.draw(12));
      mine.assign(all->end() - static_cast<std::ptrdiff_t>(n), all->end());
      all->resize(all->size() - n);
    }
    // those that are marked are read on these
    std::vector<clock::stream_clock*> users{&user};
    if (t_.draw(3) == 0) {
      for (int other : {2, 3}) {
        if (&line(other) != &user)
          users.insert(users.begin(), &line(other));
      }
    }
    for (clock::stream_clock* const one : users) {
      for (int home : {0, 1})
        t_.must(one->wait(line(home).now()), "wait");
      // so that it lags
      for (std::uint32_t n = t_.draw(24); n > 0; --n)
        t_.must(bench_.machine().enqueue(0, one->handle(), {}, {[](void*) {}, nullptr, nullptr}), "enqueue");
    }
    for (block const& b : mine) {
      if (b.value % 6 == 3) {
        for_two_.lock()->push_back(std::make_shared<read_by_two>(b));
        continue;
      }
      if (b.value % 3) {
        read(b, user);
        give_back(b, &user);
        continue;
      }
      for (clock::stream_clock* const one : users) {
        read(b, *one);
        mark(b, *one);
      }
      give_back(b, nullptr);
    }
  }
  void give_back(block const& b, clock::stream_clock* named) {
    bool const quick =
        named ? memory::fast_deallocate_used(named, b.at) : memory::fast_deallocate_marked(nullptr, b.at);
    ++(quick ? gathered : alone);
    if (!quick)
      device().deallocate(b.at, named, source_location::current());
  }
  // Two threads may mark one block at once, each for its stream. The last one frees it.
  void read_for_two() {
    std::shared_ptr<read_by_two> it;
    int reader = 0;
    {
      auto all = for_two_.lock();
      auto const open = std::find_if(all->begin(), all->end(), [](auto const& one) { return one->next < 4; });
      if (open == all->end())
        return;
      it = *open, reader = it->next++;
    }
    clock::stream_clock& user = line(reader);
    t_.must(user.wait(line(it->b.home).now()), "wait");
    read(it->b, user);
    mark(it->b, user);
    {
      auto all = for_two_.lock();
      if (++it->done < 2)
        return;
      std::erase(*all, it);
    }
    give_back(it->b, nullptr);
  }
  void step() {
    switch (t_.draw(8)) {
      case 0:
      case 1:
      case 2: return make_some();
      case 3:
      case 4:
      case 5: return use_some();
      case 6: return t_.must(bench_.clocks().poll(line(some_line()).now()).is, "poll");
      default: rare();
    }
  }
  void rare() {
    switch (t_.draw(4)) {
      case 0: return t_.must(line(some_line()).fence().is, "fence");
      case 1: return t_.must(line(some_line()).wait(line(some_line()).now()), "wait");
      case 2: return void(device().empty_cache());
      default:
        // byte totals are inconsistent while other threads are in a call
        for (std::string const& what : device().validate()) {
          if (what.find("slot") != std::string::npos)
            t_.fail(what);
        }
    }
  }
  void end() {
    while (!t_.failed() && !(blocks_.lock()->empty() && for_two_.lock()->empty()))
      use_some();
    for (auto* l : lines_)
      t_.must(bench_.clocks().synchronize(l->now()), "synchronize");
    t_.expect_none(device().validate());
    t_.expect_empty(device(), "after all was given back and complete");
    t_.expect_none(device().validate());
  }

  trial& t_;
  memory_bench& bench_;
  clock::stream_clock* lines_[4];  // two home streams, two users
  base::guarded<std::vector<block>> blocks_;
  base::guarded<std::vector<std::shared_ptr<read_by_two>>> for_two_;
};

}  // namespace weir::tests
