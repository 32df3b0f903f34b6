// The registry behind weir/stream_of.h: one external_stream for each handle that an adaptor was given.
// Threads: any.
#include "weir/stream_of.h"

#include <map>
#include <memory>
#include <utility>

#include "runtime/base/sync.h"
#include "streams/stream/context.h"

namespace weir {
namespace {

class streams_by_handle {  // a part of the runtime
 public:
  explicit streams_by_handle(runtime::impl& r) { r.part<clock::clocks>(); }  // which outlives what is registered there
  stream_ref of(int device, CUstream_st* handle, source_location at) {
    auto const all = all_.lock();
    if (auto const found = all->find({device, handle}); found != all->end()) return *found->second;
    auto made = std::make_unique<external_stream>(weir::device(device), handle, at);
    return *all->emplace(std::pair(device, handle), std::move(made)).first->second;
  }

 private:
  base::guarded<std::map<std::pair<int, CUstream_st*>, std::unique_ptr<external_stream>>> all_;
};

}  // namespace

stream_ref detail::stream_of(device on, CUstream_st* handle, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  return r.part<streams_by_handle>().of(streams::resolve(on, r, "stream_of", at), handle, at);
}

}  // namespace weir
