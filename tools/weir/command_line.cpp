// Parses arguments, prints the help, chooses colours.
// Threads: one.
#include "command_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>

#include "runtime/base/text.h"
#include "runtime/options/options.h"

namespace weir::tool {

namespace po = boost::program_options;

namespace {

// Returns: the positional argument number `most`, counted from 0, if present.
std::optional<std::string> word_after(std::size_t most, po::parsed_options const& parsed) {
  for (auto const& one : parsed.options) {
    if (one.position_key >= 0 && one.string_key.empty() && static_cast<std::size_t>(one.position_key) >= most &&
        !one.value.empty())
      return one.value.front();
  }
  return {};
}

struct examples {
  char const* command;
  char const* lines;
  char const* status;
};
constexpr char const* usual_status = "0 ok, 1 error, 2 usage";
constexpr examples known_examples[] = {
    {"weir info", "  weir info\n  weir info --devices sim:4:2 --json\n", usual_status},
    {"weir doctor", "  weir doctor\n  WEIR_CONF=epsilon:0.01 weir doctor --all\n",
     "0 ok or warnings alone, 1 a check failed, 2 usage"},
    {"weir replay", "  weir replay mine.trace.gz\n  weir replay --limit 8GiB mine.trace.gz\n",
     "0 fits, 1 error, 2 usage, 3 does not fit"},
    {"weir snapshot", "  weir snapshot torch.pickle --html page.html\n", usual_status},
    {"weir bench alloc", "  weir bench alloc\n  weir bench alloc --json pair512 handoff\n", usual_status},
    {"weir bench copy", "  weir bench copy pinned_h2d pinned_d2h\n  weir bench copy 'stage_*' --json\n", usual_status},
    {"weir bench pipeline", "  weir bench pipeline --equal\n", usual_status},
    {"weir bench share", "  weir bench share read_large ring_large\n", usual_status},
    {"weir bench train",
     "  weir bench train --json small --graph\n  weir bench train transformer --bucket 4MiB --bucket 25MiB\n",
     usual_status},
};

std::size_t columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60)
    return std::min<std::size_t>(size.ws_col, 120);
  return 100;
}

// The text in lines that begin at column `indent`; the first line is there already.
std::string wrapped(std::string const& text, std::size_t indent) {
  std::string out;
  std::size_t const width = columns() - indent;
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find_first_of(" \n", at), text.size());
    std::string const word = text.substr(at, end - at);
    if (used && used + 1 + word.size() > width)
      out += "\n" + std::string(indent, ' '), used = 0;
    if (used)
      out += ' ', ++used;
    out += word, used += word.size();
    at = end + 1;
  }
  return out;
}

// "--rounds N", from "rounds" and the value that it takes.
std::string left_column(po::option_description const& o) {
  std::string const name = o.long_name();
  std::string left = name == "help" ? "-h, --help" : "--" + name;
  if (o.semantic()->max_tokens() == 0)
    return left;
  static constexpr std::pair<std::string_view, std::string_view> words[] = {
      {"rounds", "N"},      {"batches", "N"},  {"depth", "N"},      {"reader", "N"},     {"work", "PART"},
      {"steps", "N"},       {"warm", "N"},     {"more", "N"},       {"width", "N"},      {"layers", "N"},
      {"rows", "N"},        {"heads", "N"},    {"context", "N"},    {"bucket", "BYTES"}, {"html", "FILE"},
      {"snapshot", "FILE"}, {"since", "FILE"}, {"epsilon", "PART"}, {"limit", "BYTES"},  {"batch", "BYTES"}};
  auto const* const word = std::find_if(std::begin(words), std::end(words), [&](auto& w) { return w.first == name; });
  if (word != std::end(words))
    return left + " " + std::string(word->second);
  return left + (name.ends_with("bytes") ? " BYTES" : name == "devices" ? " DEVICES" : " VALUE");
}

// " (default: 7)" of Boost's "arg (=7)".
std::string default_of(po::option_description const& o) {
  std::string const text = o.semantic()->name();
  std::size_t const from = text.find("(=");
  return from == text.npos || o.semantic()->max_tokens() == 0 ? "" : " (default: " + text.substr(from + 2);
}

std::string in_capitals(std::string text) {  // the first letter
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z')
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// Boost keeps it to itself, but prints it, and ":" behind it.
std::string caption_of(po::options_description const& all) {
  std::ostringstream text;
  text << all;
  return text.str().substr(0, text.str().find(":\n"));
}

void print_help(po::options_description const& all, std::string const& command, std::string const& words,
                std::string const& about, char const* rest) {
  std::cout << "usage: " << command << (words.empty() ? "" : " ") << words << " [OPTIONS]\n"
            << wrapped(about, 0) << ".\n\noptions:\n";
  std::size_t wide = 0;
  for (auto const& o : all.options())
    wide = std::max(wide, left_column(*o).size());
  for (bool const help : {false, true}) {  // last of all
    for (auto const& o : all.options()) {
      if ((rest && o->long_name() == rest) || (o->long_name() == "help") != help)
        continue;
      std::string left = left_column(*o);
      left.resize(wide + 2, ' ');
      std::cout << "  " << left << wrapped(o->description() + default_of(*o), wide + 4) << "\n";
    }
  }
  for (examples const& e : known_examples) {
    if (command == e.command)
      std::cout << "\nexamples:\n" << e.lines << "\nexit status: " << e.status << "\n";
  }
}

}  // namespace

void use_devices(std::string const& text) {
  if (text.empty())
    return;
  parse_devices(text, "--devices");
  setenv("WEIR_DEVICES", text.c_str(), 1);
}

bool understood(std::vector<std::string> const& arguments, po::options_description const& all, char const* rest,
                int most) {
  std::string const caption = caption_of(all);
  std::size_t const colon = std::min(caption.find(": "), caption.size());
  std::string const words = caption.substr(0, colon);
  std::size_t const first_word = std::min(words.find_first_of("[ABCDEFGHIJKLMNOPQRSTUVWXYZ"), words.size() + 1);
  std::string const command = words.substr(0, first_word - 1);
  auto const refuse = [&](std::string const& mistake) {
    throw usage_error(command + ": " + mistake + (mistake.ends_with('?') ? " See " : ". See ") + command + " --help");
  };
  po::variables_map values;
  try {
    auto parsed = po::command_line_parser(arguments).options(all).run();
    if (most >= 0) {
      if (auto const extra = word_after(static_cast<std::size_t>(most), parsed))
        refuse("unexpected argument '" + *extra + "'");
    }
    po::positional_options_description unnamed;
    if (rest)
      unnamed.add(rest, most);
    po::store(po::command_line_parser(arguments).options(all).positional(unnamed).run(), values);
    po::notify(values);
  } catch (po::unknown_option const& e) {
    std::vector<std::string> names;
    for (auto const& o : all.options())
      names.push_back("--" + o->long_name());
    std::vector<std::string_view> const views(names.begin(), names.end());
    auto const meant = base::near(e.get_option_name(), views);
    refuse("no option is called " + e.get_option_name() +
           (meant ? "; did you mean " + std::string(*meant) + "?" : std::string()));
  } catch (po::error const& e) {
    refuse(e.what());
  }
  if (!values.count("help"))
    return true;
  print_help(all, command, first_word > words.size() ? "" : words.substr(first_word),
             in_capitals(caption.substr(std::min(colon + 2, caption.size()))), rest);
  return false;
}

std::string coloured(std::string const& text, colour c) {
  static bool const wanted = ::isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  if (!wanted)
    return text;
  static constexpr char const* codes[] = {"\033[32m", "\033[33m", "\033[31m"};
  return codes[static_cast<std::size_t>(c)] + text + "\033[0m";
}

void show_progress(std::string const& what) {
  static bool const wanted = ::isatty(STDERR_FILENO);
  if (wanted)
    std::fprintf(stderr, "\r\033[K%s", what.c_str()), std::fflush(stderr);
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (char const c : text) {
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else
      out += c;
  }
  return out + "\"";
}

std::string version_line() {
#if defined(WEIR_TOOLKIT)
  return "weir " WEIR_VERSION ", CUDA toolkit " WEIR_TOOLKIT;
#else
  return "weir " WEIR_VERSION ", built without CUDA: simulated devices only";
#endif
}

}  // namespace weir::tool
