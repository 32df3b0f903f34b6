// weir/pipeline.h over the ring of slots.
#include "weir/pipeline.h"

#include "peer/pipeline/batch_ring.h"
#include "streams/stream/context.h"

namespace weir {
namespace {

// A forked child has copies of locks that threads of its parent hold, or wait for: they cannot be destroyed.
std::shared_ptr<peer::batch_ring> make_ring(char const* name, pipeline_options const& with, fill_function fill,
                                            peer::write_function write, source_location at) {
  return {new peer::batch_ring(name, with, std::move(fill), std::move(write), at), [](peer::batch_ring* r) {
            if (!process_was_forked())
              delete r;
          }};
}

// Ends the ring's threads before the scope ends, also by an exception.
struct closed_at_last {
  peer::batch_ring& ring;
  ~closed_at_last() {
    if (!process_was_forked())
      ring.close();
  }
};

}  // namespace

batch_failed::batch_failed(std::uint64_t number, std::exception_ptr cause, std::string operation, std::string operands,
                           std::string remedy, source_location at, error_id id)
    : std::runtime_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id),
      number_(number),
      cause_(std::move(cause)) {}

batch::batch(std::shared_ptr<peer::batch_ring> ring, peer::batch_slot& slot, stream_ref on) noexcept
    : ring_(std::move(ring)), slot_(&slot), number_(slot.number), size_(slot.bytes), stream_(on) {}

batch& batch::operator=(batch&& other) noexcept {
  if (this == &other)
    return *this;
  give_back();
  ring_ = std::move(other.ring_);
  slot_ = other.slot_;
  number_ = other.number_;
  size_ = other.size_;
  stream_ = other.stream_;
  return *this;
}

batch::~batch() {
  give_back();
}

void batch::give_back() noexcept {
  if (ring_ && !process_was_forked())
    ring_->give_back(*slot_);
  ring_.reset();
}

peer::batch_slot& batch::slot(char const* operation, source_location at) const {
  if (!ring_)
    throw invalid_use(operation, "batch " + std::to_string(number_) + ", which was moved from",
                      "Use the batch that it was moved to", at, error_id{478});
  if (ring_->is_closed())
    throw invalid_use(operation, "batch " + std::to_string(number_) + " of a " + ring_->name() + " that has ended",
                      "Use batches while what gave them lives", at, error_id{479});
  return *slot_;
}

void* batch::data(source_location at) const {
  return slot("batch::data", at).device.data();
}

void* batch::result(source_location at) const {
  peer::batch_slot const& s = slot("batch::result", at);
  if (!ring_->has_results())
    throw invalid_use("batch::result", "a batch of a loader, which writes no results",
                      "Call run_pipeline, or copy from data() to memory of your own", at, error_id{480});
  return s.result_data();
}

void batch::set_result_size(size_t bytes, source_location at) const {
  peer::batch_slot& s = slot("batch::set_result_size", at);
  if (!ring_->has_results())
    throw invalid_use("batch::set_result_size", "a batch of a loader, which writes no results", "Call run_pipeline", at,
                      error_id{481});
  size_t const most = s.result.data() ? s.result.size() : s.device.size();
  if (bytes > most)
    throw invalid_use("batch::set_result_size",
                      std::to_string(bytes) + " B of a result that holds " + std::to_string(most) + " B",
                      "Set a larger pipeline_options::result_bytes", at, error_id{482});
  s.result_bytes = bytes;
}

loader::loader(loader_options o, fill_function fill, source_location at)
    : ring_(make_ring("loader", {.batch_bytes = o.batch_bytes, .slots = o.slots, .threads = o.threads, .on = o.on},
                      std::move(fill), nullptr, at)) {
  try {
    ring_->start();
  } catch (...) {
    ring_->close();
    throw;
  }
}

loader::~loader() {
  if (!process_was_forked())
    ring_->close();
}

std::optional<batch> loader::next(source_location at) {
  return ring_->next(std::nullopt, at);
}
std::optional<batch> loader::next(stream_ref s, source_location at) {
  return ring_->next(s, at);
}

std::uint64_t run_pipeline(pipeline_options o, fill_function fill, std::function<void(batch const&)> compute,
                           std::function<void(std::uint64_t, std::span<std::byte const>)> write, source_location at) {
  if (!compute || !write)
    fill = nullptr;  // the ring refuses an empty function
  auto const ring = make_ring("run_pipeline", o, std::move(fill), std::move(write), at);
  closed_at_last const at_last{*ring};
  ring->start();
  while (true) {
    // What compute throws is of its batch, and what next throws is of the one that did not come.
    std::uint64_t const number = ring->batches();
    try {
      auto const b = ring->next(std::nullopt, at);
      if (!b)
        break;
      try {
        compute(*b);
      } catch (...) {
        ring->end_at(number, std::current_exception());  // before b ends, so that its result is not written
      }
    } catch (...) {
      ring->end_at(number, std::current_exception());
      break;
    }
  }
  ring->wait_for_writes(at);
  return ring->batches();
}

}  // namespace weir
