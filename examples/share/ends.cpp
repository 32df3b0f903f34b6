// The writer publishes its checksum as the last item. Calls of the ring wait on the host only for the other process.
#include "examples/share/ends.h"

#include <signal.h>
#include <unistd.h>

#include <stdexcept>

#include "weir/copy.h"
#include "weir/device.h"
#include "weir/ring.h"

namespace share {
namespace {

void half_way(settings const& s, std::uint64_t round) {
  if (round != s.rounds / 2)
    return;
  if (s.meets == settings::mishap::killed)
    ::kill(::getpid(), SIGKILL);
  if (s.meets == settings::mishap::stopped)
    ::raise(SIGSTOP);
}

double since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace

outcome write(int socket, settings const& s) {
  weir::stream const work(weir::device(0));
  // The other process may still initialize its device.
  weir::ring_writer ring({socket}, {.bytes = s.bytes, .slots = s.buffers, .on = 0, .timeout = s.timeout * 10});
  checksum sum(work, 0);
  auto const began = std::chrono::steady_clock::now();
  for (std::uint64_t round = 0; round < s.rounds; ++round) {
    half_way(s, round);
    auto slot = ring.next(work);
    if (round == static_cast<std::uint64_t>(s.buffers))
      ring.set_timeout(s.timeout);  // the reader has read
    fill(work, slot.data<std::uint64_t>(), s.bytes / 8, round);
    sum.add(work, slot.data<std::uint64_t>(), s.bytes / 8, round);
    slot.publish(s.bytes);
  }
  auto const mine = sum.read(work);
  double const seconds = since(began);
  auto last = ring.next(work);
  weir::copy(work, last.data(), &mine.sum, sizeof mine.sum);
  last.publish(sizeof mine.sum);
  ring.close();
  return {mine, seconds};
}

outcome read(int socket, settings const& s) {
  weir::device const on(weir::device_count() > 1 ? 1 : 0);
  weir::stream const work(on);
  weir::ring_reader ring(socket, on, s.timeout * 10);
  checksum sum(work, on);
  std::chrono::steady_clock::time_point began;
  for (std::uint64_t round = 0; round < s.rounds; ++round) {
    half_way(s, round);
    auto const item = ring.take(work);
    if (!item)
      throw std::runtime_error("the ring has ended too early");
    if (round == 0)
      began = std::chrono::steady_clock::now(), ring.set_timeout(s.timeout);
    sum.add(work, item->data<std::uint64_t>(), item->size() / 8, round);
  }
  auto const mine = sum.read(work);
  double const seconds = since(began);
  if (mine.wrong > 0)
    throw std::runtime_error(std::to_string(mine.wrong) + " words are wrong");
  std::uint64_t its_sum = 0;
  if (auto const last = ring.take(work))
    weir::copy(weir::default_stream(0), &its_sum, last->data(), last->size());
  if (its_sum != mine.sum || ring.take(work))
    throw std::runtime_error("the checksums differ");
  return {mine, seconds};
}

}  // namespace share
