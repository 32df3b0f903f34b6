// The findings of the race checker, as weir/observe.h shows them.
// Threads: any.
#include "runtime/core/parts.h"
#include "runtime/driver/call_watch.h"
#include "runtime/driver/race_control.h"
#include "streams/stream/context.h"
#include "weir/observe.h"

namespace weir {

namespace {
using driver::check::finding;
race_report public_report(finding const& f) {
  return {std::string(name_of(f.what)), f.text, f.first, f.second, f.times};
}
driver::check::control* checker(source_location at) {
  return streams::current_runtime(at).machine().checker();
}
std::vector<race_report> reports(bool are_possible, source_location at) {
  std::vector<race_report> all;
  auto* const c = checker(at);
  if (!c)
    return all;
  for (finding const& f : c->findings())
    if ((f.what == finding::kind::possible_race) == are_possible)
      all.push_back(public_report(f));
  return all;
}
}  // namespace

void name_race_places(source_location (*last_line)() noexcept) noexcept {
  driver::name_places_with(last_line);
}

std::vector<race_report> race_reports(source_location at) {
  return reports(false, at);
}

std::vector<race_report> possible_races(source_location at) {
  return reports(true, at);
}

std::string races_not_judged(source_location at) {
  auto* const c = checker(at);
  return c ? c->unseen().text() : std::string();
}

void require_no_races(source_location at) {
  auto const all = race_reports(at);
  if (!all.empty())
    throw race_found(all.front().text, all.front().first, all.front().second);
}

void on_race(std::function<void(race_report const&)> f, source_location at) {
  auto* const c = checker(at);
  if (!c)
    return;
  if (!f)
    return c->on_finding(nullptr);
  c->on_finding([f = std::move(f)](finding const& found) { f(public_report(found)); });
}

}  // namespace weir
