// Topic 2: memory taken by a block of a few floats, and the room left on a device full of such blocks.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "examples/seeds/topics.h"
#include "examples/seeds/write_through.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/memory.h"

namespace seeds {
namespace {

bool is_refused(std::size_t bytes) {
  try {
    weir::buffer const whole(bytes);
    return false;
  } catch (weir::out_of_memory const&) {
    return true;
  }
}

// Returns: `count` buffers. Their handles take 16 B each of process memory, as the articles' list does.
std::vector<weir::buffer> many(std::size_t count, std::size_t bytes) {
  std::vector<weir::buffer> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    all.emplace_back(bytes);
  return all;
}

// The article's many blocks of one float, allocated by the raw calls. One kernel writes them and another
// checks them. Simulated devices get fewer, because each block is host memory.
void half_a_billion(settings const& with, table& t) {
  std::size_t const count = 541'000'000 / (with.on_gpus ? 1 : 64 * with.touched_part), parts = 4096;
  // The race checker requires declared uses, and these blocks are too many to declare.
  if (std::getenv("WEIR_CHECK_RACES"))
    return;
  if (with.on_gpus && weir::mem_get_info().free < 30 * count) {
    with.out << "  (a device with 16 GB free takes 541 million blocks)\n";
    return;
  }
  machine const on(with, {.devices = 1, .memory = std::max<std::size_t>(64_MiB, count * 30)}, {});
  std::string const name =
      (count >= 1'000'000 ? std::to_string(count / 1'000'000) + " M" : std::to_string(count)) + " x 1 float";
  using clock = std::chrono::steady_clock;
  auto const ns_each = [count](clock::time_point from) {
    return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - from).count() /
                          static_cast<long>(count)) +
           " ns";
  };
  {
    std::vector<std::uint32_t*> blocks(count);
    auto const began = clock::now();
    for (auto& b : blocks)
      b = static_cast<std::uint32_t*>(weir::allocate(sizeof(float)));
    std::string const taken = ns_each(began);
    auto const bytes = static_cast<std::int64_t>(16 * count);
    t.row(name + ", raw", {exactly(bytes), held_for(bytes)},
          "512 B each: " + in_words(static_cast<std::int64_t>(512 * count)));
    weir::buffer const addresses(count * sizeof blocks[0]), wrong(parts * sizeof(std::uint32_t));
    weir::copy(addresses.data(), blocks.data(), addresses.size());
    auto* const all = addresses.data<std::uint32_t*>();
    write_through(all, count);
    count_wrong(all, count, wrong.data<std::uint32_t>(), parts);
    std::vector<std::uint32_t> found(parts);
    weir::copy(found.data(), wrong.data(), wrong.size());
    t.holds(std::accumulate(found.begin(), found.end(), std::uint64_t{0}) == 0,
            "one kernel wrote through each of them, another found every number where it was written");
    auto const freed = clock::now();
    for (auto* b : blocks)
      weir::deallocate(b);
    t.holds(true, "an allocation took " + taken + ", a free " + ns_each(freed));
  }
  weir::empty_cache();
  t.row("freed, empty_cache", {exactly(0), between(0, 16 << 20)}, "");
}

}  // namespace

int small_blocks(settings const& with) {
  // A device with room for 4 GiB but not for 5, as in the article.
  std::size_t const part = with.part, g = 1_GiB / part, mi = (std::size_t{1} << 20) / part;
  machine const on(with, {.devices = 1, .memory = 9 * g / 2}, {.device_limit = 9 * g / 2});
  table t(with, "2. Small blocks, where 4 GiB fit and 5 do not" +
                    (part > 1 ? "; all sizes are 1/" + std::to_string(part) : std::string()));
  auto const signed_g = static_cast<std::int64_t>(g);
  t.row("", {exactly(0), exactly(0)}, "");
  t.holds(is_refused(5 * g), "5 GiB are refused, with a report");
  {
    weir::buffer const whole(4 * g);
    t.row("4 GiB", {exactly(4 * signed_g), exactly(4 * signed_g)}, "fits; 5 GiB do not");
  }
  struct one {
    std::size_t floats;
    std::int64_t takes;
    char const* saw;
  };
  for (one const& o : {one{1, 16, "512 B: the least PyTorch gives"}, one{128, 512, "512 B"},
                       one{129, 528, "1024 B: every block starts at 512 B"}}) {
    weir::buffer const block(o.floats * 4);
    t.row(std::to_string(o.floats) + (o.floats == 1 ? " float" : " floats"), {exactly(o.takes), range{}}, o.saw);
  }
  weir::empty_cache();
  {
    std::vector<weir::buffer> const small = many(4 * mi, 129 * 4);
    auto const asked = static_cast<std::int64_t>(4 * mi * 129 * 4);
    t.row("4 Mi x 129 floats", {exactly(asked / 516 * 528), {asked, asked / 100 * 103 + (8 << 20)}},
          "4 GiB for 2.016 GiB of floats");
    weir::buffer const large(g);
    t.row("  and then 1 GiB", {exactly(asked / 516 * 528 + signed_g), {}}, "out of memory");
  }
  weir::empty_cache();
  t.row("all dropped, empty_cache", {exactly(0), between(0, 16 << 20)}, "");
  {
    std::vector<weir::buffer> const small = many(8 * mi, 4);
    t.row("8 Mi x 1 float",
          {exactly(static_cast<std::int64_t>(8 * mi * 16)), held_for(static_cast<std::int64_t>(8 * mi * 16))},
          "4 GiB for 32 MiB of floats");
  }
  weir::empty_cache();
  {
    std::vector<weir::buffer> const all = many(2048 / part, 2_MiB);
    t.row("2048 x 2 MiB", {exactly(4 * signed_g), exactly(4 * signed_g)}, "4 GiB: pieces of 2 MiB fit exactly");
  }
  weir::empty_cache();
  {
    std::vector<weir::buffer> const all = many(2048 / part, 1_MiB + 4);
    auto const taken = static_cast<std::int64_t>(2048 / part * (1_MiB + 512));
    t.row("2048 x (1 MiB + 4 B)", {exactly(taken), held_for(taken)}, "2 GiB: a block may lie across two pieces");
  }
  weir::empty_cache();
  half_a_billion(with, t);
  return t.failures();
}

}  // namespace seeds
