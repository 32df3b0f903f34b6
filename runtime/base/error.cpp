// The texts of weir's exceptions.
// Threads: any.
#include "weir/error.h"

#include <utility>

namespace weir {
namespace {
constexpr error_id no_memory{101};  // …: out of memory: a report
constexpr error_id racing{102};     // check_races: race: two uses of a byte that nothing orders, at least one a write
}  // namespace

struct WEIR_LOCAL error::text {
  std::string operation, operands, remedy;
  source_location where;
  error_id id;
};

error::error(std::string operation, std::string operands, std::string remedy, source_location at, error_id id)
    : text_(std::make_shared<text const>(text{std::move(operation), std::move(operands), std::move(remedy), at, id})) {}
error::error(error const&) noexcept = default;
error& error::operator=(error const&) noexcept = default;
error::~error() = default;
std::string_view error::operation() const noexcept {
  return text_->operation;
}
std::string_view error::operands() const noexcept {
  return text_->operands;
}
std::string_view error::remedy() const noexcept {
  return text_->remedy;
}
source_location error::where() const noexcept {
  return text_->where;
}
error_id error::id() const noexcept {
  return text_->id;
}

std::string error::sentence(std::string const& operation, std::string const& operands, std::string const& remedy,
                            source_location at, error_id id) {
  std::string s = id == error_id::none ? "weir" : "weir-" + std::to_string(static_cast<int>(id));
  s += ": " + operation + ": " + operands;
  if (!remedy.empty())
    s += ". " + remedy;
  if (at.file_name())
    s += std::string(" [") + at.file_name() + ":" + std::to_string(at.line()) + "]";
  return s;
}

invalid_use::invalid_use(std::string operation, std::string operands, std::string remedy, source_location at,
                         error_id id)
    : std::logic_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id) {}
not_supported::not_supported(std::string operation, std::string operands, std::string remedy, source_location at,
                             error_id id)
    : std::runtime_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id) {}
driver_error::driver_error(int code, std::string operation, std::string operands, std::string remedy,
                           source_location at, error_id id)
    : std::runtime_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id),
      code_(code) {}
timed_out::timed_out(std::string operation, std::string operands, std::string remedy, source_location at, error_id id)
    : std::runtime_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id) {}

namespace {
constexpr std::string_view remedy_word = "Remedy: ";
std::string before_remedy(std::string const& report) {
  return report.substr(0, report.find(remedy_word));
}
std::string after_remedy(std::string const& report) {
  auto const at = report.find(remedy_word);
  return at == report.npos ? std::string() : report.substr(at + remedy_word.size());
}
}  // namespace

race_found::race_found(std::string report, source_location first, source_location second)
    : std::logic_error(sentence("check_races", report, "", second, racing)),
      error("check_races", before_remedy(report), after_remedy(report), second, racing),
      first_(first) {}

namespace {
std::string last_line(std::string text) {  // of a report: the remedy
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}
}  // namespace

out_of_memory::out_of_memory(std::string operation, memory_report report, source_location at)
    : error(operation, report.on.str() + " has no room for " + std::to_string(report.requested) + " B",
            last_line(report.text()), at, no_memory),
      report_(std::make_shared<memory_report const>(std::move(report))),
      what_(std::make_shared<std::string const>(sentence(operation, "out of memory", report_->text(), at, no_memory))) {
}
char const* out_of_memory::what() const noexcept {
  return what_->c_str();
}

}  // namespace weir
