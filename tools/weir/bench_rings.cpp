// Collective rows of weir bench copy: broadcast, scatter and gather by a communicator, by NCCL and by
// hand-written loops.
// Threads: one per rank.
#include <algorithm>
#include <exception>

#include "bench_copy.h"
#include "peer/collective/group.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "weir/collective.h"
#include "weir/device.h"

namespace weir::tool {

// One communicator and maximum-size buffers, shared by all rows: peers get access only once.
struct rings {
  explicit rings(rig& r) : bytes(r.broadcast) {
    std::vector<device> devices;
    for (int i = 0; i < r.devices; ++i) {
      devices.emplace_back(i);
      ours.emplace_back(bytes, buffer_options{.on = device(i)});
      theirs.push_back(r.raw.on_device(i, bytes));
      for (int k = 0; k < 2; ++k)
        lanes.emplace_back(device(i));
    }
    for (int i = 0; i < r.devices; ++i) {
      for (int j = 0; j < i; ++j)
        r.raw.open_peer(j, i);
    }
    try {
      ranks = communicator::create_all(devices);
    } catch (not_supported const& e) {
      why_not = std::string("; ") + e.what();
    }
  }

  using collective = peer::collective;
  double receivers() const { return static_cast<double>(ours.size() - 1); }
  stream const& lane(size_t device, size_t k = 0) const { return lanes[2 * device + k % 2]; }

  // Runs `large_copies` collectives. Returns: seconds from the first rank's start to the last rank's end.
  double once(collective what, size_t part) {
    std::vector<std::int64_t> began(ranks.size()), ended(ranks.size());
    std::vector<std::exception_ptr> failed(ranks.size());
    auto const of_rank = [&](size_t i) {
      try {
        device_guard const on(ranks[i].device());
        auto const n = static_cast<std::int64_t>(part);
        std::byte* const mine = ours[i].data<std::byte>();
        // In place: the root's part lies at its position in the whole.
        device_span const whole{mine, n * ranks[0].size(), uint8}, at_root{mine, n, uint8};
        ranks[i].barrier();
        began[i] = base::now_ns();
        stamp last;
        for (int k = 0; k < large_copies; ++k) {
          switch (what) {
            case collective::scatter: last = ranks[i].scatter(at_root, whole, 0); break;
            case collective::gather: last = ranks[i].gather(whole, at_root, 0); break;
            default: last = ranks[i].broadcast(at_root, 0); break;
          }
        }
        last.synchronize();
        ended[i] = base::now_ns();
      } catch (...) {
        failed[i] = std::current_exception();
        ranks[i].abort();
      }
    };
    std::vector<base::thread> others;
    for (size_t i = 1; i < ranks.size(); ++i)
      others.emplace_back([&, i] { of_rank(i); });
    of_rank(0);
    for (auto& one : others)
      one.join();
    for (auto const& one : failed) {
      if (one)
        std::rethrow_exception(one);
    }
    return static_cast<double>(*std::max_element(ended.begin(), ended.end()) -
                               *std::min_element(began.begin(), began.end())) *
           1e-9;
  }

  // Returns: a function that measures GB/s summed over the receivers
  std::function<double()> by(collective what, size_t part) {
    if (ranks.empty())
      return {};
    return [this, what, part] {
      double const seconds = once(what, part);
      return static_cast<double>(part) * large_copies * receivers() / seconds * 1e-9;
    };
  }

  // The hand-written chain, with `streams` streams per hop.
  std::function<double()> by_hand(rig& r, size_t part, size_t chunk, size_t streams) {
    return [this, &r, part, chunk, streams] {
      size_t const hops = ours.size() - 1;
      return rate(
          part,
          [&] {
            for (int round = 0; round < large_copies; ++round) {
              for (size_t k = 0; k + 1 < hops; ++k) {  // waits until the previous round's data was forwarded
                for (size_t s = 0; s < streams; ++s)
                  r.raw.wait(lane(k, s), lane(k + 1, s));
              }
              for (size_t offset = 0, c = 0; offset < part; offset += chunk, ++c) {
                for (size_t k = 0; k < hops; ++k) {
                  size_t const s = c % streams;
                  if (k > 0)
                    r.raw.wait(lane(k, s), lane(k - 1, s));
                  hand(r, lane(k, s), k + 1, k, offset, std::min(chunk, part - offset));
                }
              }
            }
            wait_for_all(r);
          },
          receivers());
    };
  }

  // Concurrent copies between the first device and each other one.
  std::function<double()> side_by_side(rig& r, size_t part, bool to_root) {
    return [this, &r, part, to_root] {
      return rate(
          part,
          [&] {
            for (int round = 0; round < large_copies; ++round) {
              for (size_t i = 1; i < ours.size(); ++i) {
                stream const& on = to_root ? lane(i) : extra(i);
                r.raw.prepare(on);
                std::byte* const of_root = static_cast<std::byte*>(theirs[0]->data()) + i * part;
                if (to_root)
                  r.raw.copy_peer(of_root, 0, theirs[i]->data(), static_cast<int>(i), part);
                else
                  r.raw.copy_peer(theirs[i]->data(), static_cast<int>(i), of_root, 0, part);
              }
            }
            wait_for_all(r);
            for (stream const& one : extras)
              r.raw.prepare(one), r.raw.synchronize();
          },
          receivers());
    };
  }

  size_t const bytes;
  std::vector<buffer> ours;
  std::vector<std::unique_ptr<raw_calls::memory>> theirs;
  std::vector<stream> lanes, extras;  // two per device; one on the first device per other device
  std::vector<communicator> ranks;
  std::string why_not;

 private:
  void hand(rig& r, stream const& on, size_t to, size_t from, size_t offset, size_t n) {
    r.raw.prepare(on);
    r.raw.copy_peer(static_cast<std::byte*>(theirs[to]->data()) + offset, static_cast<int>(to),
                    static_cast<std::byte*>(theirs[from]->data()) + offset, static_cast<int>(from), n);
  }
  stream const& extra(size_t i) {
    while (extras.size() < ours.size())
      extras.emplace_back(device(0));
    return extras[i];
  }
  void wait_for_all(rig& r) {
    for (stream const& one : lanes)
      r.raw.prepare(one), r.raw.synchronize();
  }
};

namespace {

rings& shared(rig& r) {
  if (!r.shared)
    r.shared = std::make_shared<rings>(r);
  return *r.shared;
}

using collective = peer::collective;
constexpr size_t chunks_by_hand = 16;

// Makes a row that needs at least two devices.
maker with_others(std::string name, std::string note, std::function<void(rig&, rings&, row&)> make) {
  return [=](rig& r) -> std::optional<row> {
    if (r.devices < 2)
      return {};
    rings& all = shared(r);
    row out{name, all.bytes, measure::rate};
    out.note = note + all.why_not;
    make(r, all, out);
    return out;
  };
}

}  // namespace

std::vector<std::pair<std::string, maker>> ring_rows() {
  std::vector<std::pair<std::string, maker>> rows;
  auto const add = [&](std::string name, std::string note, std::function<void(rig&, rings&, row&)> make) {
    rows.emplace_back(name, with_others(name, std::move(note), std::move(make)));
  };
  add("broadcast", "gpu:0 to all others, summed over receivers; raw: a chain by hand",
      [](rig& r, rings& all, row& out) {
        out.weir = all.by(collective::broadcast, all.bytes);
        out.raw = all.by_hand(r, all.bytes, std::max<size_t>(1, all.bytes / chunks_by_hand), 1);
      });
  for (bool const gathers : {false, true}) {
    collective const what = gathers ? collective::gather : collective::scatter;
    add(gathers ? "gather" : "scatter", "a part of each other's; raw: copies by hand, side by side",
        [=](rig& r, rings& all, row& out) {
          out.bytes = all.bytes / all.ours.size();
          out.weir = all.by(what, out.bytes);
          out.raw = all.side_by_side(r, out.bytes, gathers);
        });
  }
  return rows;
}

}  // namespace weir::tool
