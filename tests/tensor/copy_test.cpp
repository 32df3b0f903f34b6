// Copies between any two tensors, against element-by-element copies on the host.
// Threads: one.
#include "tensor/number.h"

#include <future>
#include <set>

#include "tensor/state.h"
#include "tests/tensor/model.h"
#include "weir/launch.h"
#include "weir/observe.h"

using namespace weir;
using namespace weir::testing;

namespace {

class tensor_copy : public on_devices {
 protected:
  std::vector<dtype> const dtypes{float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64, boolean};

  // Element i of the storage is (from + i) % 100, in any dtype.
  tensor numbered(model_view const& all, memory_of_tensor place, dtype type, std::int64_t from) {
    tensor const on_host = empty({static_cast<std::int64_t>(all.at.size())}, {.dtype = type, .on = cpu});
    for (std::int64_t i = 0; i < on_host.numel(); ++i)
      ops::store(type, on_host.data(), i, static_cast<double>((from + i) % 100));
    tensor t = empty(on_host.shape(), options_at(place, type));
    t.copy_(on_host);
    return t.view(shape_of(all.shape));
  }
};

TEST_F(tensor_copy, any_view_to_any_other_of_the_same_shape) {
  for (int round = 0; round < 300; ++round) {
    model_view const all = model_view::whole(random_shape(random, 4, 6));
    dtype const from = random.one_of(dtypes), to = random.between(0, 1) ? from : random.one_of(dtypes);
    modelled const source =
        random_view({numbered(all, random.one_of(places), from, 3), all}, random, random.between(0, 3));
    // A target of that shape within a larger storage, perhaps with permuted dimensions.
    extents order = source.m.shape;
    for (auto& e : order)
      e += random.between(0, 2);
    bool const turned = order.size() > 1 && random.between(0, 1);
    if (turned)
      std::swap(order.front(), order.back());
    model_view const target_all = model_view::whole(order);
    tensor const target_base = numbered(target_all, random.one_of(places), to, 50);
    modelled target{target_base, target_all};
    if (turned)
      target = target.transposed(0, order.size() - 1);
    for (size_t d = 0; d < order.size(); ++d) {
      std::int64_t const first = random.between(0, target.m.shape[d] - source.m.shape[d]);
      target = target.sliced(d, first, first + source.m.shape[d]);
    }

    target.t.copy_(source.t, random.between(0, 1) ? blocking::yes : blocking::no).synchronize();

    tensor const is = target_base.cpu();
    std::vector<double> should(target_all.at.size());
    for (size_t i = 0; i < should.size(); ++i)
      should[i] = static_cast<double>((50 + i) % 100);
    for (size_t i = 0; i < source.m.at.size(); ++i) {
      auto const x = static_cast<double>((3 + source.m.at[i]) % 100);
      should[static_cast<size_t>(target.m.at[i])] = from == boolean ? x != 0 : x;
    }
    for (size_t i = 0; i < should.size(); ++i) {
      ASSERT_EQ(ops::load(to, is.data(), static_cast<std::int64_t>(i)), to == boolean ? should[i] != 0 : should[i])
          << "round " << round << ", element " << i << ": " << name_of(from) << " on " << source.t.device().str()
          << " to " << name_of(to) << " on " << target.t.device().str();
    }
  }
}

TEST_F(tensor_copy, integers_that_no_double_holds_stay_exact) {
  std::int64_t const big = (std::int64_t{1} << 53) + 1;
  tensor const t = tensor_of<std::int64_t>({big, -big});
  EXPECT_EQ(t[1].item<std::int64_t>(), -big);
  EXPECT_EQ(t.to(float64).to(int64)[0].item<std::int64_t>(), big - 1);
  EXPECT_EQ(t.to(int32)[0].item<std::int32_t>(), 1);
}

TEST_F(tensor_copy, to_the_same_place_changes_nothing) {
  tensor const on_gpu = ones({4}, {.on = second}), on_host = ones({4}, {.on = cpu}), pinned = on_host.pin_memory();
  EXPECT_EQ(on_gpu.to(second).storage(), on_gpu.storage());
  EXPECT_EQ(on_gpu.to(float32).storage(), on_gpu.storage());
  EXPECT_EQ(on_host.cpu().storage(), on_host.storage());
  EXPECT_FALSE(pinned.storage() == on_host.storage());
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_EQ(pinned.pin_memory().storage(), pinned.storage());
  EXPECT_THROW((void)on_gpu.pin_memory(), invalid_use);
}

TEST_F(tensor_copy, gpu_means_the_current_device) {
  tensor const on_host = ones({4}, {.on = cpu});
  device_guard const there{second};
  EXPECT_EQ(on_host.gpu().device(), second);
  EXPECT_EQ(empty({1}).device(), second);
  EXPECT_EQ(empty({1}, {.on = 0}).device(), device(0));
}

TEST_F(tensor_copy, a_non_blocking_copy_to_the_host_is_pinned) {
  tensor const there = full({1 << 16}, 3).to(cpu, non_blocking);
  EXPECT_TRUE(there.is_pinned());
  current_stream(0).synchronize();
  for (float v : there.host<float>())
    ASSERT_EQ(v, 3);
}

TEST_F(tensor_copy, between_devices_both_ends_are_ready_at_once) {
  for (int round = 0; round < 20; ++round) {
    tensor a = full({1 << 15}, round, {.on = 0}), b = zeros({1 << 15}, {.on = second});
    b.copy_(a, non_blocking);
    a.fill_(-1);  // on the source's stream
    b.add_(b);    // on the target's stream
    EXPECT_EQ(mean(b).item<float>(), 2.0f * static_cast<float>(round));
  }
}

TEST_F(tensor_copy, refusals_name_both_sides_and_change_nothing) {
  tensor t = zeros({2, 3}), row = arange(10, {.on = cpu});
  expect_refusal([&] { t.copy_(zeros({3, 2})); }, {"target [2, 3]", "source [3, 2]"});
  expect_refusal([&] { row.slice(0, 1, 10).copy_(row.slice(0, 0, 9)); }, {"overlap", "clone()"});
  EXPECT_EQ(row[5].item<int>(), 5);
  expect_refusal([&] { (void)t.item<float>(); }, {"[2, 3]", "6 elements"});
  expect_refusal([&] { t.copy_(tensor()); }, {"source is undefined"});
}

// Views beside each other do not overlap.
TEST_F(tensor_copy, an_overlap_in_another_order_is_refused) {
  auto const values_of = [](tensor const& t) {
    tensor const h = t.contiguous().cpu();
    auto const all = h.host<float>();
    return std::vector<float>(all.begin(), all.end());
  };
  for (tensor_options const o : {tensor_options{}, tensor_options{.on = cpu}}) {
    tensor a = arange(16, o).to(float32).view({4, 4});
    std::vector<float> const before = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    expect_refusal([&] { a.copy_(a.t()); },
                   {"tensor::copy_", "[4, 4] with strides [4, 1]", "strides [1, 4]", "overlap", "clone()"});
    expect_refusal([&] { a.t().copy_(a); }, {"overlap"});
    expect_refusal([&] { a.slice(1, 0, 3).copy_(a.slice(1, 1, 4)); }, {"overlap"});
    expect_refusal([&] { a.add_(a.t()); }, {"tensor::add_", "overlap"});
    tensor const same_memory = tensor::from_blob(a.data(), {4, 4}, float32, a.device());
    expect_refusal([&] { a.copy_(same_memory.t()); }, {"overlap"});
    EXPECT_NO_THROW(a.copy_(same_memory));
    EXPECT_EQ(values_of(a), before) << "nothing has changed";
    a.copy_(a.t().clone());
    EXPECT_EQ(values_of(a.t()), before);
    a.copy_(a.t().clone());
    a.slice(1, 0, 2).copy_(a.slice(1, 2, 4));  // columns beside each other
    a.slice(0, 0, 2).slice(1, 2, 4).copy_(a.slice(0, 2, 4).slice(1, 0, 2).t());
    EXPECT_EQ(values_of(a), (std::vector<float>{2, 3, 10, 14, 6, 7, 11, 15, 10, 11, 10, 11, 14, 15, 14, 15}));
  }
}

TEST_F(tensor_copy, views_share_elements_only_with_common_bytes) {
  std::mt19937 random(5);
  auto const below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  tensor const whole = zeros({4, 6, 5}, {.dtype = int16, .on = cpu});
  auto const some_view = [&] {
    tensor t = below(4) ? whole : tensor::from_storage(whole.storage(), {4, 3, 5}, float32);
    if (below(3) == 0)
      t = t.view({-1, 5});
    for (int d = 0; d < t.dim(); ++d) {
      std::int64_t const from = below(t.size(d)), to = from + 1 + below(t.size(d) - from);
      t = t.slice(d, from, to);
    }
    return below(2) ? t.transpose(0, -1) : t;
  };
  auto const bytes_of = [](tensor const& t) {
    std::set<char const*> all;
    auto const add = [&](auto const& self, char const* at, int d) -> void {
      if (d == t.dim()) {
        for (size_t i = 0; i < size_of(t.dtype()); ++i)
          all.insert(at + i);
        return;
      }
      for (std::int64_t i = 0; i < t.shape()[d]; ++i)
        self(self, at + i * t.strides()[d] * static_cast<std::int64_t>(size_of(t.dtype())), d + 1);
    };
    add(add, static_cast<char const*>(t.data()), 0);
    return all;
  };
  int shared = 0, apart_but_interleaved = 0;
  for (int round = 0; round < 3000; ++round) {
    tensor const a = some_view(), b = some_view();
    auto const of_a = bytes_of(a), of_b = bytes_of(b);
    bool const meet = std::any_of(of_a.begin(), of_a.end(), [&](char const* p) { return of_b.contains(p); });
    ASSERT_EQ(tensors::may_share_elements(a, b), meet)
        << a.shape().str() << a.strides().str() << " and " << b.shape().str() << b.strides().str();
    shared += meet;
    apart_but_interleaved += !meet && *of_a.begin() < *of_b.rbegin() && *of_b.begin() < *of_a.rbegin();
  }
  EXPECT_GT(shared, 300);
  EXPECT_GT(apart_but_interleaved, 300);
}

TEST_F(tensor_copy, item_converts) {
  EXPECT_EQ(tensor_of({2.75f})[0].item<int>(), 2);
  EXPECT_EQ(tensor_of<std::uint8_t>({200})[0].item<double>(), 200);
  EXPECT_TRUE(tensor_of({true}, {.on = cpu})[0].item<bool>());
  EXPECT_EQ(full({}, 1.5, {.dtype = bfloat16}).item<float>(), 1.5f);
}

TEST(peer_view, operations_run_on_the_reader) {
  runtime machine{simulated{.devices = 3, .memory = 64_MiB}};
  runtime_guard const in(machine);
  tensor x = full({4, 3}, 2, {.on = 1}), y = ones({4, 3});
  expect_refusal([&] { (void)add(y, x); }, {"gpu:0", "gpu:1"});
  tensor seen = x.peer_view(0);
  EXPECT_EQ(seen.device(), weir::device(0));
  EXPECT_EQ(seen.data(), x.data());
  tensor const z = add(y, seen);
  EXPECT_EQ(z.device(), weir::device(0));
  EXPECT_EQ(sum(z).item<float>(), 36);
  seen.t().slice(0, 1, 2).contiguous().add_(ones({1, 4}));  // a copy, as of any view with gaps
  seen.add_(ones({4, 3}));                                  // in place, over the link
  synchronize(0);
  EXPECT_EQ(sum(x).item<float>(), 36);
  EXPECT_EQ(sum(matmul(y, seen, transposed::right)).item<float>(), 4 * 36);
  x = {};
  synchronize(1);
  EXPECT_GT(memory_allocated(1), 0u) << "the view keeps it alive";
  seen = {};
  EXPECT_EQ(memory_allocated(1), 0u);
  EXPECT_EQ(y.peer_view(0).storage(), y.storage());
  tensor const pinned = full({3}, 5, {.on = cpu, .kind = memory_kind::pinned}).peer_view(2);
  EXPECT_EQ(sum(pinned).item<float>(), 15);
  EXPECT_EQ(pinned.device(), weir::device(2));
}

// The memory stays in use until the reader is done.
TEST(peer_view, the_owners_stream_precedes_the_reader) {
  runtime machine{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard const in(machine);
  (void)ones({1}, {.on = 1}).peer_view(0);  // tests the link
  std::promise<void> written, read;
  auto const hold = [](device d, std::promise<void>& until) {
    launch_host(current_stream(d),
                [go = std::make_shared<std::shared_future<void>>(until.get_future())] { go->wait(); });
  };
  hold(1, written);
  tensor x = full({1000}, 2, {.on = 1});
  void const* const at = x.data();
  tensor seen = x.peer_view(0);
  tensor const total = sum(seen);
  EXPECT_FALSE(current_stream(0).query()) << "the reader did not wait for the owner's stream";
  written.set_value();
  EXPECT_EQ(total.item<float>(), 2000);
  hold(0, read);
  tensor const again = sum(seen);
  x = {}, seen = {};
  tensor const next = full({1000}, 3, {.on = 1});
  EXPECT_NE(next.data(), at) << "handed out while the reader still reads it";
  synchronize(1);
  read.set_value();
  EXPECT_EQ(again.item<float>(), 2000);
}

TEST(peer_view, a_missing_link_or_grant_is_named) {
  runtime machine{simulated{.devices = 4, .memory = 64_MiB, .peers = simulated::links::pairs}};
  runtime_guard const in(machine);
  tensor const x = ones({4}, {.on = 1});
  EXPECT_EQ(sum(x.peer_view(0)).item<float>(), 4);
  expect_refusal([&] { (void)x.peer_view(2); }, {"gpu:1", "gpu:2"});
  expect_refusal([&] { (void)x.peer_view(7); }, {"gpu:7"});
  expect_refusal([&] { (void)x.peer_view(cpu); }, {"float32 [4] on gpu:1", "cpu()"});
  expect_refusal([&] { (void)ones({4}, {.on = cpu}).peer_view(0); }, {"pageable"});
  expect_refusal([&] { (void)tensor().peer_view(0); }, {"undefined"});
  EXPECT_EQ(sum(x).item<float>(), 4);
}

}  // namespace
