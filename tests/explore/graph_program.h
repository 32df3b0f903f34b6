// Graphs with memory of their own, among host threads that allocate, free and capture too. Every launch has to see the
// bytes that the captured order makes, whatever was allocated since.
// Threads: those of a run; each enqueues work on its two streams alone.
#pragma once
#include <optional>

#include "runtime/memory/device/graph_hold.h"
#include "tests/explore/filled.h"
#include "tests/explore/policies.h"

namespace weir::tests {

class graphs_among_threads {
 public:
  explicit graphs_among_threads(trial& t)
      : t_(t),
        bench_(t.bench({.devices = 1, .memory = std::size_t{4} << (18 + t.draw(3))}, drawn_policies(t))),
        told_(t.coin()) {
    for (int i = 0; i < 6; ++i)
      lines_.push_back(&t.stream(0));
    t.among_threads(3, 8, [this](int n) { one_thread(*this, started_.fetch_add(1)).run(n == 3 ? 1 : n); });
    if (!t.failed())
      end();
  }

 private:
  struct block {
    unsigned char* at = nullptr;
    std::size_t bytes = 0;
    unsigned char value = 0;
    int home = 0;                // of the thread's two streams
    bool used_by_other = false;  // inside, and not joined since
  };
  class one_thread {
   public:
    one_thread(graphs_among_threads& of, std::size_t number)
        : of_(of), t_(of.t_), own_{of.lines_[2 * number], of.lines_[2 * number + 1]} {}

    void run(int steps) {
      for (int i = 0; i < steps && !t_.failed(); ++i) {
        switch (t_.draw(6)) {
          case 0:
          case 1: allocate_outside(); break;
          case 2: free_outside(); break;
          case 3: launch_one(); break;
          default: capture(); break;
        }
      }
      while (!graphs_.empty())
        drop(graphs_.back()), graphs_.pop_back();
      while (!blocks_.empty())
        free_outside();
    }

   private:
    struct captured_graph {
      driver::executable_handle ready{};
      std::vector<block> outputs{};
      memory::graph_holder memory{};  // null: weir does not hear of its launches
    };
    struct inside {
      std::vector<block> blocks{};
      bool forked = false, worked_there = false;
    };

    memory::allocator& memory() { return of_.bench_.on(0); }
    driver::driver& machine() { return of_.bench_.machine(); }
    clock::stream_clock& line(int i) { return *own_[static_cast<std::size_t>(i)]; }
    // Run at each launch, if it is captured.
    void write(int on, block const& b) { give_filled(t_, line(on), filled::now, b.at, b.bytes, b.value); }
    void look(int on, block const& b, char const* where) {
      give_filled(t_, line(on), filled::still, b.at, b.bytes, b.value,
                  std::string("a block in use was overwritten, seen ") + where);
    }
    std::optional<block> allocate(int on) {
      static constexpr std::size_t sizes[] = {64, 4000, 20'000, 65'536, 300'000};
      try {
        std::size_t const bytes = sizes[t_.draw(5)];
        void* const p = memory().allocate(line(on), bytes, 0, source_location::current());
        return block{static_cast<unsigned char*>(p), bytes, static_cast<unsigned char>(1 + t_.draw(200)), on, false};
      } catch (out_of_memory const&) {
        return std::nullopt;
      }
    }
    void free(block const& b, clock::stream_clock* last_use = nullptr) {
      memory().deallocate(b.at, last_use, source_location::current());
    }
    // False: it was refused, as a host function may ask no driver whether a graph uses the block.
    bool free_in_host_function(block const& b) {
      driver::inside_work const here;
      try {
        return free(b), true;
      } catch (driver_error const&) {
        return false;
      }
    }
    static block take(std::vector<block>& from, std::size_t i) {
      std::swap(from[i], from.back());
      block const b = from.back();
      from.pop_back();
      return b;
    }
    std::size_t some(std::vector<block> const& of) { return t_.draw(static_cast<std::uint32_t>(of.size())); }

    void allocate_outside() {
      auto const b = allocate(static_cast<int>(t_.draw(2)));
      if (!b)
        return;
      t_.say("takes ", b->bytes, " bytes");
      write(b->home, *b);
      blocks_.push_back(*b);
    }
    void free_outside() {
      if (blocks_.empty())
        return;
      block const b = take(blocks_, some(blocks_));
      look(b.home, b, "outside");
      if (!t_.coin(30))
        free(b);
      else if (!free_in_host_function(b))
        t_.fail("a free in a host function was refused as in a capture, and answered not permitted");
    }

    // Inside ------------------------------------------------------------------------------------------------
    void capture() {
      static constexpr driver::capture_mode modes[] = {driver::capture_mode::global, driver::capture_mode::this_thread,
                                                       driver::capture_mode::relaxed};
      // Blocks that the graph reads are written by work that is complete, so that a launch needs no order with it.
      for (clock::stream_clock* const s : own_)
        t_.must(of_.bench_.clocks().synchronize(s->now()), "synchronize");
      t_.must(machine().begin_capture(0, line(0).handle(), modes[t_.draw(3)]), "begin_capture");
      auto const begun = line(0).lane();
      t_.must(begun.is, "lane");
      if (t_.failed())
        return;
      auto& choices = of_.bench_.core.part<memory::graph_choices>();
      bool const shares = t_.coin();
      if (shares && !shared_)
        shared_ = std::make_shared<memory::graph_hold const>();
      captured_graph made;
      if (shares)
        made.memory = shared_;  // this thread's graphs run one after the other, on its first stream
      else if (of_.told_)
        made.memory = std::make_shared<memory::graph_hold const>();
      if (made.memory)
        choices.declare(begun.value->capture(), made.memory);
      t_.say("captures, with memory ", shares ? "that it shares" : "of its own");
      inside all;
      // a long one has free handles to move
      for (int n = 2 + static_cast<int>(t_.draw(t_.coin(30) ? 40 : 10)); n > 0 && !t_.failed(); --n)
        step_inside(all);
      if (all.worked_there)
        t_.must(line(0).join(line(1)), "join");
      bool const keeps_outputs = t_.coin();
      for (block const& b : all.blocks)
        keeps_outputs ? made.outputs.push_back(b) : free(b);
      auto const kept = machine().end_capture(0, line(0).handle());
      if (made.memory)
        choices.forget(begun.value->capture());
      t_.must(line(0).captured().is, "captured");  // so weir hears of the end
      if (!kept.ok())
        return t_.fail("a capture was spoiled");
      if (t_.coin(20)) {  // it is never launched
        t_.must(machine().destroy_graph(kept.value), "destroy_graph");
        for (block const& b : made.outputs)
          free(b);
        return;
      }
      auto const ready = machine().instantiate(0, kept.value);
      t_.must(ready.is, "instantiate");
      t_.must(machine().destroy_graph(kept.value), "destroy_graph");
      made.ready = ready.value;
      graphs_.push_back(std::move(made));
      if (t_.coin(70))
        launch(graphs_.back());
      if (graphs_.size() > 3)
        drop(graphs_.front()), graphs_.erase(graphs_.begin());
    }

    void step_inside(inside& all) {
      int const m = all.forked ? static_cast<int>(t_.draw(2)) : 0;
      switch (t_.draw(8)) {
        case 0:
        case 1:
          if (auto const b = allocate(m)) {
            t_.say("inside, ", m, " takes ", b->bytes, " bytes");
            write(m, *b);
            all.worked_there |= m == 1;
            all.blocks.push_back(*b);
          }
          return;
        case 2: return use_inside(all);
        case 3: return free_inside(all);
        case 4:  // fork, or join
          t_.say(all.forked ? "inside, they join" : "inside, a fork");
          t_.must(all.forked && t_.coin() ? line(0).join(line(1)) : line(1).join(line(0)), "join");
          all.forked = true;
          return;
        case 5: return free_one_from_before(all, m);
        case 6: (void)memory().empty_cache(); return;
        case 7:
          if (blocks_.empty())
            return;
          block const b = blocks_[some(blocks_)];  // its work is complete, and it outlives the graph's launches
          if (b.home != m)
            memory().record_use(b.at, line(m), source_location::current());
          look(m, b, "in a graph, from before");
          all.worked_there |= m == 1;
          read_by_graphs_.push_back(
              take(blocks_, static_cast<std::size_t>(&*std::ranges::find(blocks_, b.at, &block::at) - blocks_.data())));
          return;
      }
    }
    void use_inside(inside& all) {
      if (all.blocks.empty())
        return;
      block& b = all.blocks[some(all.blocks)];
      int const by = all.forked && t_.coin() ? 1 - b.home : b.home;
      if (by != b.home) {
        t_.must(line(by).join(line(b.home)), "join");
        memory().record_use(b.at, line(by), source_location::current());
        b.used_by_other = true;
      }
      all.worked_there |= by == 1;
      look(by, b, "in a graph");
    }
    void free_inside(inside& all) {
      if (all.blocks.empty())
        return;
      block const b = take(all.blocks, some(all.blocks));
      t_.say("inside, a free of ", b.bytes, " bytes", b.used_by_other ? ", used by the other stream" : "");
      free(b, !b.used_by_other && t_.coin() ? &line(b.home) : nullptr);
    }
    // The graph reads it at each launch: it stays as it is.
    void free_one_from_before(inside& all, int m) {
      if (blocks_.empty())
        return;
      block const b = take(blocks_, some(blocks_));
      if (b.home != m)
        return blocks_.push_back(b);
      t_.say("inside, the free of a block from before");
      look(m, b, "in a graph, freed inside");
      all.worked_there |= m == 1;
      if (!t_.coin(30) || !free_in_host_function(b))
        free(b);
    }

    // Launches ----------------------------------------------------------------------------------------------
    void launch(captured_graph const& g) {
      t_.say("launches");
      t_.must(machine().launch_graph(0, line(0).handle(), g.ready), "launch_graph");
      if (g.memory)
        g.memory->life()->note_launch(of_.bench_.clocks(), line(0).now());
      for (block const& b : g.outputs)
        look(0, b, "of a graph, after its launch");
    }
    void launch_one() {
      if (!graphs_.empty())
        launch(graphs_[t_.draw(static_cast<std::uint32_t>(graphs_.size()))]);
    }
    void drop(captured_graph const& g) {
      t_.say("drops a graph");
      t_.must(machine().destroy_executable(g.ready), "destroy_executable");
      for (block const& b : g.outputs)
        memory().deallocate(b.at, &line(0), source_location::current());
    }

   public:
    ~one_thread() {  // after all graphs
      for (block const& b : read_by_graphs_)
        memory().deallocate(b.at, &line(0), source_location::current());
    }

   private:
    graphs_among_threads& of_;
    trial& t_;
    std::array<clock::stream_clock*, 2> const own_;
    std::vector<block> blocks_, read_by_graphs_;
    std::vector<captured_graph> graphs_;
    memory::graph_holder shared_;
  };

  // Nothing is live or runs but one more graph, which is let go right after its launch: an allocation waits for it.
  void serve_after_the_last_launch() {
    auto& memory = bench_.on(0);
    auto& machine = bench_.machine();
    auto& choices = bench_.core.part<memory::graph_choices>();
    clock::stream_clock& s = *lines_[0];
    std::size_t const most = machine.memory(0).value.total;
    try {
      if (!machine.begin_capture(0, s.handle(), driver::capture_mode::relaxed).ok())
        return t_.fail("begin_capture");
      std::uint64_t const capture = s.lane().value->capture();
      auto its = std::make_shared<memory::graph_hold const>();
      choices.declare(capture, its);
      void* const inside = memory.allocate(s, most / 2, 0, source_location::current());
      driver::touch const all{reinterpret_cast<driver::address>(inside), most / 2, true};
      bool ok = machine.enqueue(0, s.handle(), {&all, 1}, {[](void*) {}, nullptr, nullptr}).ok();
      memory.deallocate(inside, nullptr, source_location::current());
      auto const kept = machine.end_capture(0, s.handle());
      choices.forget(capture);
      auto const ready = machine.instantiate(0, kept.value);
      ok = ok && ready.ok() && machine.destroy_graph(kept.value).ok() &&
           machine.launch_graph(0, s.handle(), ready.value).ok();
      its->life()->note_launch(bench_.clocks(), s.now());
      if (!ok || !machine.destroy_executable(ready.value).ok())
        return t_.fail("a graph was refused");
      its = nullptr;
      memory.deallocate(memory.allocate(*lines_[1], most * 3 / 4, 0, source_location::current()), nullptr,
                        source_location::current());
    } catch (out_of_memory const& e) {
      t_.fail("all graphs are over, and memory is refused: " + e.report().text());
    }
  }
  void end() {
    for (clock::stream_clock* const s : lines_)
      t_.must(bench_.clocks().synchronize(s->now()), "synchronize");
    if (told_)
      serve_after_the_last_launch();
    t_.expect_empty(bench_.on(0), "after all graphs were gone");
    t_.expect_none(bench_.on(0).validate());
    t_.expect_none(bench_.clocks().validate());
  }

  trial& t_;
  memory_bench& bench_;
  std::vector<clock::stream_clock*> lines_;
  bool const told_;  // weir hears of all launches, as of those of weir::graph
  base::atomic<std::size_t> started_{0};
};

}  // namespace weir::tests
