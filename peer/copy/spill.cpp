// weir/pool.h: a spill, and the neighbours whose links are proven.
// Threads: any.
#include "peer/link/links.h"
#include "streams/api/spills.h"

namespace weir {

struct WEIR_LOCAL spill::state {
  known_runtime of;
  std::vector<memory::memory_pool const*> pools;
};

spill::spill(std::vector<pool*> const& pools, spill_options o, source_location at) : state_(new state) {
  runtime::impl& r = streams::current_runtime(at);
  state_->of = known_runtime(r);
  auto& links = r.part<peer::links>();
  std::vector<streams::spills::member> all;
  for (pool* const p : pools) {
    streams::spills::member& m = all.emplace_back(&p->usable("spill", at), at);
    state_->pools.push_back(m.its->here);
    int const own = m.its->on.index();
    for (weir::device const d : o.neighbours) {
      int const neighbour = streams::resolve(d, r, "spill", at);
      auto const reaches = [&](int from, int to) {
        return links.prove(from, to, at) == peer::links::link_state::proven;
      };
      // A neighbour without a proven link in each direction is left out.
      if (neighbour != own && reaches(own, neighbour) && reaches(neighbour, own))
        m.neighbours.push_back(neighbour);
    }
  }
  r.part<streams::spills>().add(all, at);
}

spill::~spill() {
  runtime::impl* const r = process_was_forked() ? nullptr : state_->of.if_alive();
  auto* const all = r ? r->part_if_made<streams::spills>() : nullptr;
  if (all)
    all->remove(state_->pools);
}

}  // namespace weir
