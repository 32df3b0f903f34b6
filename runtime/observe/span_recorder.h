// Spans: what threads and streams did, by time. Off by default; then a bounded ring of the newest.
// Threads: any. One lock, held briefly at a span's end.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "weir/types.h"

namespace weir::observe {

struct span {
  enum class on : std::uint8_t { thread, stream } where = on::thread;
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;  // base::now_ns()
  std::uint64_t runtime = 0;              // of a stream
  int device = -1;                        // of a stream
  std::uint64_t number = 0;               // of the thread or the stream
  std::uint64_t link = 0;                 // a call and its work on a stream share it; 0: none
  std::size_t bytes = 0;
  std::uint64_t stream = 0;  // of a call: the stream of its work; of a wait: the stream waited for
  source_location at{nullptr, nullptr, 0};
};

class span_recorder {
 public:
  static span_recorder& process() noexcept;  // never destroyed
  static bool on() noexcept { return on_.on(); }

  void start(std::size_t spans);
  void stop() noexcept { on_.set(false); }
  void add(span) noexcept;
  std::vector<span> spans() const;  // oldest end first
  std::uint64_t new_link() noexcept { return links_.fetch_add(1) + 1; }
  std::uint64_t turn() const noexcept { return turn_.load(); }  // count of starts: earlier spans are dropped

 private:
  inline static constinit base::flag on_;
  mutable base::mutex lock_;
  std::vector<span> ring_;  // under lock_, like the next two
  std::size_t most_ = 0, next_ = 0;
  base::atomic<std::uint64_t> links_{0}, turn_{0};
};

// Records what this thread does while it exists. A call whose next enclosing span is a call of the same name is a part
// of it: it has no span, and shares the link. Costs a load and a branch while recording is off.
class [[nodiscard]] host_span {
 public:
  host_span(std::string_view name, source_location at, std::size_t bytes = 0, std::uint64_t stream = 0) noexcept {
    if (span_recorder::on()) [[unlikely]]
      begin(name, at, bytes, stream);
  }
  ~host_span() {
    if (open_) [[unlikely]]
      end();
  }
  host_span(host_span const&) = delete;
  std::uint64_t link() const noexcept { return open_ ? open_->link : within_; }

 private:
  void begin(std::string_view, source_location, std::size_t bytes, std::uint64_t stream) noexcept;
  void end() noexcept;
  std::unique_ptr<span> open_;
  span* around_ = nullptr;    // the next enclosing one
  std::uint64_t within_ = 0;  // link of the enclosing call
};

}  // namespace weir::observe
