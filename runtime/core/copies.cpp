// Each copy has an ELF note that names its mark. The loader's list of files leads to every note, hidden or
// not, and leaves nothing behind in the process: no file, no variable of the environment.
// Threads: any.
#include <cstring>
#include <string>

#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/core/parts.h"

namespace {
struct copy_mark {        // read by other versions of weir: members are added at the end
  std::uint32_t process;  // the last one that made a runtime; a forked child has none yet
  std::uint32_t runtimes;
};
}  // namespace

extern "C" {
// Named by the note below, in which the assembler sees no other reference.
__attribute__((used, visibility("hidden"))) constinit copy_mark weir_copy_mark{0, 0};
}
// The note's text is the distance from itself to the mark.
__asm__(
    ".pushsection .note.weir, \"a\", %note\n"
    ".balign 4\n"
    ".long 5, 8, 1\n"
    ".asciz \"weir\"\n"
    ".balign 4\n"
    "0: .quad weir_copy_mark - 0b\n"
    ".popsection\n");

namespace weir {
namespace {

constexpr std::uint32_t note_type = 1;  // as in the note

std::uint32_t this_process() noexcept {
  return static_cast<std::uint32_t>(os::process_id());
}

base::mutex& counting() noexcept {
  static base::lasting<base::mutex> m;
  return *m;
}

void leave() noexcept {
  base::no_switch const one_step;
  base::lock_guard const hold(counting());
  base::store_release(weir_copy_mark.runtimes, weir_copy_mark.runtimes - 1);
}

}  // namespace

copy_in_use::copy_in_use(source_location at) {
  {
    base::no_switch const one_step;
    base::lock_guard const hold(counting());
    // After a fork the mark counts the parent's runtimes.
    bool const is_of_parent = weir_copy_mark.process != this_process();
    weir_copy_mark.process = this_process();
    base::store_release(weir_copy_mark.runtimes, is_of_parent ? 1u : weir_copy_mark.runtimes + 1);
  }
  // Marked before the search: of two copies that start at once, at least one is refused.
  std::string other;
  os::each_note("weir", note_type, [&](std::string const& file, void const* text, std::size_t bytes) {
    std::int64_t distance = 0;
    if (bytes < sizeof distance)
      return;
    std::memcpy(&distance, text, sizeof distance);
    auto* const mark =
        reinterpret_cast<copy_mark*>(reinterpret_cast<std::uintptr_t>(text) + static_cast<std::uintptr_t>(distance));
    if (mark == &weir_copy_mark)
      return;
    if (base::load_acquire(mark->runtimes) != 0 && mark->process == this_process())
      other = file;
  });
  if (other.empty())
    return;
  leave();
  throw invalid_use("runtime",
                    base::text("two copies of weir in one process: ", other, " is in use, and ",
                               os::file_of_code(reinterpret_cast<void const*>(&leave)), " holds another"),
                    "Link the program and its plugins with one libweir.so (weir::shared in CMake, `pkg-config weir`)",
                    at, error_id{146});
}

copy_in_use::~copy_in_use() {
  leave();
}

}  // namespace weir
