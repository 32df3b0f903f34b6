// The checker's judgement: one lock around order, memory, blocks and what was found.
// Threads: any. Under its lock it calls only the machine's shields. listen() blocks until no other thread runs the
// old listener.
#pragma once

#include <memory>
#include <set>

#include "runtime/base/sync.h"
#include "runtime/driver/allocation_observer.h"
#include "simulator/checker/blocks.h"
#include "simulator/checker/captures.h"
#include "simulator/checker/kernel_names.h"
#include "simulator/checker/mappings.h"
#include "simulator/checker/pairs.h"
#include "simulator/checker/race_checker.h"
#include "simulator/checker/sources.h"
#include "simulator/checker/suppressions.h"
#include "simulator/machine/machine.h"

namespace weir::driver::check {

// The state under the checker's lock.
struct knowledge {
  graph order;
  places memory;
  check::blocks blocks;
  captures captured;
  sources reading;             // of copies not known to be complete
  struct shielded {            // pinned bytes whose pages the machine protects from the host
    std::uint64_t number = 0;  // the machine's
    access_ref use;
  };
  std::vector<shielded> shields;
  sim::controls* machine = nullptr;           // null: not simulated
  std::map<stream_id, epoch> host_functions;  // the last one of each stream
  std::vector<finding> found;
  std::map<std::string, std::size_t> by_sites;  // index in found
  struct pairs_alike {                          // of kernels, which one possible race speaks of
    std::set<std::pair<char const*, char const*>> seen;
    std::string examples;
  };
  std::map<std::size_t, pairs_alike> alike;  // by index in found
  std::vector<finding> to_tell;
  std::shared_ptr<std::function<void(finding const&)> const> listener;  // each thread that runs it has a copy
  test_control::late_waits over;
  bool taken = false;                              // findings() was called
  std::size_t added = 0, sweep_at = 4096;          // accesses since the last sweep
  std::uint64_t uses = 0;                          // of memory, that work declared
  std::set<std::uint64_t> handed_out, of_program;  // lives of streams on which CUDA may get work without weir
  std::set<event_handle> events_handed_out;
  bool open_to_host = false;    // work used pinned memory that the machine did not guard
  bool closed_to_host = false;  // the machine closed pages
  unjudged unseen() const;
  void forget_unseen();  // it was said

  // Of calls past weir, told by a watcher.
  bool watched = false;  // by one, from now on
  suppressions quiet;
  kernel_names kernels;
  std::map<std::uintptr_t, event_handle> events_by_cuda;  // weir's events that the program got
  std::map<std::uintptr_t, executable> graphs_of_program;
  pairs told_pairs;
  std::map<std::string, std::uint64_t> not_understood;
  std::uint64_t suppressed = 0, forgotten = 0, unknown_pointers = 0;

  // of: the graph whose launch it is; null: no launch
  epoch used(stream_id, moment const& before, std::span<range const>, base::site, trust,
             captured_graph const* of = nullptr);
  // For a stream under capture: the use happens at launch. Returns: false if the stream is not captured.
  bool keep_for_graph(stream_id, std::span<range const>, base::site);
  epoch launched(executable&, moment before, base::site);
  // Inside a capture the block is memory of its graph, and the order inside counts.
  void allocated_inside(recording&, stream_id home, blocks::map::iterator, base::site);
  bool freed_inside(blocks::map::iterator, std::span<stream_id const> behind, base::site);
  void allocated(stream_id home, int device, address, std::size_t bytes, source_location);
  void freed(address, std::size_t bytes, std::span<stream_id const> behind, source_location);
  void handed_over(stream_id to, address, std::size_t bytes, source_location);
  void wait_inserted(stream_id waiter, stream_id other, address, std::size_t bytes);
  void unmapped(places::region const&, address, base::site);
  void copies_from(epoch copy, moment const& before, address, std::size_t bytes, base::site);
  void host_function(epoch);
  // A host use in that call. Returns: the work it should have waited for; each is reported.
  std::vector<access_ref> host_uses(address, std::size_t bytes, host_use, base::site);
  std::uint64_t hash_behind_shields(address, std::size_t bytes);  // of pinned bytes
  void look_at_sources();                                         // after new completion
  void drop_sources(address, std::size_t bytes);                  // memory goes: forget its incomplete copies
  void stuck(std::string circle, base::site);
  void relied_on(stream_id waiter, stream_id other);  // waiter 0: the host
  void stream_ended(stream_id);                       // 0: nothing
  void sweep();

  struct reach {  // the bytes of one block that a launch may use by one pointer
    blocks::map::iterator b;
    std::size_t from = 0, to = 0;
    bool writes = false;
    grain known = grain::pointer;
    bool may_read_alone = false;
    bool may_be_end = false;
  };
  using reaches = boost::container::small_vector<reach, 8>;
  reaches reached_by(std::span<seen_pointer const>);
  void judge_nodes(std::span<seen_calls::node const>, base::site made);  // of one graph: against each other
  // What one launch past weir was given. of: the graph that it is a part of; null: none
  void given(epoch now, views const& seen, std::span<seen_pointer const>, base::site, bool quiet,
             captured_graph const* of = nullptr);
  // A use of a block beside those that launches past weir may make of it.
  void meets(blocks::map::iterator, block_use, views const& seen, trust);
  bool is_gone(block_use const&) const;  // before all that comes
  void exact_use_meets(address at, std::size_t bytes, block_use, views const& seen, trust);
  // Launches that were given the block, and that is_past(epoch) does not put before its free. Those of its streams are
  // added to `next`, which the next owner comes after.
  void freed_beside(blocks::map::iterator, std::span<stream_id const> behind, std::function<bool(epoch)> const& is_past,
                    access* next);
  void host_uses_beside(address at, std::size_t bytes, host_use, base::site);
  void unmapped_beside(address at, std::size_t bytes, base::site);
  void allocated_by_program(stream_id on, int device, address at, std::size_t bytes, base::site);
  void freed_by_program(stream_id on, address at, base::site);
  void closed_by_program(address at, base::site);
  void hidden(address at, std::size_t bytes);
  void saw_device_done(int device);  // -1: all
  void report_clash(blocks::map::iterator, block_use const& before, block_use const& now, verdict);
  void report_nodes(blocks::map::iterator, block_use const&, block_use const&, verdict, base::site made);
  void report_clash_with_host(blocks::map::iterator, block_use const&, block_use const& host, verdict);

  std::size_t report_race(access const& before, access const& now, address from, std::size_t bytes,
                          finding::kind what = finding::kind::race);
  void report_use_after_free(access const& now, blocks::map::iterator);
  void report_freed_in_use(access const& before, std::span<stream_id const> behind, blocks::map::iterator);
  void report_handed_out_early(access const& before, blocks::map::iterator, std::optional<block> const& held);
  void report_unmapped(access const& before, base::site, address, std::size_t bytes);
  void report_changed(source const&);
  void report_early_host(access const& before, std::string user, std::string where, source_location second,
                         std::string key, address, std::size_t bytes, char const* how,
                         finding::kind what = finding::kind::early_host);
  void report_undeclared(base::running_work const&, char const* how, address);
  // streams: those that the text names
  // Returns: its index in `found`
  std::size_t note(finding::kind, std::string key, std::string text, source_location first, source_location second,
                   std::initializer_list<stream_id> streams = {});
  std::string key_of_use(access const&, finding::kind = finding::kind::race) const;
  void note_pair(std::size_t index, base::site const&, base::site const&);
  std::vector<finding> in_words() const;  // with the pairs of kernels that are like each
  std::string stream(stream_id) const;
  std::string bytes_of(address, std::size_t);  // "bytes 0-63 of block 2 of gpu:0 (256 B, allocated at a.cpp:3)"
  std::string block_text(blocks::map::iterator) const;
  block const* managed_at(address);  // null: the program alone uses the block there
  std::string remedy(access const& before, access const& now, address from);
};

access access_of(address block, block_use const&);

// The text of a place in a program, and a key that identifies it.
std::string text_of(base::site const&);
std::string text_of(source_location const&);
std::string key_of_call(base::site const&);

class race_judge {
 public:
  class locked {
   public:
    explicit locked(race_judge& c) : of_(c), hold_(c.lock_) {}
    locked(race_judge& c, base::unique_lock&& held) : of_(c), hold_(std::move(held)) {}
    ~locked();  // calls the listener after it releases the lock
    knowledge* operator->() const noexcept { return &of_.all_; }
    knowledge& operator*() const noexcept { return of_.all_; }

   private:
    race_judge& of_;
    base::unique_lock hold_;
  };
  locked lock() { return locked(*this); }
  // A thread that runs a listener waits for none. Empty: none listens from then on
  void listen(std::function<void(finding const&)>);
  std::optional<locked> try_lock() {
    base::unique_lock held(lock_, std::try_to_lock);
    if (!held.owns_lock())
      return std::nullopt;
    return std::optional<locked>(std::in_place, *this, std::move(held));
  }

 private:
  base::mutex lock_;
  base::condition told_;  // a thread has run a listener
  knowledge all_;
};

}  // namespace weir::driver::check
