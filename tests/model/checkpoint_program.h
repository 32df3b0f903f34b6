// Random saves beside work that changes what they save: of one writer or two, on two streams, with ends of a
// writer in between. Every file has the bytes of the moment of its save in the order of the stream.
// Threads: the program's and those of the writers; the seeded machine chooses which runs and what its device
// does.
#pragma once
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>

#include "tests/model/api_program.h"
#include "weir/checkpoint.h"
#include "weir/launch.h"

namespace weir::tests {

class checkpoint_program {
 public:
  explicit checkpoint_program(std::uint64_t seed)
      : random_(seed),
        m_(seeded_machine(seed, 1)),
        folder_(folder_of_memory() /
                ("weir_checkpoint_program_" + std::to_string(::getpid()) + "_" + std::to_string(seed))) {
    std::filesystem::create_directories(folder_);
    for (auto& s : lines_)
      s.emplace();
  }
  ~checkpoint_program() { std::filesystem::remove_all(folder_); }

  verdict run() {
    run_in_threads(m_, "program", 1, wrong_, [this](std::size_t) { go(); });
    judge(m_, wrong_);
    return wrong_;
  }

 private:
  struct one_writer {
    std::optional<checkpoint_writer> writer{};
    int saved = -1;            // the step of the last save
    std::vector<int> bytes{};  // that each item then has
  };
  static constexpr std::size_t most_bytes = 3000;

  // A disk would take most of the time.
  static std::filesystem::path folder_of_memory() {
    return std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
  }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::string file_of(std::size_t writer) const { return folder_ / std::to_string(writer); }

  // Work of the stream sets all bytes of the block.
  void set(stream_ref s, buffer const& b, int value) {
    auto* const at = b.data<unsigned char>();
    std::size_t const n = b.size();
    launch(
        s, {writes(b)}, [](CUstream_st*) {}, [=] { std::fill(at, at + n, static_cast<unsigned char>(value)); });
  }

  void go() {
    std::array<one_writer, 2> writers;
    for (int step = 0, steps = 2 + static_cast<int>(below(8)); step < steps; ++step) {
      std::size_t const which = below(2);
      one_writer& w = writers[which];
      if (!w.writer)
        w.writer.emplace(file_of(which));
      save(w, *lines_[below(2)], step);
      if (below(3) == 0)
        end_save(w, which);
    }
    for (std::size_t i = 0; i < writers.size(); ++i) {
      if (writers[i].writer)
        end_save(writers[i], i);
    }
  }

  void save(one_writer& w, stream_ref on, int step) {
    std::vector<buffer> blocks;
    std::vector<checkpoint_item> items;
    w.bytes.clear();
    for (std::size_t i = 0, n = below(4); i < n; ++i) {
      blocks.emplace_back(on, 1 + below(most_bytes));
      w.bytes.push_back(1 + static_cast<int>(below(200)));
      set(on, blocks.back(), w.bytes.back());
      auto const count = static_cast<std::int64_t>(blocks.back().size());
      items.push_back({std::to_string(i), {blocks.back().data(), count, uint8}, {count}});
    }
    w.writer->save(on, items, {{"step", std::to_string(step)}});
    w.saved = step;
    for (buffer const& b : blocks)
      set(on, b, 255);
  }

  void end_save(one_writer& w, std::size_t which) {
    if (below(2))
      w.writer.reset();
    else
      w.writer->finish();
    checkpoint_reader const r(file_of(which));
    if (r.metadata().at("step") != std::to_string(w.saved) || r.entries().size() != w.bytes.size())
      wrong_.note(check::answers, "the file of another step");
    for (checkpoint_entry const& e : r.entries()) {
      std::vector<std::uint8_t> got(e.bytes);
      r.read(e.name, {got.data(), static_cast<std::int64_t>(got.size()), uint8});
      for (std::uint8_t const byte : got) {
        if (byte != w.bytes[std::stoul(e.name)])
          return wrong_.note(check::bytes, "item " + e.name + " of step " + std::to_string(w.saved));
      }
    }
  }

  std::mt19937_64 random_;
  test::machine m_;
  std::filesystem::path const folder_;
  std::array<std::optional<stream>, 2> lines_;
  verdict wrong_;
};

}  // namespace weir::tests
