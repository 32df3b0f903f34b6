// Keeps weir's own CUDA calls from the watch.
// Threads: as the driver interface.
#include "runtime/driver/call_watch.h"

#include "runtime/base/call_site.h"
#include "runtime/base/os.h"
#include "runtime/driver/driver_front.h"
#include "runtime/driver/race_control.h"

namespace weir::driver {
namespace {

class watching_driver final : public driver_front<watching_driver> {
 public:
  explicit watching_driver(std::unique_ptr<driver> checking) : driver_front(std::move(checking)) {
    check::control* const checker = inner_->checker();
    if (!checker)
      return;
    watch_begun begun = watch_calls(*checker);
    watch_ = std::move(begun.watch);
    if (!watch_)
      os::print_error("weir-581: the race checker does not see the launches and copies that weir does not make: " +
                      begun.why + "\n");
  }

  driver* behind() noexcept override { return inner_.get(); }
  allocation_observer* watching() noexcept override { return inner_->watching(); }

 private:
  friend class driver_front<watching_driver>;
  template <class Behind>
  auto pass(call, call_subject, Behind&& behind) {
    base::unwatched const own;
    return behind();
  }

  std::unique_ptr<call_watch> watch_;  // ends before the checker
};

}  // namespace

std::unique_ptr<driver> with_watch(std::unique_ptr<driver> checking) {
  return std::make_unique<watching_driver>(std::move(checking));
}

// Else the folder cuda/watch has them. Weak: a test may link that folder to a library without CUDA.
#if !defined(WEIR_WITH_CUDA) || !__has_include(<cupti.h>)
constexpr char const* no_watch = "weir was built without the headers of CUDA and CUPTI";
[[gnu::weak]] watch_begun watch_calls(check::control&) {
  return {nullptr, no_watch};
}
[[gnu::weak]] std::string call_when_told(void (*)()) {
  return no_watch;
}
[[gnu::weak]] void name_places_with(source_location (*)() noexcept) noexcept {}
#endif

}  // namespace weir::driver
