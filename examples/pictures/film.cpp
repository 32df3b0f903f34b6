#include <ostream>

#include "scenes.h"

namespace pictures {
namespace {

constexpr char const* names_of_states[] = {"live", "pending", "free"};

}  // namespace

void film::shoot_new(void const* block, std::string block_name, std::string const& act, std::string const& outcome) {
  name(block, std::move(block_name));
  shoot(act, outcome);
}

void film::shoot(std::string const& act, std::string const& outcome) {
  weir::memory_statistics const now = weir::memory_stats();
  out_ << R"({"scene":")" << scene_ << R"(","act":")" << act << R"(","outcome":")" << outcome << R"(","reserved":)"
       << now.reserved_bytes.all.current << R"(,"new_bytes":)"
       << now.reserved_bytes.all.allocated - before_.reserved_bytes.all.allocated << R"(,"hits":)"
       << now.cache_hits - before_.cache_hits << R"(,"steps":[)";
  char const* between = "";
  for (std::size_t i = 0; i < weir::recovery_steps.size(); ++i) {
    if (now.recovered_by[i] == before_.recovered_by[i])
      continue;
    out_ << between << '"' << weir::recovery_steps[i] << '"';
    between = ",";
  }
  before_ = now;
  out_ << R"(],"segments":[)";
  between = "";
  for (weir::memory_segment const& s : weir::memory_snapshot()) {
    out_ << between << R"({"at":)" << s.address << R"(,"stream":)" << s.stream << R"(,"blocks":[)";
    char const* comma = "";
    for (weir::memory_block const& b : s.blocks) {
      bool const is_live = b.state == weir::block_state::active_allocated;
      auto const named = names_.find(reinterpret_cast<void const*>(b.address));
      out_ << comma << '[' << b.bytes << ",\"" << names_of_states[static_cast<int>(b.state)] << "\",\""
           << (is_live && named != names_.end() ? named->second : "") << "\"]";
      comma = ",";
    }
    out_ << "]}";
    between = ",";
  }
  out_ << "]}\n";
}

}  // namespace pictures
