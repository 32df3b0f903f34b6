// The items of a training: parameters of buckets, and the state of their optimizer.
// Threads: any.
#include "weir/checkpoint.h"

namespace weir {
namespace {

// This rank's part of item i's state, which lies as the parameter does.
checkpoint_item part_of_state(gradient_buckets const& g, state_part const& p, source_location at) {
  std::vector<std::int64_t> counts;
  for (gradient_buckets::part const& of_rank : g.parts(p.item, at))
    counts.push_back(of_rank.count);
  checkpoint_item item = checkpoint_item::part(p.name, p.data, g.extents(p.item, at), 0, std::move(counts));
  item.first = g.own(p.item, at).first;
  return item;
}

}  // namespace

std::vector<checkpoint_item> training_items(gradient_buckets const& g, optimizer const& by, source_location at) {
  std::vector<checkpoint_item> all;
  (void)g.parameter(0, at);  // throws before build()
  for (int i = 0; i < g.size(); ++i)
    if (device_span const parameter = g.parameter(i, at); parameter.data)
      all.emplace_back(g.name(i, at), parameter, g.extents(i, at));
  for (state_part const& p : by.state()) {
    if (p.item >= 0 && p.item < g.size() && g.is_sharded())
      all.push_back(part_of_state(g, p, at));
    else
      all.emplace_back(p.name, p.data, p.item >= 0 && p.item < g.size() ? g.extents(p.item, at) : shape{p.data.count});
  }
  return all;
}

}  // namespace weir
