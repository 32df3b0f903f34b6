// The training of a replica, and the threads that do it.
// Threads: see trainer.h.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "trainer.h"
#include "weir/copy.h"
#include "weir/pipeline.h"
#include "weir/timeline.h"

namespace trainer {
namespace {

using std::int64_t, std::size_t;

struct replica {
  settings const& s;
  text const& t;
  weir::communicator& ranks;
  model m{s.shape, s.type, s.how, ranks};
  size_t places = s.shape.context + 1, batch = s.batch, rows = batch / ranks.size(), own = rows * ranks.rank();

  // What the extents of the items do not tell of a run. Texts of a file are UTF-8, and characters here are bytes.
  weir::checkpoint_metadata texts() const {
    std::string of = std::to_string(s.shape.heads);
    for (unsigned char const c : t.characters)
      of += " " + std::to_string(c);
    return {{"heads and characters", of}};
  }
  // This replica's sequences of batches before `last`. The n-th sequence of all begins at start(n) of the part.
  weir::loader batches(std::span<std::uint8_t const> part, size_t first, size_t last,
                       std::function<size_t(size_t)> start) const {
    return {{.batch_bytes = places * rows, .on = ranks.device()}, [=, this](size_t number, std::span<std::byte> to) {
              for (size_t row = 0; row < rows; ++row)
                for (size_t place = 0, at = start((first + number) * batch + own + row); place < places; ++place)
                  to[place * rows + row] = std::byte{part[at + place]};
              return first + number < last ? places * rows : 0;
            }};
  }
  static weir::device_span tokens(weir::batch const& b) {
    return {b.data(), static_cast<int64_t>(b.size()), weir::uint8};
  }
  void learn(int64_t first, weir::training_checkpoint& saved, std::function<void(int64_t, float)> const& told) {
    auto const part = t.training();
    int64_t const warm = std::clamp<int64_t>(s.steps / 20, 1, 100);
    weir::loader loader = batches(part, first, s.steps, [=, this](size_t n) {
      return std::mt19937_64(s.seed + n * 0x9e3779b97f4a7c15u)() % (part.size() - places + 1);
    });
    weir::tensor const losses = weir::empty({2, 1}, {.on = weir::cpu, .kind = weir::memory_kind::pinned});
    weir::stamp arrived[2];
    auto const tell = [&](int64_t step) {
      arrived[step % 2].synchronize();
      if (std::string const why = ranks.failure(); !why.empty())
        throw std::runtime_error("training stops: " + why);
      float const loss = losses[step % 2].host<float>()[0];
      require_number(loss);
      told(step, loss);
    };
    for (int64_t step = first; step < s.steps; ++step) {
      weir::profile_range const in_timeline("step " + std::to_string(step));
      std::optional<weir::batch> const batch = loader.next();
      double const rate = s.how.rate * weir::warm_cosine(step, s.steps, warm);
      weir::tensor const loss = m.step(tokens(*batch), 1.f / (s.batch * s.shape.context), rate);
      if (step > first)  // the device works meanwhile
        tell(step - 1);
      arrived[step % 2] = losses[step % 2].copy_(loss.view({1}), weir::non_blocking);
      if (step + 1 == s.steps || s.save_every == 0 || (step + 1) % s.save_every != 0)
        continue;
      require_number(sum_of(m.loss(tokens(*batch)).item<double>()));
      saved.save(step + 1);
    }
    if (first < s.steps)
      tell(s.steps - 1);
  }
  double sum_of(double mine) const {
    std::vector<double> const all = ranks.exchange(mine);
    return std::reduce(all.begin(), all.end());
  }
  // No checkpoint is written of parameters that give another loss.
  static void require_number(double loss) {
    if (!std::isfinite(loss))
      throw std::runtime_error("training stops: the loss is no number; lower --rate");
  }
  // Returns: the mean loss of sequences all over the validation part, the same ones for any number of ranks.
  double validate() {
    auto const part = t.validation();
    size_t const last = std::max<size_t>(32768 / (batch * places), 1), all = last * batch;
    weir::loader loader =
        batches(part, 0, last, [=, this](size_t n) { return std::min(n, all - 1) * (part.size() - places) / all; });
    double sum = 0;
    while (std::optional<weir::batch> const b = loader.next())
      sum += m.loss(tokens(*b)).item<double>();
    return sum_of(sum) / (all * (places - 1));
  }
  int64_t fingerprint() const {
    weir::device_span const all = m.buckets().parameters();
    std::string bytes(all.count * sizeof(float), '\0');
    weir::copy(bytes.data(), all.data, bytes.size());
    return static_cast<int64_t>(std::hash<std::string>{}(bytes));
  }
  // Draws one character after another, the first at the begin of a line. The model sees the last ones.
  std::string generate() {
    std::mt19937_64 random(s.seed);
    std::vector<std::uint8_t> all{std::uint8_t(std::max<int>(t.characters.find('\n'), 0))};
    std::string written;
    weir::tensor const window = weir::zeros({s.shape.context + 1}, {.dtype = weir::uint8});
    while (std::ssize(written) < s.sample) {
      size_t const known = std::min(all.size(), places - 1);  // what is behind them changes nothing before it
      weir::copy(window.data(), all.data() + all.size() - known, known);
      weir::tensor const scores = m.logits({window.data(), window.numel(), weir::uint8})[known - 1].cpu();
      std::vector<double> weights;
      for (float const score : scores.host<float>().first(t.characters.size()))
        weights.push_back(std::exp(score / 0.7));  // below 1: the likely ones get more
      all.push_back(std::discrete_distribution<>(weights.begin(), weights.end())(random));
      written += t.characters[all.back()];
    }
    return written;
  }
  outcome run(std::function<void(int64_t, float)> const& told) {
    weir::training_checkpoint saved(s.save_file, ranks, m.state(), texts());
    int64_t const first = s.resume ? saved.resume() : 0;
    m.round_parameters();
    if (first > s.steps)
      throw std::runtime_error("checkpoint: " + s.save_file + " has " + std::to_string(first) + " steps; ask for more");
    learn(first, saved, told);
    outcome all{ranks.exchange(fingerprint()), m.buckets().bucket_count(), validate(), ""};
    require_number(all.validation_loss);
    saved.save(s.steps);
    if (ranks.rank() == 0)
      all.sample = generate();
    saved.finish();
    return all;
  }
};

}  // namespace

text::text(std::string const& file, model_shape& shape) {
  std::ifstream in(file, std::ios::binary);
  auto const refuse = [&](std::string const& why) { throw std::runtime_error("text: " + file + why); };
  if (!in.is_open() || std::filesystem::is_directory(file))
    refuse(" cannot be read; name a readable file with --text");
  std::string const bytes{std::istreambuf_iterator<char>(in), {}};
  size_t const least = 20 * size_t(shape.context + 1), has = bytes.size();
  if (has < least)
    refuse(" has " + std::to_string(has) + " bytes and needs " + std::to_string(least) + "; or a smaller --context");
  if (bytes.find('\0') != bytes.npos)
    refuse(" is not text: it holds a zero byte");
  std::set<char> const known(bytes.begin(), bytes.end());
  characters.assign(known.begin(), known.end());
  for (char const c : bytes)
    tokens.push_back(characters.find(c));
  shape.vocabulary = (characters.size() + 7) / 8 * 8;  // products are faster so
}

outcome train(settings const& s, text const& t, std::span<weir::communicator> ranks,
              std::function<void(int64_t, float)> const& told) {
  weir::manual_seed(s.seed);
  std::vector<outcome> all(ranks.size());
  weir::run_ranks(ranks, [&](weir::communicator& rank) {
    size_t const i = &rank - ranks.data();
    all[i] = replica{s, t, rank}.run(i == 0 ? told : [](int64_t, float) {});
  });
  return all[0];
}

}  // namespace trainer
