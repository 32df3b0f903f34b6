// weir/libtorch.h: data-parallel training of LibTorch's modules, in one process with a thread a device, or in
// several. Gradients are reduced in buckets while the backward pass runs. For LibTorch 1.13 and 2.x.
// Threads: a data_parallel is of one rank, and one thread at a time uses it, as its communicator. Autograd's
// threads call it while that thread is in backward().
#pragma once
#include <ATen/ops/from_blob.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weir/libtorch_ranks.h"

namespace weir::libtorch {

// The same on all ranks.
struct data_parallel_options {
  // Requires: `registered` is off. With `before_reduction` gradients are zero before each step: it is called with all
  // that has accumulated. The block comes from the pool that is current (weir/pool.h), also a registered one.
  bucket_options buckets = {};
  // forward() of a module in training copies the buffers of rank 0 to all ranks.
  bool broadcast_buffers = true;
  // A backward pass may leave parameters out. Each step then has one more collective, and the host may wait for it.
  // Reductions start at the end of the pass, in an order that all ranks share.
  // false: such a pass throws, names them, and releases the other ranks, whose calls throw.
  bool find_unused = false;
};

namespace detail {

// Data parallelism of one rank, for a module of any type.
//
// Invariant: outside of a backward pass, a defined gradient is the parameter's `view` or the program's own tensor.
// At the end of a pass that reduces, it is the view.
class replica {
 public:
  replica(torch::nn::Module& module, communicator& rank, data_parallel_options o, source_location at)
      : place_{&runtime::current(at), rank.device()},
        rank_(rank),
        options_(std::move(o)),
        where_(at),
        active_(rank.size()),
        buckets_(rank, options_.buckets) {
    torch::NoGradGuard const no_grad;
    at_place const guard(place_);
    std::vector<at::Tensor> all = add_parameters(module);
    all.insert(all.end(), buffers_.begin(), buffers_.end());
    require_one_module();
    broadcast(place_, rank_, all, 0, where_);
    make_buckets();
  }
  replica(replica const&) = delete;
  replica& operator=(replica const&) = delete;

  // Ends a step with the pass that comes to an output, not with a pass inside of it, as checkpoints make them.
  static void watch(std::shared_ptr<replica> const& all, at::Tensor const& output) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf())
      return;
    output.register_hook([its = std::weak_ptr(all)](at::Tensor const&) {
      // The graph may outlive the data_parallel.
      if (auto const r = its.lock())
        r->end_with_this_pass();
    });
  }
  void begin(bool trains) {
    if (begun_)
      throw invalid_use("data_parallel::forward", "the last backward pass did not end: an exception left it",
                        "Make the ranks and data_parallel anew", where_, error_id{565});
    for (auto const& [name, p] : frozen_)
      if (p.requires_grad())
        throw invalid_use("data_parallel::forward", "\"" + name + "\" requires a gradient, and was frozen at first",
                          "Make data_parallel anew where parameters begin to require gradients", where_, error_id{574});
    if (synchronizes_ && trains && options_.broadcast_buffers && !buffers_.empty())
      broadcast(place_, rank_, buffers_, root_, where_);
  }
  bool any_has(bool here) {
    at_place const guard(place_);
    at::Tensor has = torch::zeros({rank_.size()}, torch::kInt);
    has[rank_.rank()] = here ? 1 : 0;
    has = has.to(place_.device());
    all_reduce(place_, rank_, has, int32, reduce_op::sum, where_);
    has = has.cpu();
    require_ended(rank_, where_);
    active_ = has.sum().item<int>();
    root_ = has.argmax().item<int>();
    if (active_ > 0)
      return true;
    // Later steps are again of all ranks.
    active_ = rank_.size();
    return false;
  }
  void sit_out(bool trains) {
    if (!synchronizes_)
      return;
    begin(trains);
    // Without gradients no rank has a step.
    if (slots_.empty())
      return;
    torch::NoGradGuard const no_grad;
    at_place const guard(place_);
    begun_ = true;
    for (slot& s : slots_) {
      s.view.zero_();
      s.parameter.mutable_grad() = at::Tensor();
      s.summed_over = 0;
      s.has = false;
      mark(s);
    }
    end_step();
  }
  void zero_grad() {
    torch::NoGradGuard const no_grad;
    at_place const guard(place_);
    if (!place_.is_simulated() && bytes_ > 0)
      fill(place_.here(), block_.get(), std::byte{0}, bytes_);
    for (slot& s : slots_) {
      if (place_.is_simulated())
        s.view.zero_();
      s.parameter.mutable_grad() = s.view;
    }
  }
  bool synchronize(bool on) noexcept { return std::exchange(synchronizes_, on); }

 private:
  struct slot {  // a parameter with a gradient
    std::string name;
    at::Tensor parameter;
    at::Tensor view;  // of its gradient, in the layout of the parameter
    dtype type;
    std::shared_ptr<void> hook{};  // behind the accumulation
    bool is_ready = false;         // in this step
    bool has = false;              // this pass or one before it gave the parameter a gradient
    int summed_over = 0;           // the view is the sum of so many ranks' gradients
  };

  class after_accumulation : public torch::autograd::FunctionPostHook {
   public:
    after_accumulation(replica& all, std::size_t i) : all_(all), i_(i) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                              torch::autograd::variable_list const&) override {
      all_.accumulated(all_.slots_[i_]);
      return outputs;
    }

   private:
    replica& all_;
    std::size_t i_;
  };

  class before_accumulation : public torch::autograd::FunctionPreHook {
   public:
    before_accumulation(replica& all, std::size_t i) : all_(all), i_(i) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& gradients) override {
      all_.take_share(all_.slots_[i_]);
      return gradients;
    }

   private:
    replica& all_;
    std::size_t i_;
  };

  // Returns: all parameters. A parameter that the module has twice counts once.
  std::vector<at::Tensor> add_parameters(torch::nn::Module const& module) {
    std::vector<at::Tensor> all;
    std::unordered_set<void const*> seen;
    for (auto const& named : module.named_parameters()) {
      at::Tensor const& p = named.value();
      if (!seen.insert(p.unsafeGetTensorImpl()).second)
        continue;
      require_here(named.key(), p);
      all.push_back(p);
      if (!p.requires_grad()) {
        frozen_.emplace_back(named.key(), p);
        continue;
      }
      slot s{named.key(), p, {}, float32};
      if (!set_type(p.scalar_type(), s.type))
        throw not_supported("data_parallel",
                            "parameter \"" + s.name + "\" of " + std::string(c10::toString(p.scalar_type())),
                            "Train parameters of float, double, half or bfloat16", where_, error_id{566});
      slots_.push_back(std::move(s));
    }
    for (auto const& named : module.named_buffers()) {
      if (!named.value().defined() || !seen.insert(named.value().unsafeGetTensorImpl()).second)
        continue;
      require_here(named.key(), named.value());
      buffers_.push_back(named.value());
    }
    return all;
  }
  void require_here(std::string const& name, at::Tensor const& t) const {
    if (t.device() != place_.device())
      throw invalid_use("data_parallel",
                        "\"" + name + "\" is on " + t.device().str() + ", and the rank's device is " + place_.on.str() +
                            (place_.is_simulated() ? ", which is simulated" : ""),
                        "Move the module to " + place_.device().str() + " first", where_, error_id{567});
    if (t.layout() != at::kStrided)
      throw not_supported("data_parallel", "\"" + name + "\" is no dense tensor", "Keep it outside of the module",
                          where_, error_id{568});
  }
  // Ranks with unlike modules would reduce unlike numbers.
  void require_one_module() {
    std::string text;
    for (slot const& s : slots_)
      text += s.name + std::string(name_of(s.type)) + std::to_string(s.parameter.dim()) +
              c10::str(s.parameter.sizes(), at::IntArrayRef(strides_of(s.parameter)));
    for (at::Tensor const& b : buffers_)
      text += c10::str(b.scalar_type(), b.sizes());
    auto const hash = static_cast<std::int64_t>(std::hash<std::string>{}(text) >> 2);
    at::Tensor const both = torch::tensor({hash, -hash}, torch::kLong).to(place_.device());
    all_reduce(place_, rank_, both, int64, reduce_op::max, where_);
    at::Tensor const most = both.cpu();
    require_ended(rank_, where_);
    if (most[0].item<std::int64_t>() != hash || most[1].item<std::int64_t>() != -hash)
      throw invalid_use("data_parallel",
                        "the ranks' modules differ in names, types, sizes or strides of parameters or buffers",
                        "Make the same module on all ranks", where_, error_id{569});
  }

  // All gradients lie in one block, in order, so that neighbours are reduced as one.
  void make_buckets() {
    for (slot const& s : slots_)
      bytes_ += padded(s.parameter);
    if (bytes_ > 0) {
      block_ = std::shared_ptr<void>(allocate(bytes_), [p = place_](void* block) { free_block(p, block); });
      fill(block_.get(), std::byte{0}, bytes_);
    }
    auto* next = static_cast<std::byte*>(block_.get());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slot& s = slots_[i];
      s.view = view_of(s.parameter, next, s.parameter.scalar_type());
      auto const count = static_cast<std::int64_t>(padded(s.parameter) / size_of(s.type));
      buckets_.add(s.name, {nullptr, 0, s.type}, {next, count, s.type}, where_);
      next += padded(s.parameter);
    }
    if (!slots_.empty())
      buckets_.build(where_);
    // Both have zeroed memory.
    place_.here().wait(current_stream(place_.on));
    written_.emplace(place_.on);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slot& s = slots_[i];
      bring(s);
      // A pass that uses all parameters then adds each gradient in place.
      if (!options_.find_unused)
        s.parameter.mutable_grad() = s.view;
      s.hook = hooked(s.parameter, i);
    }
  }
  // Returns: an owner that takes the hook away. The node lives as long.
  std::shared_ptr<void> hooked(at::Tensor const& parameter, std::size_t i) {
    auto const node = torch::autograd::impl::grad_accumulator(parameter);
    auto const key = node->add_post_hook(std::make_unique<after_accumulation>(*this, i));
    auto first = std::make_unique<before_accumulation>(*this, i);
    auto const* const before = first.get();
    node->add_pre_hook(std::move(first));
    return {nullptr, [node, key, before](void*) {
              node->del_post_hook(key);
              std::erase_if(node->pre_hooks(), [&](auto const& each) { return each.get() == before; });
            }};
  }
  static std::size_t padded(at::Tensor const& t) { return (t.nbytes() + 511) / 512 * 512; }
  static void free_block(place const& p, void* block) noexcept {
    try {
      at_place const guard(p);
      // LibTorch's streams may still use the block, and weir does not know them.
      if (!p.is_simulated())
        weir::synchronize(p.on);
      deallocate(block);
    } catch (...) {  // the device is lost, or the process ends
    }
  }
  static c10::DimVector strides_of(at::Tensor const& like) {
    c10::DimVector strides = c10::contiguous_strides(like.sizes());
    if (like.is_non_overlapping_and_dense())
      strides.assign(like.strides().begin(), like.strides().end());
    return strides;
  }
  at::Tensor view_of(at::Tensor const& like, void* at, at::ScalarType type) const {
    c10::DimVector const strides = strides_of(like);
    at::TensorOptions const as = torch::TensorOptions(type).device(place_.device());
    if (place_.is_simulated() || like.numel() == 0)
      return torch::empty_strided(like.sizes(), strides, as).zero_();
    return torch::from_blob(
        at, like.sizes(), strides, [keep = block_](void*) {}, as);
  }

  // Brings the gradient so far into the view. LibTorch drops the view when gradients are set to none.
  void bring(slot& s) {
    take_share(s);
    at::Tensor& g = s.parameter.mutable_grad();
    s.has = g.defined();
    if (!s.has) {
      s.view.zero_();
      return;
    }
    if (is_view(g, s))
      return;
    s.view.copy_(g.layout() == at::kStrided ? g : g.to_dense());
    g = s.view;  // the memory of the other tensor is free again
  }
  static bool is_view(at::Tensor const& g, slot const& s) {
    return g.defined() && g.layout() == at::kStrided && g.data_ptr() == s.view.data_ptr() &&
           g.strides() == s.view.strides();
  }
  // A sum over all ranks would be summed again by the next step: each rank keeps a part of it.
  void take_share(slot& s) {
    if (s.summed_over == 0)
      return;
    torch::NoGradGuard const no_grad;
    at_place const guard(place_);
    if (is_view(s.parameter.grad(), s))
      s.view.mul_(1.0 / s.summed_over);
    s.summed_over = 0;
  }
  void accumulated(slot& s) {
    if (!synchronizes_)
      return;
    if (torch::GradMode::is_enabled())
      throw not_supported("data_parallel", "a backward pass with create_graph, at \"" + s.name + "\"",
                          "Use torch::autograd::grad for gradients of gradients, or no_sync()", where_, error_id{570});
    at_place const guard(place_);
    bring(s);
    // Of a pass inside of the pass, which end_pass() waits for.
    if (s.is_ready)
      throw not_supported("data_parallel", "a second gradient of \"" + s.name + "\" in one step: a pass inside a pass",
                          "Set data_parallel_options::find_unused on all ranks", where_, error_id{573});
    begun_ = true;
    end_with_this_pass();
    if (options_.find_unused)
      written_->wait(place_.here());
    else
      mark(s);
  }
  // The engine destroys the function with the pass, also if an exception leaves it.
  void end_with_this_pass() {
    if (!pass_.expired())
      return;
    auto const pass = std::make_shared<char>();
    pass_ = pass;
    torch::autograd::Engine::get_default_engine().queue_callback([this, pass] {
      pass_.reset();
      // A pass that gave no parameter a gradient is no step, as in torch::autograd::grad.
      if (begun_)
        end_pass();
    });
  }
  void mark(slot& s) {
    int const i = index_of(s);
    written_->wait(place_.here());
    if (place_.is_simulated() && s.view.numel() > 0)
      copy(*written_, buckets_.gradient(i).data, s.view.data_ptr(), s.view.nbytes());
    buckets_.mark_ready(i, *written_, where_);
    s.is_ready = true;
  }
  int index_of(slot const& s) const { return static_cast<int>(&s - slots_.data()); }

  void end_pass() {
    torch::NoGradGuard const no_grad;
    at_place const guard(place_);
    if (!options_.find_unused)
      require_all_ready();
    for (slot& s : slots_) {
      if (s.is_ready)
        continue;
      bring(s);
      mark(s);
    }
    end_step();
  }
  void require_all_ready() {
    constexpr std::size_t most_named = 8;
    std::string names;
    std::size_t missing = 0;
    for (slot const& s : slots_)
      if (!s.is_ready && ++missing <= most_named)
        names += (names.empty() ? "\"" : ", \"") + s.name + "\"";
    if (missing == 0)
      return;
    // Other ranks may have all gradients, and wait for this one.
    rank_.abort();
    throw invalid_use(
        "data_parallel",
        std::to_string(missing) + " of " + std::to_string(slots_.size()) +
            " parameters had no part in the backward pass: " + names + (missing > most_named ? ", …" : ""),
        "Set data_parallel_options::find_unused on all ranks, or use them in each pass", where_, error_id{571});
  }
  void end_step() {
    buckets_.finish(*written_, where_);
    place_.here().wait(written_->ref());
    std::vector<bool> const used = used_anywhere();
    for (slot& s : slots_) {
      fetch(s);
      if (active_ < rank_.size() && options_.buckets.average)
        s.view.mul_(static_cast<double>(rank_.size()) / active_);
      if (used[static_cast<std::size_t>(index_of(s))])
        s.parameter.mutable_grad() = s.view;
      s.is_ready = false;
      s.summed_over = options_.buckets.average ? 0 : active_;
    }
    begun_ = false;
    // A loop may end before any_has() returns false.
    active_ = rank_.size();
    require_ended(rank_, where_);
  }
  // Brings what was reduced into the view.
  void fetch(slot& s) {
    device_span const from = buckets_.reduced(index_of(s));
    if (s.view.numel() == 0)
      return;
    bool const is_cast = from.dtype != s.type;
    at::ScalarType const type = !is_cast ? s.view.scalar_type() : from.dtype == float16 ? at::kHalf : at::kBFloat16;
    if (place_.is_simulated()) {
      at::Tensor const host = is_cast ? torch::empty_like(s.view, type) : s.view;
      copy(*written_, host.data_ptr(), from.data, host.nbytes());
      if (is_cast)
        s.view.copy_(host);
    } else if (is_cast) {
      s.view.copy_(view_of(s.view, from.data, type));
    }
  }
  // Returns: for each parameter, whether a rank has a gradient of it. Others keep none, as with one rank.
  std::vector<bool> used_anywhere() {
    std::vector<bool> used(slots_.size(), true);
    if (!options_.find_unused)
      return used;
    std::vector<int> here;
    for (slot const& s : slots_)
      here.push_back(s.has ? 1 : 0);
    at::Tensor const flags = torch::tensor(here, torch::kInt).to(place_.device());
    all_reduce(place_, rank_, flags, int32, reduce_op::max, where_);
    // A rank that has all gradients needs no answer, and does not wait for it.
    if (std::ranges::count(here, 0) == 0)
      return used;
    at::Tensor const all = flags.cpu();
    for (std::size_t i = 0; i < used.size(); ++i)
      used[i] = all[static_cast<std::int64_t>(i)].item<int>() != 0;
    return used;
  }

  place place_;
  communicator& rank_;
  data_parallel_options options_;
  source_location where_;
  int active_;    // ranks with a batch
  int root_ = 0;  // the first of them
  bool synchronizes_ = true;
  bool begun_ = false;        // a backward pass or a step without one has marked gradients
  std::weak_ptr<char> pass_;  // the one under way that ends the step
  std::vector<slot> slots_;
  std::vector<std::pair<std::string, at::Tensor>> frozen_;  // parameters without a gradient
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<void> block_;    // all gradients
  std::size_t bytes_ = 0;          // of it
  std::optional<stream> written_;  // behind LibTorch's work on the gradients: buckets take no borrowed stream
  gradient_buckets buckets_;       // an exception in the constructor lets them free the other ranks
};

// Calls see(t) for each tensor of what forward() returned: a tensor, or a tuple, an optional or a range of such.
template <class T, class See>
void for_each_tensor(T const& of, See const& see) {
  if constexpr (std::is_convertible_v<T const&, at::Tensor const&>)
    see(of);
  else if constexpr (requires { std::tuple_size<T>::value; })
    std::apply([&](auto const&... each) { (for_each_tensor(each, see), ...); }, of);
  else if constexpr (requires { of.has_value(), *of; })
    of.has_value() ? for_each_tensor(*of, see) : void();
  else if constexpr (requires { of.begin() != of.end(); })
    for (auto const& each : of)
      for_each_tensor(each, see);
}

}  // namespace detail

// Backward passes on this thread reduce nothing while it lives: gradients accumulate on each rank.
class [[nodiscard]] no_sync_guard {
 public:
  // data_parallel::no_sync() makes it.
  explicit no_sync_guard(detail::replica& r) : of_(r), before_(r.synchronize(false)) {}
  ~no_sync_guard() { of_.synchronize(before_); }
  no_sync_guard(no_sync_guard const&) = delete;
  no_sync_guard& operator=(no_sync_guard const&) = delete;

 private:
  detail::replica& of_;
  bool before_;
};

// A module whose gradients are the mean over all ranks when backward() returns. The parameters stay in the
// module's memory, the gradients lie in a block of weir. All ranks make it over equal modules, with equal options.
// Each backward pass that reaches a parameter is a step of the buckets: all ranks make as many, unless no_sync() is
// there. A rank whose pass would reach none calls sit_out().
// Passes inside a pass, as checkpoints make them, are of its step: they begin below a tensor that forward() returned.
// Requires: the communicator outlives it, and the runtime also the module's gradients. The module's parameters are not
// replaced meanwhile.
template <class Module>
class data_parallel {
 public:
  // Gives all ranks the parameters and buffers of rank 0.
  // Throws: invalid_use (a tensor on another device; unlike modules), not_supported (a type of parameter, a
  // sparse one), out_of_memory, and what the communicator's calls throw
  // Blocks: until all ranks have come.
  data_parallel(std::shared_ptr<Module> module, communicator& rank, data_parallel_options o = {},
                source_location at = source_location::current())
      : module_(std::move(module)), replica_(std::make_shared<detail::replica>(*module_, rank, std::move(o), at)) {}
  data_parallel(torch::nn::ModuleHolder<Module> const& module, communicator& rank, data_parallel_options o = {},
                source_location at = source_location::current())
      : data_parallel(module.ptr(), rank, std::move(o), at) {}

  // Calls the module's forward(). Use module() for passes of one rank alone, as in a validation.
  // Throws: invalid_use (an exception left the last backward pass)
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    replica_->begin(module_->is_training());
    if constexpr (std::is_void_v<decltype(module_->forward(std::forward<Arguments>(arguments)...))>) {
      module_->forward(std::forward<Arguments>(arguments)...);
    } else {
      auto result = module_->forward(std::forward<Arguments>(arguments)...);
      detail::for_each_tensor(result, [this](at::Tensor const& t) { detail::replica::watch(replica_, t); });
      return result;
    }
  }
  // The module itself, whose calls are of this rank alone.
  Module& module() noexcept { return *module_; }
  // The same: all->eval()
  Module* operator->() noexcept { return module_.get(); }

  // Zeros all gradients, and keeps them where they are reduced. The module's and the optimizer's zero_grad() work, too;
  // if they set gradients to none, each is copied in the next pass.
  void zero_grad() { replica_->zero_grad(); }
  no_sync_guard no_sync() { return no_sync_guard(*replica_); }

  // For ranks with unlike numbers of batches: all ranks call it before each step, until it returns false. A rank
  // without a batch calls sit_out() in the place of forward() and backward(), and steps its optimizer as the
  // others do. The mean is over the ranks that have a batch. What such a rank accumulated in no_sync() is dropped.
  // Requires: no batch norm over all ranks. A rank without a batch passes it an empty one instead.
  // Returns: whether any rank has one. Blocks: until all ranks have called
  bool any_has(bool batch) { return replica_->any_has(batch); }
  void sit_out() { replica_->sit_out(module_->is_training()); }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<detail::replica> replica_;
};

}  // namespace weir::libtorch
