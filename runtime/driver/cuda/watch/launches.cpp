// Launches, and what their parameters point to.
// Threads: any.
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
#include <cstring>
#include <set>
#include <unordered_map>

#include "runtime/base/lasting.h"
#include "runtime/base/sync.h"
#include "runtime/driver/kernel_signature.h"

namespace weir::driver::cuda {
namespace {

struct parameter {
  std::size_t offset = 0, bytes = 0;
  parameter_kind is = parameter_kind::value;
  bool is_typed = false;  // the signature tells its type
};
struct kernel_facts {
  std::vector<parameter> parameters;
  bool is_known = false;
};

// A kernel of the runtime library is a CUkernel, which the first function refuses.
kernel_facts ask_for(CUfunction f, char const* name) {
  watch_entries const& api = entries_of_watch();
  kernel_facts facts;
  std::size_t offset = 0, bytes = 0;
  auto const by_function = [&](std::size_t i) { return api.function_parameter(f, i, &offset, &bytes); };
  auto const by_kernel = [&](std::size_t i) {
    return api.kernel_parameter(reinterpret_cast<CUkernel>(f), i, &offset, &bytes);
  };
  auto const read_all = [&](auto ask) {
    for (std::size_t i = 0; ask(i) == CUDA_SUCCESS; ++i)
      facts.parameters.push_back({.offset = offset, .bytes = bytes});
  };
  if (!api.function_parameter || !api.kernel_parameter)
    return facts;
  kernel_signature const signature = signature_of(name);
  read_all(by_function);
  if (facts.parameters.empty())
    read_all(by_kernel);
  facts.is_known = !facts.parameters.empty() || (signature.is_known && signature.parameters.empty());
  // Another number of parameters: the name was not read right, and says nothing.
  if (!signature.is_known || signature.parameters.size() != facts.parameters.size())
    return facts;
  for (std::size_t i = 0; i < facts.parameters.size(); ++i) {
    facts.parameters[i].is = signature.parameters[i];
    facts.parameters[i].is_typed = true;
  }
  return facts;
}

struct key {
  CUfunction function;
  char const* name;
  friend bool operator==(key const&, key const&) = default;
};
struct hash_of_key {
  std::size_t operator()(key const& k) const noexcept {
    return std::hash<void const*>()(k.function) * 31 + std::hash<void const*>()(k.name);
  }
};
using kept_facts = std::shared_ptr<kernel_facts const>;
using facts_map = std::unordered_map<key, kept_facts, hash_of_key>;
base::guarded<facts_map>& known_kernels() {
  static base::lasting<base::guarded<facts_map>> all;
  return *all;
}
// Two threads may ask for a new one: no lock is held meanwhile.
kept_facts facts_of(CUfunction f, char const* name) {
  key const of{f, name};
  {
    auto const all = known_kernels().lock();
    if (auto const known = all->find(of); known != all->end())
      return known->second;
  }
  auto facts = std::make_shared<kernel_facts const>(ask_for(f, name));
  return known_kernels().lock()->try_emplace(of, std::move(facts)).first->second;
}

// Neither null nor a small number, and within 57 bits of addresses.
bool may_be_address(std::uint64_t word) {
  return word >= 4096 && word < std::uint64_t{1} << 57;
}

void add_words(unsigned char const* value, parameter const& p, pointer_list& to) {
  constexpr std::size_t word_bytes = sizeof(std::uint64_t);
  bool const is_pointer = p.bytes == word_bytes && (!p.is_typed || p.is != parameter_kind::value);
  for (std::size_t at = 0; at + word_bytes <= p.bytes; at += word_bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, value + at, word_bytes);
    if (may_be_address(word))
      to.push_back({.at = static_cast<address>(word),
                    .writes = p.is != parameter_kind::reads,
                    .in_structure = !is_pointer,
                    .is_typed = p.is_typed});
  }
}

// The buffer of a launch that packs its parameters. Null: it has none
unsigned char const* buffer_of(void** packed) {
  for (void** at = packed; at && *at != CU_LAUNCH_PARAM_END; at += 2)
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER)
      return static_cast<unsigned char const*>(at[1]);
  return nullptr;
}

struct launch_parts {
  CUfunction function;
  CUstream stream;
  void** parameters;
  void** packed;
};

void tell_launch(seen_call const& call, launch_parts const& launch) {
  if (call.is_captured(launch.stream))
    return;
  char const* const name = lasting_name(call.kernel());
  pointer_list found;
  if (!add_pointers(found, launch.function, name, launch.parameters, launch.packed))
    call.not_understood("launches whose parameters the driver does not tell");
  call.each_on(launch.stream, [&](seen_calls& to, int device, seen_calls::stream on) {
    to.launched(device, on, name, found, call.site());
  });
}

void tell_plain_launch(seen_call const& call) {
  auto const& p = call.given<cuLaunchKernel_params>();
  tell_launch(call, {p.f, p.hStream, p.kernelParams, p.extra});
}
void tell_cooperative_launch(seen_call const& call) {
  auto const& p = call.given<cuLaunchCooperativeKernel_params>();
  tell_launch(call, {p.f, p.hStream, p.kernelParams, nullptr});
}
void tell_extended_launch(seen_call const& call) {
  auto const& p = call.given<cuLaunchKernelEx_params>();
  for (unsigned i = 0; i < p.config->numAttrs; ++i)
    if (p.config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
        p.config->attrs[i].value.programmaticStreamSerializationAllowed)
      call.not_understood(
          "programmatic dependent launches, which may begin before the work in front of them has ended");
  tell_launch(call, {p.f, p.config->hStream, p.kernelParams, p.extra});
}
void tell_old_launch(seen_call const& call) {
  call.not_understood("launches by interfaces of CUDA 3 or for several devices at once");
}

constexpr watched_call launch_rows[] = {
    WEIR_CALL_OF_STREAM(cuLaunchKernel, _ptsz, EXIT, tell_plain_launch),
    WEIR_CALL_OF_STREAM(cuLaunchCooperativeKernel, _ptsz, EXIT, tell_cooperative_launch),
    WEIR_CALL_OF_STREAM(cuLaunchKernelEx, _ptsz, EXIT, tell_extended_launch),
    WEIR_CALL(cuLaunch, EXIT, tell_old_launch),
    WEIR_CALL(cuLaunchGrid, EXIT, tell_old_launch),
    WEIR_CALL(cuLaunchGridAsync, EXIT, tell_old_launch),
    WEIR_CALL(cuLaunchCooperativeKernelMultiDevice, EXIT, tell_old_launch),
};

}  // namespace

std::span<watched_call const> launch_calls() {
  return launch_rows;
}

void forget_kernels() {
  known_kernels().lock()->clear();
}

bool add_pointers(pointer_list& to, CUfunction f, char const* name, void** parameters, void** packed) {
  kept_facts const kept = facts_of(f, name);
  kernel_facts const& facts = *kept;
  unsigned char const* const buffer = parameters ? nullptr : buffer_of(packed);
  if (!facts.is_known || (!parameters && !buffer && !facts.parameters.empty()))
    return false;
  for (std::size_t i = 0; i < facts.parameters.size(); ++i) {
    parameter const& p = facts.parameters[i];
    auto const* const value = parameters ? static_cast<unsigned char const*>(parameters[i]) : buffer + p.offset;
    add_words(value, p, to);
  }
  return true;
}

char const* lasting_name(char const* name) {
  static base::lasting<base::guarded<std::set<std::string, std::less<>>>> all;
  auto const names = (*all).lock();
  auto const known = names->find(std::string_view(name));
  return known != names->end() ? known->c_str() : names->emplace(name).first->c_str();
}

}  // namespace weir::driver::cuda
#endif
