// A libcupti.so.13 that passes on the callbacks that a test program makes up.
// Threads: any.
#include <cupti.h>

#include <atomic>

namespace {
constexpr std::size_t most_calls = 2048;
std::atomic<CUpti_CallbackFunc> callback{nullptr};
std::atomic<CUptiResult> answer{CUPTI_SUCCESS};
std::atomic<bool> enabled[most_calls];
}  // namespace

extern "C" {
#define WEIR_STAND_IN __attribute__((visibility("default")))
WEIR_STAND_IN void weir_stand_in_refuses(CUptiResult with) {
  answer = with;
}
// Unknown calls and other domains are passed on, too: a newer CUPTI may tell them.
WEIR_STAND_IN void weir_stand_in_tells(CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                       CUpti_CallbackData const* data) {
  bool const is_known = domain == CUPTI_CB_DOMAIN_DRIVER_API && id < CUPTI_DRIVER_TRACE_CBID_SIZE;
  CUpti_CallbackFunc const to = callback.load();
  if (to && (!is_known || enabled[id].load()))
    to(nullptr, domain, id, data);
}

WEIR_STAND_IN CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc to, void*) {
  if (answer.load() != CUPTI_SUCCESS)
    return answer;
  callback = to;
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&callback);
  return CUPTI_SUCCESS;
}
WEIR_STAND_IN CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  callback = nullptr;
  return CUPTI_SUCCESS;
}
WEIR_STAND_IN CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                              CUpti_CallbackId id) {
  if (id >= CUPTI_DRIVER_TRACE_CBID_SIZE)
    return CUPTI_ERROR_INVALID_PARAMETER;
  enabled[id] = enable != 0;
  return CUPTI_SUCCESS;
}
WEIR_STAND_IN CUptiResult cuptiGetResultString(CUptiResult, char const** text) {
  *text = "a stand-in's reason";
  return CUPTI_SUCCESS;
}
}
