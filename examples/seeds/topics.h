// The nine topics of the articles, one table each. Returns: the number of failed rows and sentences.
#pragma once
#include <span>
#include <string_view>

#include "examples/seeds/table.h"

namespace seeds {

struct topic {
  std::string_view name, shows;
  int (*run)(settings const&);
  std::string_view articles;
};
std::span<topic const> topics();

int give_back(settings const&);
int small_blocks(settings const&);
int views(settings const&);
int watching(settings const&);
int training(settings const&);
int devices(settings const&);
int streams(settings const&);
int pinned(settings const&);
int several(settings const&);

}  // namespace seeds
