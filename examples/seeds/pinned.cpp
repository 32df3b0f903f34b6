// Topic 8: page-locked memory, asynchronous copies, and a data loader that uses both.
#include <atomic>

#include "examples/seeds/data_loader.h"
#include "examples/seeds/topics.h"

namespace seeds {
namespace {

std::int64_t pinned_now() {
  return weir::pinned_memory_stats().requested_bytes.all.current;
}

void kinds(table& t, std::int64_t bytes) {
  std::int64_t const before = pinned_now();
  weir::tensor const x = weir::ones({bytes / 4}, {.on = weir::cpu});
  t.row("x = ones(n) on the cpu", {exactly(0), exactly(0), near(bytes, bytes / 4)}, "");
  weir::tensor const p = x.pin_memory();
  t.row("p = x.pin_memory()", {exactly(0), exactly(0)}, "returns a copy in page-locked memory");
  t.holds(p.is_pinned() && !x.is_pinned() && pinned_now() - before == bytes,
          "p is pinned and x is not; pinned memory grew by " + in_words(pinned_now() - before));
  {
    weir::storage const s = x.storage().pin_memory();
    t.holds(s.kind() == weir::memory_kind::pinned && pinned_now() - before == 2 * bytes, "storages can be pinned, too");
  }
  weir::tensor const d = p.gpu(weir::non_blocking);
  t.row("d = p.gpu(non_blocking)", {exactly(bytes), held_for(bytes)}, "asynchronous, for p is pinned");
  weir::tensor const back = d.to(weir::cpu, weir::non_blocking);
  weir::synchronize();
  t.holds(back.is_pinned() && back.host<float>()[0] == 1,
          "d.to(cpu, non_blocking) lands in pinned memory and is there when the stream is done");
  weir::route_choice const fast = weir::explain_copy(d.data(), p.data(), p.nbytes()),
                           slow = weir::explain_copy(d.data(), x.data(), x.nbytes());
  t.holds(fast.by == weir::copy_route::engine && slow.by == weir::copy_route::staged,
          "explain_copy: from p by the copy " + std::string(name_of(fast.by)) + ", from x " +
              std::string(name_of(slow.by)));
}

// The stepped machine runs work only on request, so the test observes order instead of timing it.
void hidden_behind_work(table& t) {
  weir::runtime rt{weir::simulated{.devices = 1, .memory = 64_MiB, .schedule = weir::simulated::scheduling::stepped}};
  weir::runtime_guard const in{rt};
  weir::simulation machine = weir::simulation::of(rt);
  weir::stream const compute, copies;
  weir::tensor const p = weir::ones({1 << 18}, {.on = weir::cpu, .kind = weir::memory_kind::pinned});
  weir::stamp there;
  weir::tensor d;
  {
    weir::stream_guard const on(copies);
    d = weir::empty({1 << 18});
    weir::launch(
        compute, {}, [](CUstream_st*) {}, [] {});
    there = d.copy_(p, weir::non_blocking);
  }
  t.holds(!there.query(), "a pinned copy with non_blocking: the call has returned and nothing is copied yet");
  while (!there.query() && machine.step(copies)) {}
  t.holds(there.query() && !compute.query(),
          "it is done while the work on another stream has not begun: hidden behind it");
  machine.run();
}

void loader(table& t, std::int64_t samples) {
  std::int64_t const width = 64, batch = 128;
  std::int64_t const before = pinned_now();
  std::atomic<std::int64_t> made = 0;
  data_loader from({.samples = samples, .width = width, .batch = batch, .workers = 2, .prefetch = 2},
                   [&](std::int64_t i, std::span<float> to) {
                     for (float& v : to)
                       v = static_cast<float>(i % 16);
                     ++made;
                   });
  std::int64_t const slots = pinned_now() - before;
  std::int64_t seen = 0, wrong = 0;
  while (std::optional<weir::tensor> const x = from.next()) {
    float should = 0;
    for (std::int64_t i = 0; i < x->size(0); ++i)
      should += static_cast<float>((seen + i) % 16 * width);
    wrong += weir::sum(*x).item<float>() != should;
    seen += x->size(0);
  }
  t.row("an epoch of the loader, at its end", {between(0, batch * width * 4), range{}}, "DataLoader(pin_memory=True)");
  t.holds(seen == samples && made == samples && wrong == 0,
          std::to_string(seen) + " samples in their order, each made once");
  t.holds(slots == 4 * batch * width * 4 && pinned_now() - before == slots, "4 pinned batches serve them all");
}

}  // namespace

int pinned(settings const& with) {
  machine const on(with, {.devices = 1, .memory = 1_GiB}, {});
  table t(with, "8. Pinned memory and non_blocking");
  t.row("", {exactly(0), exactly(0)}, "");
  kinds(t, (512 << 20) / static_cast<std::int64_t>(with.touched_part));
  hidden_behind_work(t);
  loader(t, 10'000 / static_cast<std::int64_t>(with.touched_part));
  return t.failures();
}

}  // namespace seeds
