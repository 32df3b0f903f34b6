// The order inside a graph that the program made: its edges, and nothing else.
// Threads: as race_judge.h says.
#include "simulator/checker/race_judge.h"

namespace weir::driver::check {
namespace {

// Which nodes come after which. Edges name nodes by their index.
class node_order {
 public:
  explicit node_order(std::span<seen_calls::node const> nodes) : words_((nodes.size() + 63) / 64) {
    std::size_t const n = nodes.size();
    before_.resize(n * words_);
    std::vector<std::uint32_t> missing(n);
    std::vector<std::vector<std::uint32_t>> next(n);
    std::vector<std::uint32_t> ready;
    for (std::uint32_t i = 0; i < n; ++i) {
      for (std::uint32_t const first : nodes[i].after) {
        if (first >= n)
          continue;
        next[first].push_back(i);
        ++missing[i];
      }
      if (missing[i] == 0)
        ready.push_back(i);
    }
    while (!ready.empty()) {
      std::uint32_t const first = ready.back();
      ready.pop_back();
      for (std::uint32_t const later : next[first]) {
        follows(later, first);
        if (--missing[later] == 0)
          ready.push_back(later);
      }
    }
  }
  bool orders(std::size_t a, std::size_t b) const noexcept { return a == b || is_before(a, b) || is_before(b, a); }

 private:
  bool is_before(std::size_t first, std::size_t later) const noexcept {
    return before_[later * words_ + first / 64] >> first % 64 & 1;
  }
  void follows(std::size_t later, std::size_t first) noexcept {
    for (std::size_t w = 0; w < words_; ++w)
      before_[later * words_ + w] |= before_[first * words_ + w];
    before_[later * words_ + first / 64] |= std::uint64_t{1} << first % 64;
  }
  std::size_t const words_;
  std::vector<std::uint64_t> before_;  // a row of bits for each node
};

// No shadow judges exact uses inside a graph.
verdict verdict_inside(block_use const& a, block_use const& b) noexcept {
  bool const both_exact = a.known == grain::exact && b.known == grain::exact;
  if (both_exact && a.meets(b.from, b.to) && (a.writes() || b.writes()))
    return verdict::certain;
  return verdict_on(a, b);
}

}  // namespace

void knowledge::judge_nodes(std::span<seen_calls::node const> nodes, base::site made) {
  constexpr std::size_t most = 8192;  // 8 MiB of order
  if (nodes.size() > most) {
    ++not_understood["graphs of more than 8192 nodes, of which each is one use"];
    return;
  }
  std::map<address, std::vector<block_use>> by_block;  // epoch::n: the node
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    seen_calls::node const& node = nodes[i];
    kernel_names::launch const& what = kernels.of(node.kernel, quiet);
    for (reach const& r : reached_by(node.pointers))
      by_block[r.b->first].push_back({r.from,
                                      r.to,
                                      {0, i},
                                      {what.in_words.c_str(), {}},
                                      r.writes ? action::writes : action::reads,
                                      r.known,
                                      what.quiet,
                                      r.may_read_alone,
                                      r.may_be_end});
    for (touch const& t : node.bytes)
      for (auto b = blocks.find(t.at, t.bytes); b != blocks.end() && b->first < t.at + t.bytes; ++b)
        by_block[b->first].push_back({std::max(t.at, b->first) - b->first,
                                      std::min(t.at + t.bytes, b->first + b->second.bytes) - b->first,
                                      {0, i},
                                      {"CUDA copy or fill", {}},
                                      t.writes ? action::writes : action::reads});
  }
  node_order const inside(nodes);
  for (auto const& [at, all] : by_block)
    for (std::size_t k = 1; k < all.size(); ++k)
      for (std::size_t i = 0; i < k; ++i)
        if (verdict const how = verdict_inside(all[i], all[k]);
            how != verdict::none && !inside.orders(all[i].at.n, all[k].at.n))
          report_nodes(blocks.find(at, 1), all[i], all[k], how, made);
}

}  // namespace weir::driver::check
