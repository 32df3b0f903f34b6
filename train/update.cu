// Kernels of optimizers, for GPUs and simulated devices.
// Threads: any.
#include "train/update.h"

#include <algorithm>
#include <cmath>

#include "weir/half.h"

namespace weir::train {
namespace {

constexpr std::int64_t most_norm_threads = 1 << 16;

// By squaring: a GPU and a host round alike.
WEIR_HOST_DEVICE double power(double base, std::int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base)
    if (n & 1)
      result *= base;
  return result;
}

// Calls f with a null pointer of the gradient's C++ type. A: of the parameter's arithmetic
template <class A, class F>
WEIR_HOST_DEVICE void with_gradient(dtype type, F const& f) {
  if (type == float16)
    f(static_cast<float16_t const*>(nullptr));
  else if (type == bfloat16)
    f(static_cast<bfloat16_t const*>(nullptr));
  else if (type == float32)
    f(static_cast<float const*>(nullptr));
  else if constexpr (sizeof(A) == sizeof(double))
    f(static_cast<double const*>(nullptr));
}

WEIR_HOST_DEVICE inline float root_of(float x) {
  return ::sqrtf(x);
}
WEIR_HOST_DEVICE inline double root_of(double x) {
  return ::sqrt(x);
}

enum class formula { adamw, momentum, plain };

constexpr int in_pack = 4;
template <class T>
struct alignas(in_pack * sizeof(T)) pack {  // one load of a GPU's memory
  T of[in_pack];
};
template <class T>
WEIR_HOST_DEVICE bool is_of_packs(T const* at) {
  return reinterpret_cast<std::uintptr_t>(at) % alignof(pack<T>) == 0;  // also of null
}
template <class T>
WEIR_HOST_DEVICE pack<T> packed(T const* at, std::int64_t k) {
  return *reinterpret_cast<pack<T> const*>(at + k);
}
template <class T>
WEIR_HOST_DEVICE void put_pack(T* at, std::int64_t k, pack<T> const& p) {
  *reinterpret_cast<pack<T>*>(at + k) = p;
}

// Updates elements of one row. A: of the arithmetic. G: of the gradient
template <formula By, class A, class G, bool Rounds>
struct updating {
  A* value;
  A* first_state;
  A* second_state;
  G const* gradient;
  void* rounded;
  bool to_float16;
  A rate, decay, shrink, factor;
  A keep_mean, add_mean, keep_square, add_square, size, root, least;  // adamw
  A momentum;                                                         // sgd
  bool nesterov;

  WEIR_HOST_DEVICE updating(row const& r, control const& c, rule const& how)
      : value(static_cast<A*>(r.value)),
        first_state(static_cast<A*>(r.first)),
        second_state(static_cast<A*>(r.second)),
        gradient(static_cast<G const*>(r.gradient)),
        rounded(r.rounded),
        to_float16(r.of_rounded == float16),
        rate(static_cast<A>(c.rate * r.rate)),
        decay(static_cast<A>(how.decay * r.decay)),
        shrink(rate * decay),
        factor(static_cast<A>(c.factor)),
        keep_mean(static_cast<A>(how.beta1)),
        add_mean(static_cast<A>(1 - how.beta1)),
        keep_square(static_cast<A>(how.beta2)),
        add_square(static_cast<A>(1 - how.beta2)),
        size(static_cast<A>(c.size * r.rate)),
        root(static_cast<A>(c.root)),
        least(static_cast<A>(how.epsilon)),
        momentum(static_cast<A>(how.momentum)),
        nesterov(how.nesterov) {}

  struct element {
    A g, p, first, second;
  };
  WEIR_HOST_DEVICE element load(std::int64_t k) const {
    return {static_cast<A>(gradient[k]) * factor, value[k], By == formula::plain ? A(0) : first_state[k],
            By == formula::adamw ? second_state[k] : A(0)};
  }
  WEIR_HOST_DEVICE void store(std::int64_t k, element const& e) const {
    value[k] = e.p;
    if constexpr (By != formula::plain)
      first_state[k] = e.first;
    if constexpr (By == formula::adamw)
      second_state[k] = e.second;
    if constexpr (Rounds) {
      if (to_float16)
        static_cast<float16_t*>(rounded)[k] = float16_t(static_cast<float>(e.p));
      else
        static_cast<bfloat16_t*>(rounded)[k] = bfloat16_t(static_cast<float>(e.p));
    }
  }
  struct elements {
    element of[in_pack];
  };
  WEIR_HOST_DEVICE bool has_packs() const {
    return is_of_packs(value) && is_of_packs(first_state) && is_of_packs(second_state) && is_of_packs(gradient) &&
           is_of_packs(static_cast<float16_t const*>(rounded));
  }
  WEIR_HOST_DEVICE elements load_pack(std::int64_t k) const {
    elements e;
    auto const g = packed(gradient, k);
    auto const p = packed(value, k);
    pack<A> first{}, second{};
    if constexpr (By != formula::plain)
      first = packed(first_state, k);
    if constexpr (By == formula::adamw)
      second = packed(second_state, k);
    for (int j = 0; j < in_pack; ++j)
      e.of[j] = {static_cast<A>(g.of[j]) * factor, p.of[j], first.of[j], second.of[j]};
    return e;
  }
  WEIR_HOST_DEVICE void store_pack(std::int64_t k, elements const& e) const {
    pack<A> p, first, second;
    for (int j = 0; j < in_pack; ++j)
      p.of[j] = e.of[j].p, first.of[j] = e.of[j].first, second.of[j] = e.of[j].second;
    put_pack(value, k, p);
    if constexpr (By != formula::plain)
      put_pack(first_state, k, first);
    if constexpr (By == formula::adamw)
      put_pack(second_state, k, second);
    if constexpr (Rounds) {
      if (to_float16)
        round_pack(static_cast<float16_t*>(rounded), k, p);
      else
        round_pack(static_cast<bfloat16_t*>(rounded), k, p);
    }
  }
  template <class R>
  WEIR_HOST_DEVICE static void round_pack(R* to, std::int64_t k, pack<A> const& p) {
    pack<R> r;
    for (int j = 0; j < in_pack; ++j)
      r.of[j] = R(static_cast<float>(p.of[j]));
    put_pack(to, k, r);
  }
  WEIR_HOST_DEVICE void step(element& e) const {
    if constexpr (By == formula::adamw) {
      e.first = keep_mean * e.first + add_mean * e.g;
      e.second = keep_square * e.second + add_square * e.g * e.g;
      // Without decay an infinite parameter stays so: 0 times it is no number.
      if (shrink != 0)
        e.p -= shrink * e.p;
      e.p -= size * e.first / (root_of(e.second) * root + least);
    } else {
      A const g = decay != 0 ? e.g + decay * e.p : e.g;
      if constexpr (By == formula::momentum)
        e.first = momentum * e.first + g;
      A const velocity = By == formula::plain ? g : nesterov ? g + momentum * e.first : e.first;
      e.p -= rate * velocity;
    }
  }
  WEIR_HOST_DEVICE void step(elements& e) const {
    for (int j = 0; j < in_pack; ++j)
      step(e.of[j]);
  }
  // This thread's share of the elements from `first` to `last`. Both packs are loaded before the first is stored: they
  // are under way together.
  WEIR_HOST_DEVICE void operator()(std::int64_t first, std::int64_t last, std::int64_t lane,
                                   std::int64_t threads) const {
    if (has_packs()) {
      std::int64_t const stride = threads * in_pack, end = first + (last - first) / in_pack * in_pack;
      std::int64_t k = first + lane * in_pack;
      for (; k + stride < end; k += 2 * stride) {
        elements a = load_pack(k), b = load_pack(k + stride);
        step(a);
        step(b);
        store_pack(k, a);
        store_pack(k + stride, b);
      }
      if (k < end) {
        elements a = load_pack(k);
        step(a);
        store_pack(k, a);
      }
      first = end;
    }
    for (std::int64_t k = first + lane; k < last; k += threads) {
      element e = load(k);
      step(e);
      store(k, e);
    }
  }
};

template <class A, bool Rounds>
WEIR_HOST_DEVICE void update_row(row const& r, control const& c, rule const& how, std::int64_t first, std::int64_t last,
                                 std::int64_t lane, std::int64_t threads) {
  with_gradient<A>(r.of_gradient, [&]<class G>(G const*) {
    if (how.adaptive)
      updating<formula::adamw, A, G, Rounds>(r, c, how)(first, last, lane, threads);
    else if (r.first)
      updating<formula::momentum, A, G, Rounds>(r, c, how)(first, last, lane, threads);
    else
      updating<formula::plain, A, G, Rounds>(r, c, how)(first, last, lane, threads);
  });
}

struct table {
  row const* rows;
  std::int32_t const* row_of;
  // Returns: the row of chunk c. first, last: its elements
  WEIR_HOST_DEVICE row const& of(std::int64_t c, std::int64_t& first, std::int64_t& last) const {
    row const& r = rows[row_of[c]];
    first = (c - r.first_chunk) * chunk;
    last = first + chunk < r.count ? first + chunk : r.count;
    return r;
  }
};

struct update_all {
  table in;
  control const* at;
  rule how;
  std::int64_t begin;  // the first chunk
  WEIR_HOST_DEVICE void part(std::int64_t c, std::int64_t lane, std::int64_t stride) const {
    if (at->skips)
      return;
    std::int64_t first, last;
    row const& r = in.of(begin + c, first, last);
    if (r.type == float64)
      update_row<double, false>(r, *at, how, first, last, lane, stride);
    else if (r.rounded)
      update_row<float, true>(r, *at, how, first, last, lane, stride);
    else
      update_row<float, false>(r, *at, how, first, last, lane, stride);
  }
};

struct read_all {  // of parameters that have a master copy
  table in;
  WEIR_HOST_DEVICE void part(std::int64_t c, std::int64_t lane, std::int64_t stride) const {
    std::int64_t first, last;
    row const& r = in.of(c, first, last);
    if (!r.rounded)
      return;
    auto* const to = static_cast<float*>(r.value);
    for (std::int64_t k = first + lane; k < last; k += stride)
      to[k] = r.of_rounded == float16 ? static_cast<float>(static_cast<float16_t const*>(r.rounded)[k])
                                      : static_cast<float>(static_cast<bfloat16_t const*>(r.rounded)[k]);
  }
};

template <class Work>
struct by_threads {  // of a GPU: neighbours read neighbouring elements
  Work work;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    auto const at = static_cast<std::int64_t>(i);
    work.part(at / lanes, at % lanes, lanes);
  }
};
template <class Work>
struct by_chunks {  // of a host
  Work work;
  std::int64_t chunks;
  void operator()() const {
    for (std::int64_t c = 0; c < chunks; ++c)
      work.part(c, 0, 1);
  }
};
template <class Work>
void run(stream_ref s, memory_uses u, std::int64_t chunks, Work work, source_location at) {
  launch(
      s, u,
      [&](CUstream_st* native) {
        detail::loop_on_gpu(s, native, static_cast<size_t>(chunks * lanes), by_threads<Work>{work}, at);
      },
      by_chunks<Work>{work, chunks}, at);
}

struct squares {  // thread i: of chunk i / lanes, and of those that follow at the stride of all threads
  table in;
  double* sums;
  std::int64_t chunks, threads;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    double total = 0;
    for (auto t = static_cast<std::int64_t>(i); t < chunks * lanes; t += threads) {
      std::int64_t first, last;
      row const& r = in.of(t / lanes, first, last);
      if (!r.in_norm)
        continue;
      first += t % lanes;
      with_gradient<double>(r.of_gradient, [&]<class G>(G const*) {
        auto const* const from = static_cast<G const*>(r.gradient);
        for (std::int64_t k = first; k < last; k += lanes) {
          double const x = static_cast<double>(from[k]);
          total += x * x;
        }
      });
    }
    sums[i] = total;
  }
};

struct beginning {
  control* at;
  scale_state* scale;
  rule how;
  growth grows;
  double const* sums;  // few; null: no norm

  // Doubling ends at `most`, halving at 1.
  WEIR_HOST_DEVICE void next_scale(bool finite) const {
    if (!finite) {
      scale->scale = scale->scale > 2 ? scale->scale / 2 : 1;
      scale->good_steps = 0;
    } else if ((scale->good_steps += 1) >= grows.steps_to_grow) {
      scale->good_steps = 0;
      if (scale->scale * 2 <= grows.most)
        scale->scale *= 2;
    }
  }
  WEIR_HOST_DEVICE double norm_of_sums() const {
    double total = 0;
    for (std::int64_t k = 0; k < peer::few_sums; ++k)
      total += sums[k];
    return ::sqrt(total);
  }
  WEIR_HOST_DEVICE void operator()(size_t) const {
    double const by = scale ? static_cast<double>(scale->scale) : 1;
    double const norm = sums ? norm_of_sums() / by : 0;
    // A number minus itself is 0 unless it is infinite or none.
    bool const finite = norm - norm == 0;
    at->norm = static_cast<float>(norm);
    at->skips = !finite;
    if (scale)
      next_scale(finite);
    if (!finite) {
      at->skipped += 1;
      return;
    }
    at->steps += 1;
    at->factor = (norm > how.max_norm ? how.max_norm / norm : 1) / by;
    at->size = at->rate / (1 - power(how.beta1, at->steps));
    at->root = 1 / ::sqrt(1 - power(how.beta2, at->steps));
  }
};

template <class T>
struct putting {
  T* to;
  T value;
  WEIR_HOST_DEVICE void operator()(size_t) const { *to = value; }
};

}  // namespace

std::int64_t kernels::norm_threads(std::int64_t chunks) noexcept {
  return std::clamp(chunks * lanes, peer::few_sums, most_norm_threads);
}

void kernels::add_squares(stream_ref s, source_location at) const {
  std::int64_t const threads = norm_threads(chunks);
  parallel_for(s, static_cast<size_t>(threads), *to_add_squares, squares{{rows, row_of}, sums, chunks, threads}, at);
}

void kernels::add_few(stream_ref s, source_location at) const {
  peer::norm_kernels{sums, norm_threads(chunks), nullptr, nullptr}.few(s, at);
}

void kernels::begin(stream_ref s, source_location at) const {
  parallel_for(s, 1,
               {updates(numbers, sizeof *numbers), updates(scale, scale ? sizeof *scale : 0),
                reads(sums, sums ? peer::few_sums * sizeof *sums : 0)},
               beginning{numbers, scale, how, grows, sums}, at);
}

void kernels::update(stream_ref s, std::int64_t first, std::int64_t count, memory_uses to_update,
                     source_location at) const {
  run(s, to_update, count, update_all{{rows, row_of}, numbers, how, first}, at);
}

void kernels::read_parameters(stream_ref s, source_location at) const {
  run(s, *to_read, chunks, read_all{{rows, row_of}}, at);
}

void put(stream_ref s, double* to, double value, source_location at) {
  parallel_for(s, 1, {writes(to, sizeof *to)}, putting<double>{to, value}, at);
}
void put(stream_ref s, std::int64_t* to, std::int64_t value, source_location at) {
  parallel_for(s, 1, {writes(to, sizeof *to)}, putting<std::int64_t>{to, value}, at);
}

}  // namespace weir::train
