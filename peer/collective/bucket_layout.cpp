// The layout of gradient_buckets: which gradients make a bucket, where they lie, and which ranges are reduced.
// Threads: as the communicator.
#include <algorithm>
#include <map>

#include "peer/collective/gradient_buckets.h"
#include "runtime/base/round_up.h"
#include "runtime/core/parts.h"
#include "streams/api/known_range.h"
#include "streams/stream/context.h"

namespace weir {
namespace {

using peer::bytes_of, peer::end_of;
constexpr std::size_t gap = peer::bucket_gap;
constexpr std::size_t least_bucket = std::size_t{1} << 20, most_bucket = std::size_t{25} << 20;

// of the block that holds the memory; null: weir does not know it
std::byte* block_of(runtime::impl& owner, device_span s) {
  auto const range = streams::known_range::of(owner, s.data, bytes_of(s));
  return range.is == streams::known_range::verdict::inside ? static_cast<std::byte*>(range.block.base) : nullptr;
}

// Two blocks may touch on this rank alone, and gradients may lie in another order on another rank. Only those in the
// order of add() within one block are neighbours on all ranks.
bool are_neighbours(runtime::impl& owner, device_span a, device_span b) {
  std::byte const* const block = block_of(owner, a);
  return end_of(a) == b.data && block && block == block_of(owner, b);
}

// In the order of add(), which is equal on all ranks.
void append(std::vector<device_span>& ranges, device_span next, runtime::impl& owner) {
  if (!ranges.empty() && are_neighbours(owner, ranges.back(), next))
    ranges.back().count += next.count;
  else
    ranges.push_back(next);
}

}  // namespace

void gradient_buckets::state::use_memory_of_program(source_location at) {
  std::vector<int> by_address;
  for (int i = 0; i < static_cast<int>(ones.size()); ++i) {
    one const& o = ones[static_cast<std::size_t>(i)];
    if (!o.of_program)
      continue;
    if (options.sharded)
      throw invalid_use("gradient_buckets::build",
                        named(i) + " lies in the program's memory, which has no equal shares",
                        "Leave bucket_options::sharded off, or let the buckets hold the memory", at, error_id{558});
    if (options.registered)
      throw invalid_use("gradient_buckets::build", named(i) + " lies in the program's memory, which is not registered",
                        "Leave bucket_options::registered off. Memory of a pool that register_pool() took is reduced "
                        "as registered memory",
                        at, error_id{487});
    peer::use_on(streams::clock_of(*side), o.gradient, "gradient_buckets::build", named(i), at);
    if (o.gradient.count > 0)
      by_address.push_back(i);
  }
  auto const gradient = [&](int i) { return ones[static_cast<std::size_t>(i)].gradient; };
  std::ranges::sort(by_address, std::less{}, [&](int i) { return gradient(i).data; });
  for (std::size_t k = 1; k < by_address.size(); ++k)
    if (int const i = by_address[k - 1], next = by_address[k]; end_of(gradient(i)) > gradient(next).data)
      throw invalid_use("gradient_buckets::build", named(i) + " and " + named(next) + " share memory",
                        "Add each gradient once: it would be reduced twice", at, error_id{488});
}

void gradient_buckets::state::lay_out() {
  std::size_t total = 0;
  for (one const& o : ones)
    total += o.of_program ? bytes_of(o.gradient) : base::round_up(bytes_of(o.gradient), gap);
  std::size_t const full =
      options.bucket_bytes ? options.bucket_bytes : std::clamp(total / 4, least_bucket, most_bucket);
  std::size_t at = 0;
  // Each rank's share of a bucket has an equal number of whole gaps.
  auto const end_bucket = [&] {
    // No device has a block of 2^62 B: its allocation is refused, and no sum overflows before.
    if (!options.sharded || buckets.empty() || at > ~std::size_t{0} >> 2)
      return;
    std::size_t const even = base::round_up(buckets.back().bytes, gap * static_cast<std::size_t>(shares()));
    at += even - buckets.back().bytes;
    buckets.back().bytes = even;
  };
  for (auto o = ones.rbegin(); o != ones.rend(); ++o) {
    dtype const type = o->gradient.dtype;
    // A bucket ends where the type or the memory's owner changes, or once it is full.
    if (buckets.empty() || buckets.back().type != type || buckets.back().of_program != o->of_program ||
        buckets.back().bytes >= full) {
      end_bucket();
      buckets.push_back({type, o->of_program});
    }
    bucket& its = buckets.back();
    o->bucket = static_cast<int>(buckets.size()) - 1;
    std::size_t bytes = bytes_of(o->gradient);
    if (!o->of_program) {
      bytes = base::round_up(bytes, gap);
      o->offset = at;
      at += bytes;
    }
    its.bytes += bytes;
    ++its.members;
    its.missing = its.members;
  }
  end_bucket();
  half = at;
}

void gradient_buckets::state::set_ranges(std::byte* own, runtime::impl& owner) {
  std::byte* at = own + half;
  for (bucket& b : buckets) {
    if (b.of_program)
      continue;
    b.ranges.push_back({at, static_cast<std::int64_t>(b.bytes / size_of(b.type)), b.type});
    at += b.bytes;
  }
  for (one& o : ones) {
    if (!o.of_program) {
      o.parameter.data = own + o.offset;
      o.gradient.data = own + half + o.offset;
    } else if (o.gradient.count > 0) {
      append(buckets[static_cast<std::size_t>(o.bucket)].ranges, o.gradient, owner);
    }
  }
  set_sent(own);
  for (one& o : ones)
    o.reduced = reduced_of(o);
}

gradient_buckets::part gradient_buckets::state::part_of(one const& o, int of_rank) const {
  if (!options.sharded)
    return {0, o.gradient.count};
  device_span const range = buckets[static_cast<std::size_t>(o.bucket)].ranges[0];
  device_span const mine = peer::share_of(range, of_rank, shares());
  // Elements of the bucket; a gradient may begin or end outside of that rank's share.
  auto const place = [&](void const* p) {
    return (static_cast<std::byte const*>(p) - static_cast<std::byte*>(range.data)) /
           static_cast<std::int64_t>(size_of(range.dtype));
  };
  std::int64_t const from = place(o.gradient.data), begin = place(mine.data);
  std::int64_t const first = std::clamp<std::int64_t>(begin - from, 0, o.gradient.count);
  return {first, std::clamp<std::int64_t>(begin + mine.count - from, first, o.gradient.count) - first};
}

device_span gradient_buckets::state::reduced_of(one const& o) const {
  bucket const& its = buckets[static_cast<std::size_t>(o.bucket)];
  if (!its.sent.data)
    return o.gradient;
  std::size_t before = 0;  // elements of the bucket
  for (device_span const r : its.ranges) {
    bool const is_here = r.data <= o.gradient.data && o.gradient.data < end_of(r);
    std::byte* const end = is_here ? static_cast<std::byte*>(o.gradient.data) : end_of(r);
    before += static_cast<std::size_t>(end - static_cast<std::byte*>(r.data)) / size_of(its.type);
    if (is_here)
      break;
  }
  auto* const first = static_cast<std::byte*>(its.sent.data);
  return {first + before * size_of(its.sent.dtype), o.gradient.count, its.sent.dtype};
}

std::size_t gradient_buckets::state::set_sent(std::byte* own) {
  // Shares may round what add() allowed up to more than this: no device has it, so its allocation is refused.
  if (half > ~std::size_t{0} >> 2)
    return ~gap;
  std::size_t at = 2 * half;
  for (bucket& b : buckets) {
    if (!options.reduce_as || (b.type != float32 && b.type != float64))
      continue;
    b.sent = {own ? own + at : nullptr, static_cast<std::int64_t>(b.bytes / size_of(b.type)), *options.reduce_as};
    if (__builtin_add_overflow(at, base::round_up(bytes_of(b.sent), gap), &at) || at > ~gap - gap)
      return ~gap;
  }
  norm = {own ? own + at : nullptr, 1, float32};
  return at + gap;
}

void gradient_buckets::state::tell(driver::check::control& checker, runtime::impl& owner) const {
  std::map<std::byte*, driver::check::managed_block> blocks;
  for (int i = 0; i < static_cast<int>(ones.size()); ++i) {
    one const& o = ones[static_cast<std::size_t>(i)];
    std::byte* const its = block_of(owner, o.gradient);
    if (!its)
      continue;
    auto const add = [&](std::byte* to, device_span s, std::string_view what) {
      blocks[to].parts.push_back({static_cast<std::size_t>(static_cast<std::byte*>(s.data) - to), bytes_of(s),
                                  base::text(what, named(i), " in bucket ", o.bucket)});
    };
    add(its, o.gradient, "gradient ");
    if (o.reduced.data != o.gradient.data)
      add(block, o.reduced, "the reduced gradient ");
  }
  for (auto& [its, what] : blocks) {
    std::ranges::sort(what.parts, std::less{}, &driver::check::managed_block::part::offset);
    what.device = device();
    what.stream = streams::clock_of(*side).handle();
    what.work = base::text("the reductions of rank ", rank);
    what.call_before = "gradient_buckets::mark_ready";
    what.call_after = "gradient_buckets::finish";
    checker.manages(its, std::move(what));
  }
}

}  // namespace weir
