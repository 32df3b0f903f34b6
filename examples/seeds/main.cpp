// Repeats the experiments of five articles on PyTorch's device memory: `seeds`, or `seeds TOPIC…`.
// Exit status: 0 if every row is as expected.
#include <chrono>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "examples/ending.h"
#include "examples/seeds/topics.h"

namespace {

int usage(std::ostream& to, int status) {
  to << "usage: seeds [OPTIONS] [TOPIC]...\n"
        "Experiments of five articles on PyTorch's device memory, with weir. Every row is checked.\n\noptions:\n"
        "  --full      the articles' own sizes where a simulated device takes smaller ones\n"
        "  --all       every row and sentence, as of a topic that is named; without, one page\n"
        "  -h, --help  this text\n\nexit status: 0 every row holds, 1 a row does not or an error, 2 usage\n\ntopics:\n";
  for (seeds::topic const& t : seeds::topics())
    to << "  " << t.name << std::string(11 - t.name.size(), ' ') << t.shows << "\n";
  return status;
}

void name_articles(std::ostream& to, std::vector<seeds::topic> const& of) {
  to << "\narticles\n";
  for (seeds::topic const& t : of)
    to << "  " << t.name << std::string(11 - t.name.size(), ' ') << t.articles << "\n";
}

int command(int count, char** arguments) {
  std::string_view const first = count > 1 ? arguments[1] : "";
  if (first == "--help" || first == "-h")
    return usage(std::cout, 0);
  if (examples::says_version("seeds", first))
    return 0;
  seeds::settings with{.out = std::cout, .on_gpus = !weir::runtime::current().is_simulated()};
  std::vector<seeds::topic> chosen;
  bool full = with.on_gpus, all = false;
  for (int i = 1; i < count; ++i) {
    std::string_view const word = arguments[i];
    bool known = word == "--full";
    full |= known;
    if (word == "--all")
      all = known = true;
    for (seeds::topic const& t : seeds::topics()) {
      if (t.name == word)
        chosen.push_back(t), known = true;
    }
    if (!known) {
      std::cerr << "seeds: no topic or option '" << word << "'\n";
      return usage(std::cerr, 2);
    }
  }
  if (chosen.empty()) {
    chosen.assign(seeds::topics().begin(), seeds::topics().end());
    with.brief = !all;
  }
  with.touched_part = full ? 1 : 8;
  std::cout << "on " << (with.on_gpus ? weir::runtime::current().description() : "simulated devices") << "\n";
  std::cout << "what they show\n";
  for (seeds::topic const& t : chosen)
    std::cout << "  " << t.name << std::string(11 - t.name.size(), ' ') << t.shows << "\n";
  if (with.brief)
    std::cout << "\n" << seeds::table::columns();
  int failures = 0;
  for (seeds::topic const& t : chosen) {
    auto const began = std::chrono::steady_clock::now();
    failures += t.run(with);
    std::cout << "  ("
              << std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began).count()
              << " ms)\n"
              << std::flush;
  }
  name_articles(std::cout, chosen);
  if (failures)
    std::cout << "\n" << failures << " rows or sentences are not as they must be\n";
  return failures ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  return examples::program("seeds", count, arguments, command);
}
