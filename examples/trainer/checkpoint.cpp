// Texts and items of the file. weir checks the file; this checks that it is of such a model.
// Threads: see checkpoint.h.
#include "checkpoint.h"

#include <charconv>
#include <cstdio>
#include <stdexcept>

namespace trainer {
namespace {

constexpr int most_extent = 30'000;  // the product of two is an int
constexpr char const* optimizers[] = {"sgd", "adamw"};

// Characters are bytes, and texts of a file are UTF-8.
std::string as_digits(std::string const& bytes) {
  std::string digits;
  for (char const c : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    digits += two;
  }
  return digits;
}

// The texts of a file, as what they stand for.
class texts {
 public:
  texts(weir::checkpoint_metadata const& all, std::string file) : all_(all), file_(std::move(file)) {}
  [[noreturn]] void refuse(std::string const& why) const {
    throw std::runtime_error("checkpoint: " + file_ + " " + why);
  }
  std::string const& text(std::string const& name) const {
    auto const found = all_.find(name);
    if (found == all_.end())
      refuse("is no checkpoint of this trainer: it has no " + name);
    return found->second;
  }
  template <class T>
  T number(std::string const& name, T least, T most) const {
    std::string const& t = text(name);
    T value{};
    auto const end = std::from_chars(t.data(), t.data() + t.size(), value);
    if (end.ec != std::errc() || end.ptr != t.data() + t.size() || value < least || value > most)
      refuse("is damaged: " + name + " is no number from " + std::to_string(least) + " to " + std::to_string(most));
    return value;
  }
  std::string bytes(std::string const& name) const {
    std::string const& digits = text(name);
    std::string all;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
      unsigned value = 0;
      (void)std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16);
      all += static_cast<char>(value);
    }
    if (as_digits(all) != digits)
      refuse("is damaged: " + name + " is no row of bytes");
    return all;
  }

 private:
  weir::checkpoint_metadata const& all_;
  std::string file_;
};

// Calls each(name, extents) in the order of model::save().
template <class Each>
void each_saved(model_shape const& shape, optimizer by, Each each) {
  for (auto const& row : parameter_table(shape)) {
    for (std::string const& name : saved_names(row.name, by))
      each(name, weir::shape{row.rows, row.columns});
  }
}

}  // namespace

weir::checkpoint_metadata texts_of(checkpoint const& c) {
  return {{"context", std::to_string(c.shape.context)},
          {"vocabulary", std::to_string(c.shape.vocabulary)},
          {"embedding", std::to_string(c.shape.embedding)},
          {"hidden", std::to_string(c.shape.hidden)},
          {"layers", std::to_string(c.shape.layers)},
          {"optimizer", optimizers[static_cast<int>(c.by)]},
          {"step", std::to_string(c.step)},
          {"characters", as_digits(c.characters)}};
}

void write_checkpoint(std::filesystem::path const& file, checkpoint const& c) {
  std::vector<weir::checkpoint_item> items;
  auto* at = const_cast<float*>(c.values.data());
  each_saved(c.shape, c.by, [&](std::string const& name, weir::shape const& extents) {
    std::int64_t const count = extents.numel();
    items.push_back({name, {at, count, weir::float32}, extents});
    at += count;
  });
  weir::checkpoint_writer writer(file);
  writer.save(items, texts_of(c));
  writer.finish();
}

checkpoint read_checkpoint(std::filesystem::path const& file) {
  weir::checkpoint_reader const in(file);
  texts const from(in.metadata(), file.string());
  if (!in.has_checksums())
    from.refuse("is no checkpoint of this trainer: it has no checksums");
  checkpoint c;
  c.shape = {.context = from.number("context", 1, most_extent),
             .vocabulary = from.number("vocabulary", 1, most_extent),
             .embedding = from.number("embedding", 1, most_extent),
             .hidden = from.number("hidden", 1, most_extent),
             .layers = from.number("layers", 0, most_extent)};
  c.by = from.text("optimizer") == optimizers[0] ? optimizer::sgd : optimizer::adamw;
  if (from.text("optimizer") != optimizers[static_cast<int>(c.by)])
    from.refuse("is damaged: it names no optimizer");
  c.step = from.number("step", std::int64_t{0}, INT64_MAX);
  c.characters = from.bytes("characters");
  if (c.characters.size() != static_cast<std::size_t>(c.shape.vocabulary))
    from.refuse("is damaged: it says " + std::to_string(c.shape.vocabulary) + " characters and has " +
                std::to_string(c.characters.size()));
  each_saved(c.shape, c.by, [&](std::string const& name, weir::shape const& extents) {
    weir::checkpoint_entry const* const e = in.find(name);
    if (!e || e->dtype != weir::float32 || e->extents != extents)
      from.refuse("is damaged: a model of its shape has " + name + " of " + extents.str());
    std::size_t const before = c.values.size();
    c.values.resize(before + static_cast<std::size_t>(extents.numel()));
    in.read(name, {c.values.data() + before, extents.numel(), weir::float32});
  });
  return c;
}

}  // namespace trainer
