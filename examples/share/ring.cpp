// Both ends of the ring. Each enqueues the next round before it waits for the previous one, so both devices
// have work while a message is in transit.
#include "examples/share/ring.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "weir/device.h"
#include "weir/share.h"

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
  weir::share_channel line(socket, s.timeout);
  weir::stream const work(weir::device(0));
  std::vector<weir::exportable_buffer> ring;
  for (int i = 0; i < s.buffers; ++i) {
    ring.emplace_back(s.bytes, 0);
    ring.back().record_stream(work);
    line.send(ring.back(), work);
  }
  line.set_timeout(s.timeout * 10);  // the other process may still initialize its device
  checksum sum(work, 0);
  weir::event written[2];  // of even rounds, of odd ones
  auto const began = std::chrono::steady_clock::now();
  for (std::uint64_t round = 0; round < s.rounds; ++round) {
    half_way(s, round);
    if (round >= ring.size())
      (void)line.wait(), line.set_timeout(s.timeout);  // the reader has read it
    auto* const words = ring[round % ring.size()].data<std::uint64_t>();
    fill(work, words, s.bytes / 8, round);
    sum.add(work, words, s.bytes / 8, round);
    if (round > 0)
      line.signal(round - 1, written[(round - 1) % 2]);
    written[round % 2].record(work);
  }
  line.signal(s.rounds - 1, work);
  auto const mine = sum.read(work);
  double const seconds = since(began);
  line.signal(mine.sum, work);
  for (std::uint64_t left = std::min<std::uint64_t>(s.rounds, ring.size()); left > 0; --left)
    (void)line.wait();
  return {mine, seconds};
}

outcome read(int socket, settings const& s) {
  weir::device const on(weir::device_count() > 1 ? 1 : 0);
  weir::share_channel line(socket, s.timeout);
  weir::stream const work(on);
  std::vector<weir::imported_buffer> ring;
  line.set_timeout(s.timeout * 10);  // the other process may still initialize its device
  for (int i = 0; i < s.buffers; ++i)
    ring.push_back(line.receive(on));
  line.set_timeout(s.timeout);
  checksum sum(work, on);
  weir::event was_read[2];
  std::chrono::steady_clock::time_point began;
  for (std::uint64_t round = 0; round < s.rounds; ++round) {
    half_way(s, round);
    if (line.wait() != round)
      throw std::runtime_error("a round came out of turn");
    if (round == 0)
      began = std::chrono::steady_clock::now();
    sum.add(work, ring[round % ring.size()].data<std::uint64_t>(), s.bytes / 8, round);
    if (round > 0)
      line.signal(round - 1, was_read[(round - 1) % 2]);
    was_read[round % 2].record(work);
  }
  line.signal(s.rounds - 1, work);
  auto const mine = sum.read(work);
  double const seconds = since(began);
  if (mine.wrong > 0)
    throw std::runtime_error(std::to_string(mine.wrong) + " words are wrong");
  if (line.wait() != mine.sum)
    throw std::runtime_error("the checksums differ");
  for (auto& b : ring)
    b.release(work);
  return {mine, seconds};
}

}  // namespace share
