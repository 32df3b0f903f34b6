// The front backend: ranks that call a large broadcast, scatter or gather meet on the host. The last rank
// enqueues all copies, or passes the collective to the next backend.
// Threads: each rank by one thread at a time; abort by any. A rank waits here for its turn's other ranks.
//
// Invariant: while a meeting is full, no rank's thread leaves before the last rank has enqueued all copies.
#include <algorithm>
#include <map>

#include "peer/collective/copy_chains.h"
#include "peer/link/links.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"

namespace weir::peer {
namespace {

struct rendezvous {
  std::vector<rank_request> parts;
  int came = 0;
  bool over = false;
  bool carried = false;
  driver::status refused;
  std::string way;  // the path, as text
};

std::string size_text(std::size_t bytes) {
  return bytes >> 20 ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes) + " B";
}

class chained_backend final : public collective_backend {
 public:
  chained_backend(runtime::impl& r, std::vector<int> devices, std::unique_ptr<collective_backend> others,
                  char const* name, source_location at)
      : runtime_(r),
        chains_(r.part<chains>()),
        devices_(std::move(devices)),
        others_(std::move(others)),
        name_(name),
        said_(devices_.size()),
        met_(devices_.size()) {
    if (devices_.size() < 2 || !chains_.ever())
      return;
    // links are not tested while collectives are under way, which later may always be so
    r.part<links>().prove_all(devices_, at);
    lanes_ = chains_.lease(devices_, at);
  }

  void issue(int rank, clock::stream_clock& on, requests all, source_location at) override {
    // Reductions are never copied.
    if (std::none_of(all.begin(), all.end(), [](auto const& one) { return one.has_root(); }))
      return others_->issue(rank, on, all, at);
    auto& said = said_[static_cast<std::size_t>(rank)];
    if (std::string const why = why_not_copied(all); !why.empty()) {
      said = by_others(why);
      return others_->issue(rank, on, all, at);
    }
    collective_request const& r = all[0];
    // A rank that repeats a refused call has met the others for it already.
    auto& mine = met_[static_cast<std::size_t>(rank)];
    if (!mine || mine->parts[static_cast<std::size_t>(rank)].what.turn != r.turn)
      mine = meet(rank, {&on, r, on.captured().value}, at);
    auto const met = mine;
    if (!met)
      throw driver_error(0, std::string(name_of(r.what)), operands(rank, r) + ": the communicator was aborted",
                         "Create a new one with communicator::create_all", at, error_id{269});
    said = met->way;
    if (!met->carried)
      others_->issue(rank, on, all, at);
    mine = nullptr;
    if (!met->refused.ok())
      throw_refusal(met->refused, name_of(r.what), operands(rank, r) + ", by copies", "Repeat the call on all ranks",
                    at);
  }

  void register_memory(int rank, clock::stream_clock& on, collective_request const& r, bool multicast,
                       source_location at) override {
    others_->register_memory(rank, on, r, multicast, at);
  }
  bool prepare_registration(int rank, source_location at) override { return others_->prepare_registration(rank, at); }

  std::string broken(int rank) override {
    if (int const device = lost_.load(); device >= 0)
      return base::gpu_name(device) + " is lost";
    return others_->broken(rank);
  }
  void abort() noexcept override {
    shared_.lock()->aborted = true;
    changed_.notify_all();
    others_->abort();
  }
  void leave(int rank) noexcept override {
    if (left_.fetch_add(1) + 1 == static_cast<int>(devices_.size()) && lanes_)
      chains_.give_back(lanes_);
    others_->leave(rank);
  }
  std::string said(int rank) const override { return said_[static_cast<std::size_t>(rank)]; }

 private:
  struct shared {
    std::map<std::uint64_t, std::shared_ptr<rendezvous>> open;  // by turn
    bool aborted = false;
  };

  // Returns: empty if chains of copies carry the request
  std::string why_not_copied(requests all) const {
    // The other backend takes one launch for all members.
    if (all.size() > 1)
      return "members of a group are not copied";
    collective_request const& r = all[0];
    std::size_t const parts = r.what == collective::broadcast ? 1 : devices_.size();
    std::size_t const bytes = r.part_bytes() * parts, from = chains_.from(r.what, devices_.size());
    if (from == chains::never || !lanes_)
      return "chain copies are not enabled";
    if (bytes < from || bytes == 0)
      return size_text(bytes) + " are less than " + size_text(from);
    return {};
  }
  std::string by_others(std::string const& why) const { return std::string(name_) + ": " + why; }
  std::string operands(int rank, collective_request const& r) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(devices_.size()) + ", " + r.text() +
           " on gpu:" + std::to_string(devices_[static_cast<std::size_t>(rank)]);
  }

  // Blocks: until all ranks are here and the last has processed it. Returns: null if aborted before.
  std::shared_ptr<rendezvous const> meet(int rank, rank_request const& mine, source_location at) {
    std::shared_ptr<rendezvous> here_is;
    {
      auto s = shared_.lock();
      if (s->aborted)
        return nullptr;
      auto& open = s->open[mine.what.turn];
      if (!open) {  // if host memory runs out here, the next rank makes it
        auto made = std::make_shared<rendezvous>();
        made->parts.resize(devices_.size());
        open = std::move(made);
      }
      here_is = open;
      here_is->parts[static_cast<std::size_t>(rank)] = mine;
      if (++here_is->came < static_cast<int>(devices_.size())) {
        changed_.wait(s.lock(), [&] {
          return here_is->over || (s->aborted && here_is->came < static_cast<int>(devices_.size()));
        });
        return here_is->over ? here_is : nullptr;
      }
      s->open.erase(mine.what.turn);
    }
    see_to(*here_is, at);
    {
      auto s = shared_.lock();
      here_is->over = true;
    }
    changed_.notify_all();
    return here_is;
  }

  void see_to(rendezvous& m, source_location at) noexcept {
    auto const& what = m.parts.front().what;
    base::call_site const in(runtime_.observer(), name_of(what.what).data(), at);
    try {
      std::string const why = chains_.why_not(m.parts, at);
      m.way = why.empty() ? chains_.text_of(m.parts) : by_others(why);
      m.carried = why.empty();
    } catch (...) {}  // no host memory for the text
    if (!m.carried)
      return;
    m.refused = chains_.carry(*lanes_, m.parts, at);
    if (m.refused.what != driver::code::lost)
      return;
    auto const& clocks = runtime_.part<clock::clocks>();
    for (int const device : devices_)
      if (clocks.lost(device))
        lost_.store(device);
    if (lost_.load() < 0)
      lost_.store(devices_[0]);
  }

  runtime::impl& runtime_;
  chains& chains_;
  std::vector<int> const devices_;
  std::unique_ptr<collective_backend> const others_;
  char const* const name_;
  std::vector<std::string> said_;  // by rank, written by its thread
  // Likewise: the ranks have met and go on, and this one's part is still to come. It must not meet them again.
  std::vector<std::shared_ptr<rendezvous const>> met_;
  chains::lanes* lanes_ = nullptr;
  base::atomic<int> lost_{-1};
  base::atomic<int> left_{0};
  base::guarded<shared> shared_;
  base::condition changed_;
};

}  // namespace

std::unique_ptr<collective_backend> carried_in_chains(runtime::impl& owner, std::vector<int> const& devices,
                                                      std::unique_ptr<collective_backend> others, char const* name,
                                                      source_location at) {
  return std::make_unique<chained_backend>(owner, devices, std::move(others), name, at);
}

}  // namespace weir::peer
