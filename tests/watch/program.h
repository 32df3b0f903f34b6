// A CUDA program that no GPU runs: each call is told as CUPTI tells it, by stand-ins for CUPTI and the driver. What the
// driver would answer the watch is set here.
// Threads: any call; the answers are set while no other thread makes calls.
#pragma once
#include <cuda.h>
#include <cupti.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/driver/call_watch.h"
#include "runtime/driver/race_control.h"
#include "runtime/driver/seen_calls.h"

namespace weir::watch_tests {

struct node_of_graph {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUDA_KERNEL_NODE_PARAMS kernel{};
  CUDA_MEMCPY3D copy{};
  CUDA_MEMSET_NODE_PARAMS fill{};
  std::vector<std::size_t> after;
};
// What the driver knows. Handles are numbers.
struct answers {
  struct memory {
    std::size_t bytes = 0;
    unsigned kind = CU_MEMORYTYPE_DEVICE;
  };
  struct kernel {
    std::vector<std::pair<std::size_t, std::size_t>> parameters;  // offset, bytes
    bool of_runtime = false;                                      // a CUkernel
    char const* name = "_Z5scalePf";
  };
  std::map<CUdeviceptr, memory> blocks;
  std::map<CUfunction, kernel> kernels;
  std::map<CUstream, int> device_of;  // others are of the current device
  std::map<CUstream, bool> captured;
  std::map<CUgraph, std::vector<node_of_graph>> graphs;
};
answers& driver_answers();
inline thread_local int current_device = 0;

template <class Handle>
Handle handle(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

// Loads the stand-ins. Idempotent; each test begins with it.
void load_stand_ins();
void cupti_refuses(CUptiResult with);
void tell(CUpti_CallbackDomain, CUpti_CallbackId, CUpti_CallbackData const&);

// One call of the program. symbol: the kernel
template <class Parameters>
void call(CUpti_CallbackId id, char const* name, Parameters const& given, CUresult result = CUDA_SUCCESS,
          char const* symbol = nullptr, CUpti_CallbackDomain domain = CUPTI_CB_DOMAIN_DRIVER_API) {
  CUpti_CallbackData data{};
  data.functionName = name;
  data.functionParams = &given;
  data.functionReturnValue = &result;
  data.symbolName = symbol;
  data.callbackSite = CUPTI_API_ENTER;
  tell(domain, id, data);
  data.callbackSite = CUPTI_API_EXIT;
  tell(domain, id, data);
}
// WEIR_CALLS(cuEventRecord, event, stream) makes the call with the fields of its parameters in their order.
#define WEIR_CALLS(name, ...) \
  ::weir::watch_tests::call(CUPTI_DRIVER_TRACE_CBID_##name, #name, name##_params{__VA_ARGS__})
#define WEIR_CALLS_IN_VAIN(name, ...) \
  ::weir::watch_tests::call(CUPTI_DRIVER_TRACE_CBID_##name, #name, name##_params{__VA_ARGS__}, CUDA_ERROR_INVALID_VALUE)
void synchronize_device();  // it has no parameters
void launch(CUstream, CUfunction, std::vector<void*> parameters, char const* name = "_Z5scalePf");

// Notes what it is told, a line a call.
class recorder final : public driver::check::control, public driver::check::seen_calls {
 public:
  std::vector<std::string> take();  // what was told since
  driver::check::unjudged unseen() const override { return {}; }
  std::vector<driver::check::finding> findings() override { return {}; }
  void on_finding(std::function<void(driver::check::finding const&)>) override {}
  void manages(void const*, driver::check::managed_block) override {}
  void is_weirs_own(int, driver::stream_handle) override {}
  driver::check::seen_calls* calls() override { return this; }

  void stream_made(int device, stream, bool blocking) noexcept override;
  void stream_gone(int device, stream) noexcept override;
  void launched(int device, stream, char const* kernel, std::span<driver::check::seen_pointer const>,
                base::site) noexcept override;
  void copied(int device, stream, driver::address to, driver::address from, std::size_t bytes, bool waits,
              base::site) noexcept override;
  void filled(int device, stream, driver::address to, std::size_t bytes, bool waits, base::site) noexcept override;
  void host_function(int device, stream, base::site) noexcept override;
  void recorded(int device, stream, event) noexcept override;
  void waited(int device, stream, event) noexcept override;
  void event_gone(event) noexcept override;
  void stream_done(int device, stream) noexcept override;
  void event_done(event) noexcept override;
  void device_done(int device) noexcept override;
  void allocated(int device, stream, driver::address at, std::size_t bytes, base::site) noexcept override;
  void freed(int device, stream, driver::address at, base::site) noexcept override;
  void unmapped(driver::address at, std::size_t bytes, base::site) noexcept override;
  void found(int device, driver::address at, std::size_t bytes, base::site) noexcept override;
  void closed(driver::address at, base::site) noexcept override;
  void hidden(driver::address at, std::size_t bytes) noexcept override;
  void graph_made(executable, std::vector<node>, base::site) noexcept override;
  void graph_launched(int device, stream, executable, base::site) noexcept override;
  void graph_gone(executable) noexcept override;
  void not_understood(char const* what) noexcept override;

 private:
  void note(std::string line);
  std::mutex lock_;
  std::vector<std::string> lines_;
};

// A recorder that is told the calls.
struct watched : ::testing::Test {
  watched() {
    load_stand_ins();
    driver_answers() = {};
    auto begun = driver::watch_calls(notes);
    EXPECT_TRUE(begun.watch) << begun.why;
    watch = std::move(begun.watch);
  }
  void expect(std::vector<std::string> const& wanted) { EXPECT_EQ(notes.take(), wanted); }
  recorder notes;
  std::unique_ptr<driver::call_watch> watch;
};

}  // namespace weir::watch_tests
