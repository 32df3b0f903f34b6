// The training of a replica, and the threads that do it.
// Threads: see trainer.h.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <numeric>
#include <random>

#include "examples/ranks.h"
#include "trainer.h"
#include "weir/copy.h"
#include "weir/pipeline.h"
#include "weir/timeline.h"

namespace trainer {
namespace {

using examples::gather, std::int64_t, std::size_t;

struct replica {
  settings const& s;
  text const& t;
  weir::communicator& ranks;
  model m{s.shape, s.type, s.how, ranks};
  size_t places = s.shape.context + 1, batch = s.batch, rows = batch / ranks.size(), own = rows * ranks.rank();

  // What a checkpoint says of its run. Texts of a file are UTF-8, and characters here are bytes.
  weir::checkpoint_metadata texts(int64_t step) const {
    std::string shape, characters;
    for (int const n : {s.shape.context, s.shape.width, s.shape.layers, s.shape.heads})
      shape += std::to_string(n) + " ";
    for (unsigned char const c : t.characters)
      characters += std::to_string(c) + " ";
    return {{"context, width, layers, heads", shape}, {"characters", characters}, {"step", std::to_string(step)}};
  }
  // Every replica gets what rank 0 reads. Returns: the step
  int64_t load() {
    int64_t step = 0;
    std::optional<weir::checkpoint_reader> file;
    if (ranks.rank() == 0 && !s.load_file.empty()) {
      file.emplace(s.load_file);
      weir::checkpoint_metadata said = file->metadata();
      step = std::atoll(said["step"].c_str());
      if (said != texts(step) || !file->has_checksums())
        throw std::runtime_error("checkpoint: " + s.load_file + " is of another model or text; use the same options");
      if (step > s.steps)
        throw std::runtime_error("checkpoint: " + s.load_file + " has " + said["step"] + " steps; ask for more");
      std::printf("from step %s of %s\n", said["step"].c_str(), s.load_file.c_str());
    }
    step = gather(ranks, step)[0];
    for (weir::checkpoint_item const& item : m.state()) {
      if (file)
        file->read(item.name, item.values);
      if (step > 0)
        ranks.broadcast(item.values, 0);
    }
    m.round_parameters();
    return step;
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
  double rate_at(double step) const {  // rises to the highest, then falls as a cosine to a tenth of it
    double const warm = std::min(1.0, (step + 1) / std::clamp(s.steps / 20.0, 1.0, 100.0));
    return s.how.rate * warm * (0.55 + 0.45 * std::cos(std::numbers::pi * step / s.steps));
  }
  void learn(int64_t first, std::optional<weir::checkpoint_writer>& writer,
             std::function<void(int64_t, float)> const& told) {
    auto const part = t.training();
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
      weir::tensor const loss = m.step(tokens(*batch), 1.f / (s.batch * s.shape.context), rate_at(step));
      if (step > first)  // the device works meanwhile
        tell(step - 1);
      arrived[step % 2] = losses[step % 2].copy_(loss.view({1}), weir::non_blocking);
      if (!writer || step + 1 == s.steps || s.save_every == 0 || (step + 1) % s.save_every != 0)
        continue;
      std::vector<double> const now = gather(ranks, m.loss(tokens(*batch)).item<double>());
      require_number(std::reduce(now.begin(), now.end()));
      writer->save(m.state(), texts(step + 1));
    }
    if (first < s.steps)
      tell(s.steps - 1);
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
    std::vector<double> const sums = gather(ranks, sum);
    return std::reduce(sums.begin(), sums.end()) / (all * (places - 1));
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
    std::optional<weir::checkpoint_writer> writer;
    if (!s.save_file.empty())
      writer.emplace(s.save_file, ranks, weir::source_location::current());  // rank 0 writes
    learn(load(), writer, told);
    outcome all{gather(ranks, fingerprint()), m.buckets().bucket_count(), validate(), ""};
    require_number(all.validation_loss);
    if (writer)
      writer->save(m.state(), texts(s.steps));
    if (ranks.rank() == 0)
      all.sample = generate();
    if (writer)
      writer->finish();
    return all;
  }
};

}  // namespace

text::text(std::string const& file, model_shape& shape) {
  std::ifstream in(file, std::ios::binary);
  if (!in.is_open() || std::filesystem::is_directory(file))
    throw std::runtime_error("text: " + file + " cannot be read; name a readable file with --text");
  std::string const bytes{std::istreambuf_iterator<char>(in), {}};
  size_t const least = 20 * size_t(shape.context + 1);
  if (bytes.size() < least)
    throw std::runtime_error("text: " + file + " has " + std::to_string(bytes.size()) +
                             " bytes, training needs at least " + std::to_string(least) + "; or a smaller --context");
  if (bytes.find('\0') != bytes.npos)
    throw std::runtime_error("text: " + file + " is not text: it holds a zero byte");
  std::array<std::uint8_t, 256> numbers{};
  for (int c = 1; c < 256; ++c) {
    numbers[c] = characters.size();
    if (bytes.find(char(c)) != bytes.npos)
      characters += char(c);
  }
  for (unsigned char const c : bytes)
    tokens.push_back(numbers[c]);
  shape.vocabulary = (characters.size() + 7) / 8 * 8;  // products are faster so
}

outcome train(settings const& s, text const& t, std::vector<weir::communicator> ranks,
              std::function<void(int64_t, float)> const& told) {
  weir::manual_seed(s.seed);
  std::vector<outcome> all(ranks.size());
  examples::run_ranks(ranks, [&](size_t i) {
    all[i] = replica{s, t, ranks[i]}.run(i == 0 ? told : [](int64_t, float) {});
  });
  return all[0];
}

}  // namespace trainer
