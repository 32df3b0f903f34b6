// Multi-device programs: every collective, two training steps, a communicator that outlives its runtime.
// Threads: one plays all ranks.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/faults/scenario.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/optimizer.h"
#include "weir/tensor.h"

namespace weir::faults {
namespace {

std::vector<device> devices(int n) {
  std::vector<device> all;
  for (int d = 0; d < n; ++d)
    all.emplace_back(d);
  return all;
}

std::string bytes_of(void const* device_memory, std::size_t n) {
  std::string host(n, 0);
  copy(host.data(), device_memory, n);
  return host;
}

}  // namespace

std::string all_collectives() {
  constexpr int n = 4;
  constexpr std::int64_t part = 300;
  std::vector<buffer> whole, parts;
  for (int d = 0; d < n; ++d) {
    device_guard const on(d);
    whole.emplace_back(4 * n * part), parts.emplace_back(4 * part);
    fill(whole.back().data(), std::byte(d + 1), whole.back().size());
    fill(parts.back().data(), std::byte(d + 5), parts.back().size());
  }
  auto ranks = communicator::create_all(devices(n));
  auto const each = [&](auto give) {
    for (int d = 0; d < n; ++d)
      give(ranks[static_cast<std::size_t>(d)], device_span{whole[static_cast<std::size_t>(d)].data(), n * part, int32},
           device_span{parts[static_cast<std::size_t>(d)].data(), part, int32});
  };
  each([](auto& rank, device_span all, device_span) { rank.all_reduce(all); });
  each([](auto& rank, device_span all, device_span one) { rank.reduce_scatter(one, all, reduce_op::max); });
  each([](auto& rank, device_span, device_span one) { rank.broadcast(one, 2); });
  each([](auto& rank, device_span all, device_span one) { rank.all_gather(all, one); });
  each([](auto& rank, device_span all, device_span one) { rank.scatter(one, all, 1); });
  each([](auto& rank, device_span all, device_span one) { rank.gather(all, one, 3); });
  std::vector<buffer> got;
  for (int d = 0; d < n; ++d) {
    device_guard const on(d);
    got.emplace_back(whole.back().size());
  }
  for (int d = 0; d < n; ++d)
    for (int part_of = 0; part_of < n; ++part_of)
      fill(whole[static_cast<std::size_t>(d)].data<std::byte>() + 4 * part * part_of, std::byte(10 + 4 * d + part_of),
           4 * part);
  each([&](auto& rank, device_span all, device_span) {
    rank.all_to_all({got[static_cast<std::size_t>(rank.rank())].data(), all.count, all.dtype}, all);
  });
  each([&](auto& rank, device_span all, device_span one) {  // to the next, from the one before
    rank.send_receive(one, (rank.rank() + 1) % n, {all.data, part, all.dtype}, (rank.rank() + n - 1) % n);
  });
  ranks[1].send({parts[1].data(), part, int32}, 3);
  ranks[3].receive({got[3].data(), part, int32}, 1);
  std::string seen;
  for (auto const& b : whole)
    seen += bytes_of(b.data(), b.size());
  for (auto const& b : got)
    seen += bytes_of(b.data(), b.size());
  return seen;
}

// Three members, one of which only two ranks call.
std::string collectives_in_a_group() {
  constexpr int n = 3;
  constexpr std::int64_t part = 100;
  std::vector<buffer> sums, parts, whole;
  for (int d = 0; d < n; ++d) {
    device_guard const on(d);
    for (auto* each : {&sums, &parts, &whole}) {
      each->emplace_back(4 * part * (each == &whole ? n : 1));
      fill(each->back().data(), std::byte(d + 1), each->back().size());
    }
  }
  auto ranks = communicator::create_all(devices(n));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t d = 0; d < n; ++d) {
      collective_group group(ranks[d]);
      group.all_reduce({sums[d].data(), part, int32});
      if (d == 0)
        group.send({parts[0].data(), part, int32}, 2);
      if (d == 2)
        group.receive({parts[2].data(), part, int32}, 0);
      group.all_to_all({whole[d].data(), 0, int32}, {whole[d].data(), 0, int32});
      group.broadcast({whole[d].data(), n * part, int32}, 1);
      group.end();
    }
  }
  std::string seen;
  for (auto const* each : {&sums, &parts, &whole})
    for (buffer const& b : *each)
      seen += bytes_of(b.data(), b.size());
  return seen;
}

namespace {
bucket_options options_of(bool registered, bool of_program) {
  bucket_options o{.bucket_bytes = 512, .registered = registered};
  if (of_program)
    o.before_reduction = [](device_span g, stream_ref) {
      tensor::from_blob(g.data, {g.count}, g.dtype, gpu).mul_(0.5);
    };
  return o;
}

// A linear model with two outputs, trained with momentum on two devices that share gradients.
std::string trained(bool registered, bool of_program = false) {
  constexpr int n = 2;
  auto ranks = communicator::create_all(devices(n));
  struct replica {
    tensor values{}, sums{};  // of the program. They outlive `shared`, whose end lets ranks go that wait for each other
    gradient_buckets shared;
    tensor x, y, velocity{};
    tensor view(device_span s, shape as, int on) const { return tensor::from_blob(s.data, as, float32, device(on)); }
    device_span whole() const { return values.defined() ? device_span{values.data(), 10} : shared.parameters(); }
    tensor reduced(int on) const {
      return values.defined() ? view(shared.reduced(0), {10}, on) : view(shared.gradients(), {whole().count}, on);
    }
  };
  std::vector<replica> all;
  for (int d = 0; d < n; ++d) {
    device_guard const on(d);
    all.push_back({{},
                   {},
                   gradient_buckets(ranks[static_cast<std::size_t>(d)], options_of(registered, of_program)),
                   arange(24).view({6, 4}).mul_(0.01 * (d + 1)),
                   ones({6, 2})});
    auto& shared = all.back().shared;
    if (of_program) {
      tensor &values = all.back().values = zeros({10}), &sums = all.back().sums = zeros({10});
      shared.add("weight", {values.data(), 8}, {sums.data(), 8});
      shared.add("bias", {values.data<float>() + 8, 2}, {sums.data<float>() + 8, 2});
    } else {
      shared.add("weight", 8);
      shared.add("bias", 2);
    }
    shared.build();
    device_span const whole = all.back().whole();
    all.back().view(whole, {whole.count}, d).fill_(0.125);
    all.back().velocity = zeros({whole.count});
  }
  for (int step = 0; step < 2; ++step) {
    for (int d = 0; d < n; ++d) {
      device_guard const on(d);
      replica& r = all[static_cast<std::size_t>(d)];
      tensor error = matmul(r.x, r.view(r.shared.parameter(0), {4, 2}, d));
      error.add_(r.y, -1);
      tensor for_bias = r.view(r.shared.gradient(1), {1, 2}, d), for_weight = r.view(r.shared.gradient(0), {4, 2}, d);
      matmul_out(for_bias, ones({1, 6}), error);
      r.shared.mark_ready(1, current_stream());
      matmul_out(for_weight, r.x, error, transposed::left);
      r.shared.mark_ready(0, current_stream());
    }
    for (int d = 0; d < n; ++d) {
      device_guard const on(d);
      replica& r = all[static_cast<std::size_t>(d)];
      r.shared.finish(current_stream());
      device_span const values = r.whole();
      if (of_program)
        (void)r.shared.clip(0.75, current_stream());
      r.velocity.mul_(0.9).add_(r.reduced(d));
      tensor parameters = r.view(values, {values.count}, d);
      parameters.add_(r.velocity, -0.1);
    }
  }
  std::string seen;
  for (auto const& r : all)
    seen += bytes_of(r.shared.parameter(0).data, 32);
  return seen;
}
}  // namespace

std::string two_training_steps() {
  return trained(false);
}
std::string two_steps_in_memory_of_the_program() {
  return trained(false, true);
}
std::string two_steps_in_registered_pools() {
  return trained(true);
}

// Two ranks share gradients and the optimizer's state. The parameters are of 16 bits, the gradients are
// scaled.
std::string two_sharded_steps() {
  constexpr int n = 2;
  auto ranks = communicator::create_all(devices(n));
  struct replica {
    gradient_buckets shared;
    loss_scale scale;
    optimizer by;
  };
  std::vector<replica> all;
  for (int d = 0; d < n; ++d) {
    device_guard const on(d);
    communicator& c = ranks[static_cast<std::size_t>(d)];
    gradient_buckets g(c, {.sharded = true});
    g.add("weight", 300, bfloat16), g.add("bias", 2);
    g.build();
    fill(g.parameter(0).data, std::byte{0x3d}, 600);
    loss_scale scale({.first = 4, .steps_to_grow = 1});
    optimizer by = adamw(g, {.rate = 0.25, .max_norm = 1e3, .scale = &scale, .ranks = &c});
    all.push_back({std::move(g), std::move(scale), std::move(by)});
  }
  auto const each = [&](auto act) {
    for (int d = 0; d < n; ++d) {
      device_guard const on(d);
      act(all[static_cast<std::size_t>(d)], current_stream());
    }
  };
  for (int step = 0; step < 2; ++step) {
    each([&](replica& r, stream_ref s) {
      for (int i : {1, 0}) {
        fill(s, r.shared.gradient(i).data, std::byte{0x3e}, i == 0 ? 600 : 8);
        r.shared.mark_ready(i, s);
      }
    });
    each([](replica& r, stream_ref s) { r.shared.finish(s); });
    each([](replica& r, stream_ref s) { r.by.step(s); });
    each([](replica& r, stream_ref s) { r.shared.gather(s); });
  }
  std::string seen;
  each([&](replica& r, stream_ref s) {
    seen += bytes_of(r.shared.parameter(0).data, 600) + bytes_of(r.shared.parameter(1).data, 8);
    seen += std::to_string(r.by.steps(s)) + " " + std::to_string(r.scale.read(s));
  });
  return seen;
}

namespace {
std::vector<communicator> kept;  // outlives its runtime
}

std::string communicator_outlives_its_runtime() {
  kept.clear();
  kept = communicator::create_all(devices(2));
  std::vector<buffer> sums;
  for (int d = 0; d < 2; ++d) {
    sums.emplace_back(400, buffer_options{.on = device(d)});
    device_guard const on(d);
    fill(sums.back().data(), std::byte(d + 1), 400);
  }
  for (std::size_t d = 0; d < 2; ++d)
    kept[d].all_reduce({sums[d].data(), 100, int32});
  return bytes_of(sums[0].data(), 400) + bytes_of(sums[1].data(), 400);
}

std::string outlived_by_a_communicator() {
  std::string wrong;
  float nothing[4];
  for (auto& rank : kept) {
    try {
      rank.all_reduce({nothing, 4, float32});
      wrong = "a communicator works on without its runtime";
    } catch (invalid_use const& e) {
      if (e.operands().find("has ended") == std::string_view::npos)
        wrong = "a communicator without its runtime says: " + std::string(e.operands());
    }
    rank.abort();
  }
  kept.clear();
  kept.shrink_to_fit();
  return wrong;
}

}  // namespace weir::faults
