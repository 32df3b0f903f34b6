// weir/error.h: the exceptions. Each derives from `error`, which is not a std::exception: out_of_memory can
// then be a std::bad_alloc, and `catch (std::exception const&)` still works.
// Threads: exceptions are values; copies share their text.
#pragma once
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "weir/stats.h"

namespace weir WEIR_API {

// A message's number, the same in all versions. what() begins with `weir-NNN`. docs/reference/messages.md
// lists all messages.
enum class error_id : std::uint16_t { none };

class error {
 public:
  virtual char const* what() const noexcept = 0;  // as std::exception's, which each derived class is, too
  std::string_view operation() const noexcept;    // "copy"
  std::string_view operands() const noexcept;     // "dst gpu:1 0x7f10… holds 4096 B, asked 8192 B"
  std::string_view remedy() const noexcept;       // what to do
  source_location where() const noexcept;         // the caller's line
  error_id id() const noexcept;                   // none: not one of weir's own messages

 protected:
  error(std::string operation, std::string operands, std::string remedy, source_location, error_id);
  // what(): "weir-NNN: operation: operands. Remedy [file:line]"
  static std::string sentence(std::string const& operation, std::string const& operands, std::string const& remedy,
                              source_location, error_id);
  error(error const&) noexcept;
  error& operator=(error const&) noexcept;
  ~error();

 private:
  struct text;
  std::shared_ptr<text const> text_;
};

// A wrong argument, or a call at a wrong time. Nothing has changed.
class invalid_use : public std::logic_error, public error {
 public:
  invalid_use(std::string operation, std::string operands, std::string remedy, source_location,
              error_id = error_id::none);
  char const* what() const noexcept override { return std::logic_error::what(); }
};

// This machine or build cannot do it.
class not_supported : public std::runtime_error, public error {
 public:
  not_supported(std::string operation, std::string operands, std::string remedy, source_location,
                error_id = error_id::none);
  char const* what() const noexcept override { return std::runtime_error::what(); }
};

// The driver refused. code(): its error number (CUresult, ncclResult_t), 0 on a simulated machine.
class driver_error : public std::runtime_error, public error {
 public:
  driver_error(int code, std::string operation, std::string operands, std::string remedy, source_location,
               error_id = error_id::none);
  char const* what() const noexcept override { return std::runtime_error::what(); }
  int code() const noexcept { return code_; }

 private:
  int code_;
};

// The device is lost for the rest of the process. Other devices work. Enqueued work may never have run.
class device_lost : public driver_error {
 public:
  using driver_error::driver_error;
};

// A wait reached its time limit.
class timed_out : public std::runtime_error, public error {
 public:
  timed_out(std::string operation, std::string operands, std::string remedy, source_location,
            error_id = error_id::none);
  char const* what() const noexcept override { return std::runtime_error::what(); }
};

// Thrown by require_no_races if options::check_races found a race. where(): the second use.
class race_found : public std::logic_error, public error {
 public:
  race_found(std::string report, source_location first, source_location second);
  char const* what() const noexcept override { return std::logic_error::what(); }
  source_location first() const noexcept { return first_; }
  source_location second() const noexcept { return where(); }

 private:
  source_location first_;
};

// Thrown after all recovery steps and on_out_of_memory's callbacks failed, whatever memory ran out. The runtime stays
// usable. operation(): the call of the program.
class out_of_memory : public std::bad_alloc, public error {
 public:
  out_of_memory(std::string operation, memory_report, source_location);
  char const* what() const noexcept override;
  memory_report const& report() const noexcept { return *report_; }

 private:
  std::shared_ptr<memory_report const> report_;
  std::shared_ptr<std::string const> what_;
};

}  // namespace weir
