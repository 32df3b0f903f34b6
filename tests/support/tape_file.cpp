// Tape files, and how they are shortened.
// Threads: any.
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/explore/explore.h"

namespace weir::tests {

using numbers = driver::sim::tape::numbers;

std::string tape_file::text() const {
  std::ostringstream out;
  out << "weir tape 1\nprogram " << program << "\npoints " << (atomics ? "atomics" : "locks") << "\nseed " << seed
      << '\n';
  if (hash)
    out << "hash 0x" << std::hex << *hash << std::dec << '\n';
  if (!what.empty())
    out << "what " << what.substr(0, what.find('\n')) << '\n';
  out << "draws " << draws.size();
  for (std::size_t i = 0; i < draws.size(); ++i)
    out << (i % 32 ? ' ' : '\n') << draws[i];
  out << '\n';
  return out.str();
}

tape_file tape_file::parse(std::string const& text) {
  std::istringstream in(text);
  auto const wrong = [](std::string const& why) -> void { throw std::runtime_error("no tape: " + why); };
  std::string line;
  if (!std::getline(in, line) || line != "weir tape 1")
    wrong("the first line is not \"weir tape 1\"");
  tape_file f;
  for (std::string word; in >> word;) {
    if (word == "program") {
      in >> f.program;
    } else if (word == "points") {
      in >> word;
      if (word != "atomics" && word != "locks")
        wrong("points at \"" + word + "\", neither locks nor atomics");
      f.atomics = word == "atomics";
    } else if (word == "seed") {
      in >> f.seed;
    } else if (word == "hash") {
      in >> word;
      f.hash = std::stoull(word, nullptr, 0);
    } else if (word == "what") {
      std::getline(in >> std::ws, f.what);
    } else if (word == "draws") {
      std::size_t n = 0;
      if (in >> n; n > 100'000'000)
        wrong("it has " + std::to_string(n) + " draws");
      for (std::uint32_t v; f.draws.size() < n && in >> v;)
        f.draws.push_back(v);
      if (f.draws.size() != n)
        wrong(std::to_string(n) + " draws are announced, " + std::to_string(f.draws.size()) + " are there");
    } else {
      wrong("a line begins with \"" + word + "\"");
    }
  }
  if (f.program.empty())
    wrong("no program is named");
  return f;
}

tape_file tape_file::read(std::string const& path) {
  std::ifstream in(path);
  if (!in)
    throw std::runtime_error(path + " cannot be read");
  std::stringstream all;
  all << in.rdbuf();
  try {
    return parse(all.str());
  } catch (std::exception const& e) {
    throw std::runtime_error(path + ": " + e.what());
  }
}

void tape_file::write(std::string const& path) const {
  std::ofstream(path) << text();
}

namespace {

class shrinker {
 public:
  shrinker(numbers first, std::uint64_t most, std::function<bool(numbers&)> const& fails)
      : best_(std::move(first)), left_(most), fails_(fails) {}

  numbers run() {
    for (std::size_t before = 0; left_ > 0 && before != weight();) {
      before = weight();
      for (std::size_t size = std::max<std::size_t>(best_.size() / 2, 1); size > 0; size /= 2)
        without(size);
      for (std::size_t size = std::max<std::size_t>(best_.size() / 2, 1); size > 0; size /= 2)
        zeroed(size);
      lowered();
    }
    return best_;
  }

 private:
  // To be reduced: the number of draws first, then their values.
  std::size_t weight() const {
    std::size_t sum = 0;
    for (auto v : best_)
      sum += std::min<std::size_t>(v, 1000);
    return best_.size() * 1000 + sum + 1;
  }
  bool take(numbers candidate) {
    while (!candidate.empty() && candidate.back() == 0)
      candidate.pop_back();
    if (left_ == 0 || candidate == best_)
      return false;
    --left_;
    auto const old = weight();
    if (!fails_(candidate))
      return false;
    auto was = std::exchange(best_, std::move(candidate));  // the values really drawn
    if (weight() < old)
      return true;
    best_ = std::move(was);
    return false;
  }
  void without(std::size_t size) {
    for (std::size_t at = best_.size(); at >= size && left_ > 0;) {
      at = std::min(at, best_.size());
      if (at < size)
        break;
      numbers c = best_;
      c.erase(c.begin() + static_cast<std::ptrdiff_t>(at - size), c.begin() + static_cast<std::ptrdiff_t>(at));
      take(std::move(c));
      at -= size;
    }
  }
  void zeroed(std::size_t size) {
    for (std::size_t at = 0; at < best_.size() && left_ > 0; at += size) {
      numbers c = best_;
      for (std::size_t i = at; i < std::min(at + size, c.size()); ++i)
        c[i] = 0;
      take(std::move(c));
    }
  }
  void lowered() {
    for (std::size_t at = 0; at < best_.size() && left_ > 0; ++at) {
      for (auto const lower : {best_[at] / 2, best_[at] > 0 ? best_[at] - 1 : 0}) {
        if (at >= best_.size() || lower >= best_[at])
          continue;
        numbers c = best_;
        c[at] = lower;
        take(std::move(c));
      }
    }
  }

  numbers best_;
  std::uint64_t left_;
  std::function<bool(numbers&)> const& fails_;
};

}  // namespace

numbers shrink(numbers first, std::uint64_t most, std::function<bool(numbers&)> const& fails) {
  return shrinker(std::move(first), most, fails).run();
}

}  // namespace weir::tests
