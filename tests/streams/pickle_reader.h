// Reads what runtime/report/pickle.h writes, as strictly as PyTorch's viewer:
// an opcode that it does not know ends the test.
// Threads: one.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace weir::testing_pickle {

struct value {
  enum class kind { number, real, truth, text, list, dict, mark } is = kind::number;
  std::int64_t number = 0;
  std::string text;
  std::vector<std::shared_ptr<value>> items;  // a dict's: key, value, key, value

  value const& operator[](std::string const& key) const {
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->text == key)
        return *items[i + 1];
    }
    throw std::runtime_error("no key " + key);
  }
  bool has(std::string const& key) const {
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->text == key)
        return true;
    }
    return false;
  }
};

class reader {
 public:
  explicit reader(std::string bytes) : in_(std::move(bytes)) {}

  value read() {
    if (take(2) != "\x80\x02")
      throw std::runtime_error("not protocol 2");
    for (;;) {
      switch (char const op = take(1)[0]; op) {
        case '.': return *stack_.back();
        case 'K': push(value::kind::number).number = integer(1); break;
        case 'M': push(value::kind::number).number = integer(2); break;
        case 'J': push(value::kind::number).number = static_cast<std::int32_t>(integer(4)); break;
        case '\x8a': push(value::kind::number).number = integer(static_cast<std::size_t>(integer(1))); break;
        case 'G': take(8), push(value::kind::real); break;
        case '\x88': push(value::kind::truth).number = 1; break;
        case '\x89': push(value::kind::truth); break;
        case 'X': push(value::kind::text).text = take(static_cast<std::size_t>(integer(4))); break;
        case ']': push(value::kind::list); break;
        case '}': push(value::kind::dict); break;
        case '(': push(value::kind::mark); break;
        case '\x86': tuple(); break;
        case 'e':
        case 'u': extend(); break;
        case 'q': memo_[integer(1)] = stack_.back(); break;
        case 'r': memo_[integer(4)] = stack_.back(); break;
        case 'h': stack_.push_back(memo_.at(integer(1))); break;
        case 'j': stack_.push_back(memo_.at(integer(4))); break;
        default: throw std::runtime_error("an opcode the viewer does not know");
      }
    }
  }

 private:
  std::string take(std::size_t n) {
    if (at_ + n > in_.size())
      throw std::runtime_error("ends too early");
    at_ += n;
    return in_.substr(at_ - n, n);
  }
  std::int64_t integer(std::size_t n) {
    std::uint64_t v = 0;
    std::string const bytes = take(n);
    std::memcpy(&v, bytes.data(), n);
    return static_cast<std::int64_t>(v);
  }
  value& push(value::kind k) {
    stack_.push_back(std::make_shared<value>());
    stack_.back()->is = k;
    return *stack_.back();
  }
  void tuple() {
    auto b = stack_.back();
    stack_.pop_back();
    auto a = stack_.back();
    stack_.pop_back();
    push(value::kind::list).items = {a, b};
  }
  void extend() {
    std::size_t mark = stack_.size();
    while (stack_[--mark]->is != value::kind::mark) {}
    if (stack_.size() - mark - 1 > 2000)
      throw std::runtime_error("more at once than the viewer takes");
    value& whole = *stack_[mark - 1];
    whole.items.insert(whole.items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(mark) + 1, stack_.end());
    stack_.resize(mark);
  }
  std::string in_;
  std::size_t at_ = 0;
  std::vector<std::shared_ptr<value>> stack_;
  std::map<std::int64_t, std::shared_ptr<value>> memo_;
};

}  // namespace weir::testing_pickle
