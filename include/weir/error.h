// weir/error.h: what can be thrown. Every weir exception is an `error`; `error` is no std::exception itself,
// so that out_of_memory can be a std::bad_alloc and `catch (std::exception const&)` still works.
#pragma once
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include "weir/stats.h"

namespace weir {
class error {
 public:
  std::string_view operation() const noexcept;   // "copy"
  std::string_view operands() const noexcept;    // "dst gpu:1 0x7f10… holds 4096 B, asked 8192 B"
  std::string_view remedy() const noexcept;
  here where() const noexcept;
 protected:
  error(std::string operation, std::string operands, std::string remedy, here);
  error(error const&) noexcept;
  ~error();
 private:
  struct text; std::shared_ptr<text const> text_;
};
class invalid_use   : public std::logic_error,   public error { public: invalid_use(std::string, std::string, std::string, here); };   // the caller's; nothing has changed
class not_supported : public std::runtime_error, public error { public: not_supported(std::string, std::string, std::string, here); }; // this machine cannot
class driver_error  : public std::runtime_error, public error { public: driver_error(int code, std::string, std::string, std::string, here); int code() const noexcept; private: int code_; };
class device_lost   : public driver_error { public: using driver_error::driver_error; };      // sticky: this device is gone, others live
class timed_out     : public std::runtime_error, public error { public: timed_out(std::string, std::string, std::string, here); };
class race_found    : public std::logic_error,   public error { public: race_found(std::string, std::string, std::string, here first, here second); here second() const noexcept; };
class out_of_memory : public std::bad_alloc,     public error {
 public:
  out_of_memory(memory_report, here);
  char const* what() const noexcept override;
  memory_report const& report() const noexcept;
 private:
  std::shared_ptr<memory_report const> report_;
};
}
