// Stands for libc10_cuda.so: the classes of PyTorch's errors, and a function that catches them as it does.
// Threads: one.
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#define SHOWN __attribute__((visibility("default")))

namespace c10 {
struct SourceLocation {
  char const* function;
  char const* file;
  std::uint32_t line;
};
class SHOWN Error : public std::exception {
 public:
  Error(SourceLocation at, std::string msg);
  char const* what() const noexcept override { return text_.c_str(); }
  virtual char const* what_without_backtrace() const noexcept { return msg_.c_str(); }

 private:
  std::string msg_, text_;
};
Error::Error(SourceLocation at, std::string msg) : msg_(std::move(msg)), text_(msg_ + " (of " + at.function + ")") {}

class SHOWN OutOfMemoryError : public Error {
  using Error::Error;
};
}  // namespace c10

extern "C" SHOWN void throw_one() {
  throw c10::OutOfMemoryError({"fake", "fake", 1}, "makes the class's tables");
}

// 2: c10::OutOfMemoryError, 1: std::runtime_error, 0: nothing was thrown. The text is copied to `text`.
extern "C" SHOWN int catch_as_torch(void (*act)(), char* text, unsigned room) {
  auto const tell = [&](char const* what) { text[std::string(what).copy(text, room - 1)] = 0; };
  try {
    act();
    return 0;
  } catch (c10::OutOfMemoryError const& e) {
    tell(e.what_without_backtrace());
    return 2;
  } catch (std::runtime_error const& e) {
    tell(e.what());
    return 1;
  }
}
