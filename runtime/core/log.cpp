// The sink is one for the process; the level is each runtime's option.
// Threads: any; one line at a time.
#include "runtime/core/log.h"

#include <cstdio>

#include "runtime/base/lasting.h"
#include "runtime/base/sync.h"
#include "runtime/options/options.h"

namespace weir {
namespace {

struct sink {
  base::mutex lock;
  std::function<void(log_line const&)> tell;
};
sink& the_sink() {
  static base::lasting<sink> only;
  return *only;
}

void print(log_line const& line) {
  std::fputs((line.str() + '\n').c_str(), stderr);
}

}  // namespace

std::string log_line::str() const {
  std::int64_t const day_us = ns / 1000 % (std::int64_t{86'400} * 1'000'000);
  char time[40];
  std::snprintf(time, sizeof time, "%02d:%02d:%02d.%06d", static_cast<int>(day_us / 3'600'000'000),
                static_cast<int>(day_us / 60'000'000 % 60), static_cast<int>(day_us / 1'000'000 % 60),
                static_cast<int>(day_us % 1'000'000));
  std::string out = "weir " + std::string(time) + ' ' + std::string(log_levels[static_cast<size_t>(level)]);
  if (device >= 0)
    out += " gpu:" + std::to_string(device);
  if (stream)
    out += " stream " + std::to_string(stream);
  if (bytes)
    out += ", " + bytes_text(bytes);
  return out + ": " + std::string(text);
}

void log(log_level level, log_about of, std::string_view text) noexcept {
  try {
    log_line const line{base::calendar_ns(), level, of.device, of.stream, of.bytes, text};
    // A thread of the parent may hold the lock for ever.
    if (process_was_forked())
      return print(line);
    sink& to = the_sink();
    base::lock_guard const one_at_a_time(to.lock);
    if (to.tell)
      to.tell(line);
    else
      print(line);
  } catch (std::bad_alloc const&) {}  // no memory for the line
}

void on_log(std::function<void(log_line const&)> f) {
  if (process_was_forked())
    throw_refusal({driver::code::forked}, "on_log", "the receiver of log lines", {}, source_location::current());
  sink& to = the_sink();
  base::lock_guard const one_at_a_time(to.lock);
  to.tell = std::move(f);
}

}  // namespace weir
