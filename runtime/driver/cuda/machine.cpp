// Opens CUDA: devices, contexts, the checks of each call, and loss of a device.
// Threads: any.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

#include "runtime/base/os.h"
#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
namespace {

std::string uuid_text(CUuuid const& uuid) {  // as nvidia-smi writes it
  std::string out = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10)
      out += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    out += digits;
  }
  return out;
}

}  // namespace

cuda_driver::cuda_driver(entries const& api, int count) : api_(api), count_(count) {
  outdate();
  for (int i = 0; i < count_; ++i) {
    api_.cuDeviceGet(&at(i).id, i);
    if (auto const about = info(i); about.ok())
      granularity_ = std::max(granularity_, about.value.granularity);
  }
}

cuda_driver::~cuda_driver() {
  if (refusal_of_process() != code::ok)
    return;  // the driver may be unloaded; the system frees everything
  open_closed_gates();
  end_host_functions();
  bool const any_lost = has_lost_any();  // the waits above may have found another loss
  if (!any_lost)
    free_gate_words();
  release_contexts(any_lost);
  try {
    if (std::string const left = left_behind(); !left.empty())
      os::print_error("weir-103: the CUDA driver ends and does not release " + left + "\n");
  } catch (...) {}  // no memory for the text
}

void cuda_driver::open_closed_gates() {
  auto g = gates_.lock();
  for (auto const& [id, closed] : g->closed)
    base::store_release(g->words[closed.device * gates_a_device + closed.slot], closed.sequence);
  g->closed.clear();
}

// Host functions that were enqueued still name this driver. After a loss, other devices may wait forever for
// its events: then those that have not run in two seconds are dropped. One that runs is waited for.
void cuda_driver::end_host_functions() {
  if (has_lost_any()) {
    auto p = pending_.lock();
    call_over_.wait_for(p.lock(), std::chrono::seconds(2), [&] { return p->calls.empty(); });
  } else if (!pending_.lock()->calls.empty()) {
    for (int i = 0; i < count_; ++i)
      if (at(i).context.load())
        synchronize_device(i);
  }
  for (int i = 0; i < count_; ++i)
    drop_pending(i);
  std::vector<base::thread> droppers;
  {
    auto p = pending_.lock();
    call_over_.wait(p.lock(), [&] { return p->calls.empty(); });  // those that run while their device is lost
    droppers.swap(p->droppers);                                   // threads that drop_pending() started
  }
  for (auto& dropper : droppers)
    dropper.join();
}

// Requires: no device is lost. It waits for all work, which may never end after a loss.
void cuda_driver::free_gate_words() {
  auto g = gates_.lock();
  if (!g->words)
    return;
  int const device = any_device();
  if (device < 0)
    return;
  call in(*this, device, call::mode::asks);
  if (!in.refused())
    api_.cuMemFreeHost(g->words);
}

void cuda_driver::release_contexts(bool any_lost) {
  for (int i = 0; i < count_; ++i) {
    device_state& d = at(i);
    if (!d.context.load())
      continue;
    if (d.lost.load() == 0)
      api_.cuStreamDestroy(d.probe);
    // The last release of a context waits for its work. That may wait for a lost device, and so for ever.
    bool const may_wait_for_ever = d.lost.load() == 0 && any_lost;
    if (!may_wait_for_ever)
      api_.cuDevicePrimaryCtxRelease(d.id);
  }
}

bool cuda_driver::has_lost_any() noexcept {
  bool any_lost = false;
  for (int i = 0; i < count_; ++i)
    any_lost |= at(i).lost.load() != 0;
  return any_lost;
}

std::string cuda_driver::left_behind() {
  std::string text;
  auto const say = [&](std::size_t n, char const* what) {
    if (n == 0)
      return;
    text += (text.empty() ? "" : ", ") + std::to_string(n) + ' ' + what + (n == 1 ? "" : "s");
  };
  bool const lost_one = has_lost_any();
  auto const b = books_.lock();
  // Memory alone is reported by the runtime, unless a device is lost.
  if (auto const g = graphs_.lock(); !lost_one && g->kept.empty() && g->executables.empty())
    return {};
  say(b->reservations.size(), "reservation");
  say(b->mappings.size(), "mapping");
  say(b->handles.size(), "memory handle");
  say(b->segments.size(), "segment");
  say(b->pins.size(), "pinned range");
  {
    auto const g = graphs_.lock();
    say(g->kept.size(), "graph");
    say(g->executables.size(), "executable graph");
  }
  for (int i = 0; i < count_; ++i)
    if (int const lost = at(i).lost.load())
      text += (text.empty() ? "objects of gpu:" : "; gpu:") + std::to_string(i) + ", lost to CUDA error " +
              std::to_string(lost);
  return text;
}

status cuda_driver::may_call() const noexcept {
  if (code const why = refusal_of_process(); why != code::ok)
    return {why, 0};
  if (inside_host_function())
    return {code::not_permitted, 0};
  return {};
}

int cuda_driver::any_device() noexcept {
  int opened = -1;
  for (int i = 0; i < count_; ++i) {
    if (!at(i).context.load(base::memory_order_acquire))
      continue;
    if (at(i).lost.load(base::memory_order_relaxed) == 0)
      return i;
    if (opened < 0)
      opened = i;
  }
  return opened;
}

// Memory may be pinned before any device is open.
int cuda_driver::pinning_device() {
  int const found = any_device();
  if (found >= 0 && at(found).lost.load(base::memory_order_relaxed) == 0)
    return found;
  for (int i = 0; i < count_; ++i)
    if (!at(i).context.load(base::memory_order_acquire) && open(i).ok())
      return i;
  return found;
}

// CUDA may answer a call on one device with the error of another whose memory or event it uses. So every
// opened device is queried through a stream without work. If none reports a loss, the named device is lost.
void cuda_driver::found_lost(int device, CUresult r) noexcept {
  bool found = false;
  for (int i = 0; i < count_; ++i) {
    if (!at(i).context.load(base::memory_order_acquire))
      continue;
    CUresult const says = ask_probe(i);
    if (meaning_of(says) != code::lost)
      continue;
    found = true;
    lose(i, says);
  }
  if (!found)
    lose(device, r);
}

CUresult cuda_driver::ask_probe(int device) noexcept {
  device_state& d = at(device);
  if (int const known = d.lost.load(base::memory_order_relaxed))
    return static_cast<CUresult>(known);
  if (api_.cuCtxPushCurrent(d.context.load(base::memory_order_acquire)) != CUDA_SUCCESS)
    return CUDA_SUCCESS;  // it cannot be asked: that shows no loss
  CUresult says = CUDA_SUCCESS;
  {
    relaxed const mode(api_);
    says = api_.cuStreamQuery(d.probe);
  }
  CUcontext popped = nullptr;
  api_.cuCtxPopCurrent(&popped);
  return says;
}

void cuda_driver::lose(int device, CUresult r) noexcept {
  int alive = 0;
  if (at(device).lost.compare_exchange(alive, static_cast<int>(r)))
    drop_pending(device);
}

result<device_info> cuda_driver::info(int device) {
  if (status const may = may_call(); !may.ok())
    return {may};
  if (!exists(device))
    return {{code::invalid, CUDA_ERROR_INVALID_DEVICE}};
  CUdevice const id = at(device).id;
  auto const attribute = [&](CUdevice_attribute which, int otherwise) {
    int value = otherwise;
    return api_.cuDeviceGetAttribute(&value, which, id) == CUDA_SUCCESS ? value : otherwise;
  };
  device_info about;
  std::array<char, 256> text{};
  if (CUresult const r = api_.cuDeviceGetName(text.data(), static_cast<int>(text.size()), id))
    return {to_status(r)};
  about.name = text.data();
  if (CUresult const r = api_.cuDeviceTotalMem(&about.total_memory, id))
    return {to_status(r)};
  about.major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  about.minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  about.multi_processor_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  about.numa_node = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
  if (api_.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), id) == CUDA_SUCCESS)
    about.pci_bus_id = text.data();
  CUuuid uuid{};
  if (api_.cuDeviceGetUuid(&uuid, id) == CUDA_SUCCESS)
    about.uuid = uuid_text(uuid);
  about.maps = attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) != 0;
  about.multicast = attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0) != 0;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, id};
  // A device that does not say its granularity counts as one that cannot map.
  if (!about.maps || api_.cuMemGetAllocationGranularity(&about.granularity, &wanted,
                                                        CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) {
    about.maps = false;
    about.granularity = std::size_t{2} << 20;
  }
  about.shared_granularity = about.granularity;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.allocFlags.gpuDirectRDMACapable = serves_network_cards(id);
  std::size_t best = 0;
  if (about.maps &&
      api_.cuMemGetAllocationGranularity(&best, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS)
    about.shared_granularity = std::max(best, about.granularity);
  return {{}, about};
}

status cuda_driver::open(int device) {
  if (status const may = may_call(); !may.ok())
    return may;
  if (!exists(device))
    return {code::invalid, CUDA_ERROR_INVALID_DEVICE};
  device_state& d = at(device);
  if (int const lost = d.lost.load())
    return {code::lost, lost};
  if (d.context.load(base::memory_order_acquire))
    return {};
  base::lock_guard const one(opening_);
  if (d.context.load(base::memory_order_acquire))
    return {};
  relaxed const mode(api_);
  CUcontext context = nullptr;
  if (CUresult const r = api_.cuDevicePrimaryCtxRetain(&context, d.id))
    return to_status(r);
  CUresult r = api_.cuCtxPushCurrent(context);
  if (r == CUDA_SUCCESS) {
    r = api_.cuCtxGetStreamPriorityRange(&d.least_priority, &d.greatest_priority);
    if (r == CUDA_SUCCESS)
      r = api_.cuStreamCreateWithPriority(&d.probe, CU_STREAM_NON_BLOCKING, d.least_priority);
    CUcontext popped = nullptr;
    api_.cuCtxPopCurrent(&popped);
  }
  if (r != CUDA_SUCCESS) {
    api_.cuDevicePrimaryCtxRelease(d.id);
    return to_status(r);
  }
  d.context.store(context, base::memory_order_release);
  return {};
}

result<memory_info> cuda_driver::memory(int device) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  memory_info is;
  status const said = in.answer(api_.cuMemGetInfo(&is.free, &is.total));
  return {said, is};
}

status cuda_driver::make_current(int device) {
  if (status const may = may_call(); !may.ok())
    return may;
  if (device == no_device)
    return to_status(api_.cuCtxSetCurrent(nullptr));
  if (!exists(device))
    return {code::invalid, CUDA_ERROR_INVALID_DEVICE};
  CUcontext const context = at(device).context.load(base::memory_order_acquire);
  if (!context)
    return {code::invalid, CUDA_ERROR_INVALID_CONTEXT};
  // The driver answers this question faster than it sets what is set already.
  CUcontext current = nullptr;
  if (api_.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context)
    return {};
  return to_status(api_.cuCtxSetCurrent(context));
}

result<int> cuda_driver::current_device() {
  if (status const may = may_call(); !may.ok())
    return {may};
  CUcontext current = nullptr;
  if (CUresult const r = api_.cuCtxGetCurrent(&current))
    return {to_status(r)};
  if (!current)
    return {{}, no_device};
  CUdevice id = -1;
  if (CUresult const r = api_.cuCtxGetDevice(&id))
    return {to_status(r)};
  return {{}, ordinal_of(id)};
}

int cuda_driver::ordinal_of(CUdevice id) noexcept {
  for (int d = 0; d < count_; ++d)
    if (at(d).id == id)
      return d;
  return no_device;
}

status cuda_driver::synchronize_device(int device) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return in.refusal();
  return in.answer(api_.cuCtxSynchronize());
}

result<peer_info> cuda_driver::peer(int from, int to) {
  if (status const may = may_call(); !may.ok())
    return {may};
  if (!exists(from) || !exists(to))
    return {{code::invalid, CUDA_ERROR_INVALID_DEVICE}};
  if (from == to)
    return {{}, {.access = true, .native_atomics = true}};
  int access = 0, atomics = 0;
  if (CUresult const r = api_.cuDeviceCanAccessPeer(&access, at(from).id, at(to).id))
    return {to_status(r)};
  if (api_.cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, at(from).id, at(to).id) !=
      CUDA_SUCCESS)
    atomics = 0;
  return {{}, {.access = access != 0, .native_atomics = atomics != 0}};
}

call::call(cuda_driver& driver, int device, mode m) noexcept : driver_(driver), device_(device), mode_(m) {
  refusal_ = driver.may_call();
  if (refused())
    return;
  if (!driver.exists(device)) {
    refusal_ = {code::invalid, CUDA_ERROR_INVALID_DEVICE};
    return;
  }
  auto& d = driver.at(device);
  CUcontext const context = d.context.load(base::memory_order_acquire);
  if (!context) {
    refusal_ = {code::invalid, CUDA_ERROR_INVALID_CONTEXT};
    return;
  }
  int const lost = d.lost.load(base::memory_order_relaxed);
  // A context that was reset has taken its objects with it: no call may name them.
  if (lost != 0 && (mode_ != mode::survives || lost == CUDA_ERROR_CONTEXT_IS_DESTROYED)) {
    refusal_ = {code::lost, lost};
    return;
  }
  CUcontext current = nullptr;
  CUresult r = driver.api_.cuCtxGetCurrent(&current);
  if (r == CUDA_SUCCESS && current != context) {
    r = driver.api_.cuCtxPushCurrent(context);
    pushed_ = r == CUDA_SUCCESS;
  }
  // A lost device may refuse its context: a call that survives is made without it.
  if (r != CUDA_SUCCESS && lost == 0) {
    refusal_ = answer(r);
    return;
  }
  context_ = context;
  if (mode_ != mode::enqueues)
    driver.api_.cuThreadExchangeStreamCaptureMode(&before_);
}

call::~call() {
  if (context_ && mode_ != mode::enqueues)
    driver_.api_.cuThreadExchangeStreamCaptureMode(&before_);
  if (pushed_) {
    CUcontext popped = nullptr;
    driver_.api_.cuCtxPopCurrent(&popped);
  }
}

status call::answer(CUresult r) noexcept {
  status const said = to_status(r);
  if (said.what == code::lost)
    driver_.found_lost(device_, r);
  return said;
}

}  // namespace weir::driver::cuda

namespace weir::driver {

opened open_cuda() {
  try {
    auto const& [api, why] = cuda::load();
    if (!api)
      return {nullptr, why};
    if (CUresult const r = api->cuInit(0))
      return {nullptr, cuda::describe(r)};
    cuda::watch_for_exit();
    int version = 0, count = 0;
    if (CUresult const r = api->cuDriverGetVersion(&version))
      return {nullptr, cuda::describe(r)};
    if (CUresult const r = api->cuDeviceGetCount(&count))
      return {nullptr, cuda::describe(r)};
    if (count == 0)
      return {nullptr, "no CUDA device is visible"};
    count = std::min(count, cuda::cuda_driver::most_devices);
    auto machine = std::make_unique<cuda::cuda_driver>(*api, count);
    std::string const what = std::to_string(count) + (count == 1 ? " GPU" : " GPUs") + ", driver for CUDA " +
                             std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
    return {std::move(machine), what};
  } catch (std::exception const& e) {
    return {nullptr, e.what()};
  }
}

}  // namespace weir::driver
