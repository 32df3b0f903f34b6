// Ranks for tests: a thread a rank, elements of every type, and a plain computation of each collective.
// Threads: as each says.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/memory.h"
#include "weir/runtime.h"

namespace weir::test {

inline int ranks_here() {
  return std::min(4, device_count());
}

inline constexpr dtype reducible_types[] = {float32, float64, float16, bfloat16, int8, uint8, int32, int64};
inline constexpr reduce_op all_reductions[] = {reduce_op::sum, reduce_op::average, reduce_op::min, reduce_op::max};

// Exact for whole numbers of up to 8 bits, and for their halves and quarters.
inline void encode(dtype type, double value, std::byte* at) {
  auto const put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (type) {
    case float32: return put(static_cast<float>(value));
    case float64: return put(value);
    case int8: return put(static_cast<std::int8_t>(value));
    case uint8:
    case boolean: return put(static_cast<std::uint8_t>(value));
    case int16: return put(static_cast<std::int16_t>(value));
    case int32: return put(static_cast<std::int32_t>(value));
    case int64: return put(static_cast<std::int64_t>(value));
    case bfloat16:
      return put(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case float16: {
      if (value == 0)
        return put(std::uint16_t{0});
      std::uint32_t const bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      return put(static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | ((bits & 0x7fffffffu) - (112u << 23)) >> 13));
    }
  }
}
inline double decode(dtype type, std::byte const* at) {
  auto const get = [&]<class T>(T v) {
    std::memcpy(&v, at, sizeof v);
    return v;
  };
  switch (type) {
    case float32: return get(float{});
    case float64: return get(double{});
    case int8: return get(std::int8_t{});
    case uint8:
    case boolean: return get(std::uint8_t{});
    case int16: return get(std::int16_t{});
    case int32: return get(std::int32_t{});
    case int64: return static_cast<double>(get(std::int64_t{}));
    case bfloat16: return std::bit_cast<float>(static_cast<std::uint32_t>(get(std::uint16_t{})) << 16);
    case float16: {
      std::uint32_t const bits = get(std::uint16_t{});
      if ((bits & 0x7fffu) == 0)
        return 0;
      return std::bit_cast<float>((bits & 0x8000u) << 16 | (((bits & 0x7fffu) << 13) + (112u << 23)));
    }
  }
  return 0;
}

using elements = std::vector<std::byte>;
inline elements encode(dtype type, std::vector<double> const& values) {
  elements e(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i)
    encode(type, values[i], e.data() + i * size_of(type));
  return e;
}

// Element i of rank `rank`: small whole numbers, so that sums of a few are exact in every type.
inline double brought(dtype type, int rank, std::int64_t i) {
  double const v = static_cast<double>((i * 7 + rank * 5 + i / 13) % 20);
  return type == uint8 || type == boolean ? v : v - 9;
}
inline double reduced(dtype type, reduce_op how, int ranks, std::int64_t i) {
  double r = brought(type, 0, i);
  for (int k = 1; k < ranks; ++k) {
    double const v = brought(type, k, i);
    r = how == reduce_op::min ? std::min(r, v) : how == reduce_op::max ? std::max(r, v) : r + v;
  }
  if (how != reduce_op::average)
    return r;
  bool const whole = type == int8 || type == uint8 || type == int32 || type == int64;
  return whole ? static_cast<double>(static_cast<std::int64_t>(r) / ranks) : r / ranks;
}
inline std::vector<double> values_of(std::int64_t count, auto value_at) {
  std::vector<double> v(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    v[static_cast<std::size_t>(i)] = value_at(i);
  return v;
}

inline buffer to_device(elements const& host) {
  buffer b(host.size());
  copy(b.data(), host.data(), host.size());
  return b;
}
inline elements to_host(void const* at, std::size_t bytes) {
  elements e(bytes);
  copy(e.data(), at, bytes);
  return e;
}

inline std::vector<device> first_devices(int n) {
  std::vector<device> d;
  for (int i = 0; i < n; ++i)
    d.push_back(device(i));
  return d;
}

// Runs body(rank's communicator) on a thread for each rank, with its device current. Rethrows the first
// exception.
template <class Body>
void on_each(runtime& machine, std::vector<communicator>& ranks, Body body) {
  std::vector<std::exception_ptr> failures(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        runtime_guard const in(machine);
        device_guard const on(ranks[i].device());
        body(ranks[i]);
      } catch (...) {
        failures[i] = std::current_exception();
        ranks[i].abort();  // the others may wait for this rank
      }
    });
  }
  for (auto& t : threads)
    t.join();
  for (auto const& f : failures) {
    if (f)
      std::rethrow_exception(f);
  }
}

inline void pause_at_random(std::mt19937& random) {
  if (random() % 3 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

// Returns: the text of a weir error of kind E, "" if nothing was thrown.
template <class E, class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (E const& e) {
    return e.what();
  }
  return "";
}

// Ranks of a simulated machine: one thread arranges their order, for no call waits for other ranks.
class sim_ranks : public testing::Test {
 protected:
  explicit sim_ranks(int ranks) : ranks_(communicator::create_all(first_devices(ranks))) {}
  runtime machine_{simulated{.devices = 3, .memory = 1_GiB}};
  runtime_guard in_{machine_};
  std::vector<communicator> ranks_;

  static buffer on(int rank, double value) {  // rank r is on device r
    device_guard const at(rank);
    return to_device(encode(int32, {value, value + 1, value + 2}));
  }
  static elements read(int rank, buffer const& b) {
    device_guard const at(rank);
    return to_host(b.data(), b.size());
  }
};

}  // namespace weir::test
