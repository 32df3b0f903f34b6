// The training loop of one device.
// Threads: see replica.h.
#include "replica.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "mix.h"
#include "weir/timeline.h"

namespace trainer {
namespace {

weir::tensor pinned(weir::shape shape, weir::dtype type) {
  return weir::empty(shape, {.dtype = type, .on = weir::cpu, .kind = weir::memory_kind::pinned});
}

}  // namespace

std::int64_t report::steps_done() const noexcept {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (auto const& d : done)
    least = std::min(least, d.load(std::memory_order_acquire));
  return least;
}

replica::replica(settings const& s, text const& t, weir::communicator& ranks, report& r, std::size_t number)
    : settings_(s),
      text_(t),
      ranks_(ranks),
      report_(r),
      number_(number),
      rows_(s.batch / ranks.size() / s.accumulate),
      buckets_(ranks, {.bucket_bytes = bucket_bytes(s.shape), .average = false}),
      model_(s.shape, s.how, ranks, buckets_, s.seed) {
  auto const elements = static_cast<std::int64_t>(batch_elements(rows_, s.shape.context, s.shape.vocabulary));
  for (slot& at : slots_)
    at.host = pinned({elements}, weir::int32);
  for (weir::tensor& at : loss_)
    at = pinned({}, weir::float32);
}

replica::~replica() = default;

// Copies the slot's host memory to the device on the copy stream. The device tensor is allocated on the copy
// stream, used on the compute stream and freed without a wait.
void replica::send(slot& at, int rows) {
  weir::stream_guard in{copies_};
  auto const elements =
      static_cast<std::int64_t>(batch_elements(rows, settings_.shape.context, settings_.shape.vocabulary));
  at.device = weir::empty({elements}, {.dtype = weir::int32});
  at.arrived = at.device.copy_(at.host.slice(0, 0, elements), weir::non_blocking);
}

void replica::prefetch(std::int64_t part) {
  slot& at = slot_of(part);
  at.arrived.synchronize();  // the copy before the previous one read this memory
  batch_view const into =
      view_batch(at.host.host<std::int32_t>(), rows_, settings_.shape.context, settings_.shape.vocabulary);
  auto const of_share = static_cast<int>(part % settings_.accumulate);
  draw_batch(text_, settings_.seed, part / settings_.accumulate,
             (ranks_.rank() * settings_.accumulate + of_share) * rows_, into);
  send(at, rows_);
}

device_batch replica::take(std::int64_t part) {
  slot& at = slot_of(part);
  weir::current_stream().wait(at.arrived);
  return split_batch(std::move(at.device), rows_, settings_.shape);
}

float replica::rate_at(std::int64_t step) const {
  std::int64_t const warm_steps = std::clamp<std::int64_t>(settings_.steps / 10, 1, 100);
  float const warm = std::min(1.f, static_cast<float>(step + 1) / static_cast<float>(warm_steps));
  float const way = static_cast<float>(step) / static_cast<float>(std::max<std::int64_t>(settings_.steps, 1));
  return settings_.update.rate * warm * (0.05f + 0.475f * (1 + std::cos(3.14159265f * way)));
}

std::vector<float> replica::save() {
  weir::tensor const all = pinned({model_.saved_floats()}, weir::float32);
  model_.save(all).synchronize();
  // After a failure, reductions end without a result. If there is none now, the copy has read good values.
  if (std::string const why = ranks_.failure(); !why.empty())
    throw std::runtime_error("training stops: " + why);
  auto const values = all.host<float>();
  return {values.begin(), values.end()};
}

void replica::train(std::int64_t first_step, std::int64_t last_step,
                    std::function<void(std::int64_t step, std::vector<weir::checkpoint_item> const&)> const& keep) {
  using clock = std::chrono::steady_clock;
  clock::time_point first_done;
  weir::stamp told[2];
  auto const tell = [&](std::int64_t step) {  // reports the loss of a step that is at least one behind
    told[step % 2].synchronize();
    if (std::string const why = ranks_.failure(); !why.empty())
      throw std::runtime_error("training stops: " + why);
    if (number_ == 0)
      report_.losses[static_cast<std::size_t>(step)] = loss_[step % 2].host<float>()[0];
    report_.done[number_].store(step + 1, std::memory_order_release);
  };
  int const parts = settings_.accumulate;
  std::int64_t part = first_step * parts;
  if (first_step < last_step)
    prefetch(part);
  for (std::int64_t step = first_step; step < last_step && !report_.failed.load(std::memory_order_relaxed); ++step) {
    weir::profile_range const in_timeline("step " + std::to_string(step));
    for (int i = 0; i < parts; ++i, ++part) {
      device_batch const batch = take(part);
      if (part + 1 < last_step * parts)
        prefetch(part + 1);
      model_.forward_backward(batch, 1.f / static_cast<float>(settings_.batch),
                              {.first = i == 0, .last = i + 1 == parts});
    }
    buckets_.finish(weir::current_stream());
    update_options now = settings_.update;
    now.rate = rate_at(step);
    model_.update(step, now);
    if (step > first_step)
      tell(step - 1);
    if (step == first_step + 1)
      first_done = clock::now();
    told[step % 2] = loss_[step % 2].copy_(model_.step_loss(), weir::non_blocking);
    if (settings_.save_every > 0 && (step + 1) % settings_.save_every == 0 && step + 1 < last_step)
      keep(step + 1, model_.saved_items());
    if (step + 1 == last_step)
      tell(step);
  }
  if (last_step - first_step > 1)
    seconds_a_step_ = std::chrono::duration<double>(clock::now() - first_done).count() /
                      static_cast<double>(last_step - first_step - 1);
}

double replica::validation_loss_sum(std::int64_t& rows) {
  std::size_t const context = static_cast<std::size_t>(settings_.shape.context);
  std::size_t const places = text_.validation().size() - context;
  std::size_t const wanted = std::min<std::size_t>(places, static_cast<std::size_t>(settings_.validation_rows));
  std::size_t const stride = places / wanted;
  double sum = 0;
  rows = 0;
  for (std::size_t chunk = static_cast<std::size_t>(ranks_.rank()); chunk * static_cast<std::size_t>(rows_) < wanted;
       chunk += static_cast<std::size_t>(ranks_.size())) {
    std::size_t const first = chunk * static_cast<std::size_t>(rows_);
    int const here = static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(rows_), wanted - first));
    slot& at = slot_of(static_cast<std::int64_t>(chunk / static_cast<std::size_t>(ranks_.size())));
    at.arrived.synchronize();
    validation_batch(
        text_, first * stride, stride,
        view_batch(at.host.host<std::int32_t>(), here, settings_.shape.context, settings_.shape.vocabulary));
    send(at, here);
    weir::current_stream().wait(at.arrived);
    sum += static_cast<double>(model_.loss(split_batch(std::move(at.device), here, settings_.shape)).item<float>());
    rows += here;
  }
  return sum;
}

std::string replica::generate(int characters) {
  auto const validation = text_.validation();
  std::vector<std::uint8_t> context(validation.begin(), validation.begin() + settings_.shape.context);
  std::string written;
  for (std::uint8_t const token : context)
    written.push_back(text_.characters()[token]);
  weir::tensor const host = pinned({settings_.shape.vocabulary}, weir::float32);
  for (int i = 0; i < characters; ++i) {
    slot& at = slots_[0];
    at.arrived.synchronize();
    batch_view const into =
        view_batch(at.host.host<std::int32_t>(), 1, settings_.shape.context, settings_.shape.vocabulary);
    std::copy(context.begin(), context.end(), into.inputs.begin());
    into.targets[0] = 0;
    send(at, 1);
    weir::current_stream().wait(at.arrived);
    weir::tensor const logits = model_.logits(split_batch(std::move(at.device), 1, settings_.shape));
    weir::tensor(host).copy_(logits.view({settings_.shape.vocabulary}));

    auto const scores = host.host<float>();
    constexpr float temperature = 0.7f;
    float const top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    std::vector<double> weights;
    for (float const s : scores)
      sum += weights.emplace_back(std::exp((s - top) / temperature));
    double left = static_cast<double>(mix(settings_.seed ^ mix(static_cast<std::uint64_t>(i))) >> 11) * 0x1p-53 * sum;
    std::size_t next = 0;
    while (next + 1 < weights.size() && (left -= weights[next]) > 0)
      ++next;
    written.push_back(text_.characters()[next]);
    context.erase(context.begin());
    context.push_back(static_cast<std::uint8_t>(next));
  }
  return written;
}

std::uint64_t replica::fingerprint() {
  std::uint64_t hash = 0;
  for (float const v : save()) {
    std::uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    hash = mix(hash ^ bits);
  }
  return hash;
}

}  // namespace trainer
