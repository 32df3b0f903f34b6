// Workers fill the slots in turn. A slot is refilled once the copy engine has read it.
#include "examples/seeds/data_loader.h"

namespace seeds {

data_loader::data_loader(options o, std::function<void(std::int64_t, std::span<float>)> make)
    : with_(o),
      batches_((o.samples + o.batch - 1) / o.batch),
      make_(std::move(make)),
      runtime_(weir::runtime::current()),
      slots_(static_cast<std::size_t>(o.workers + o.prefetch)) {
  for (slot& s : slots_)
    s.at = weir::empty({o.batch, o.width}, {.on = weir::cpu, .kind = weir::memory_kind::pinned});
  for (int i = 0; i < o.workers; ++i)
    workers_.emplace_back([this] { work(); });
}

data_loader::~data_loader() {
  {
    std::lock_guard const in(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& w : workers_)
    w.join();
}

void data_loader::work() {
  weir::runtime_guard const here(runtime_);
  std::unique_lock in(mutex_);
  try {
    while (true) {
      changed_.wait(in, [this] {
        return ends_ || made_ == batches_ || made_ - sent_ < static_cast<std::int64_t>(slots_.size());
      });
      if (ends_ || made_ == batches_)
        return;
      std::int64_t const batch = made_++;
      slot& mine = slots_[static_cast<std::size_t>(batch) % slots_.size()];
      in.unlock();
      mine.read.synchronize();  // the copy of the slot's previous batch
      std::span<float> const all = mine.at.host<float>();
      auto const width = static_cast<std::size_t>(with_.width);
      for (std::int64_t row = 0; row < rows(batch); ++row)
        make_(batch * with_.batch + row, all.subspan(static_cast<std::size_t>(row) * width, width));
      in.lock();
      mine.ready = true;
      changed_.notify_all();
    }
  } catch (...) {
    if (!in.owns_lock())
      in.lock();
    failed_ = std::current_exception();
    changed_.notify_all();
  }
}

std::optional<weir::tensor> data_loader::send() {
  if (sent_ == batches_)
    return std::nullopt;  // only this thread writes sent_
  slot& next = slots_[static_cast<std::size_t>(sent_) % slots_.size()];
  {
    std::unique_lock in(mutex_);
    changed_.wait(in, [&] { return next.ready || failed_; });
    if (!next.ready)
      std::rethrow_exception(failed_);
  }
  weir::stream_guard const on(copies_);
  weir::tensor t = weir::empty({rows(sent_), with_.width});
  next.read = ahead_there_ = t.copy_(next.at.slice(0, 0, rows(sent_)), weir::non_blocking);
  {
    std::lock_guard const in(mutex_);
    next.ready = false;
    ++sent_;
  }
  changed_.notify_all();
  return t;
}

std::optional<weir::tensor> data_loader::next() {
  if (!ahead_)
    ahead_ = send();
  if (!ahead_)
    return std::nullopt;
  std::optional<weir::tensor> const now = std::exchange(ahead_, std::nullopt);
  weir::current_stream().wait(ahead_there_);
  now->record_stream(weir::current_stream());
  ahead_ = send();  // the copy overlaps the consumer's work on `now`
  return now;
}

}  // namespace seeds
