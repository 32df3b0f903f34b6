// weir/checkpoint.h: items and the writer's handle.
// Threads: see weir/checkpoint.h.
#include "checkpoint/writing.h"
#include "runtime/base/process.h"

namespace weir {
namespace {

// A forked child has copies of locks that the writer's thread may hold: they cannot be destroyed.
std::shared_ptr<checkpoints::writing> begun(std::filesystem::path const& path, communicator* ranks,
                                            source_location at) {
  std::shared_ptr<checkpoints::writing> const w(new checkpoints::writing(path, ranks, at),
                                                [](checkpoints::writing* one) {
                                                  if (!process_was_forked())
                                                    delete one;
                                                });
  w->start();
  return w;
}

}  // namespace

checkpoint_error::checkpoint_error(std::string operation, std::string operands, std::string remedy, source_location at,
                                   error_id id)
    : std::runtime_error(sentence(operation, operands, remedy, at, id)),
      error(std::move(operation), std::move(operands), std::move(remedy), at, id) {}

checkpoint_item::checkpoint_item(std::string item_name, tensor const& t, source_location at)
    : name(std::move(item_name)), values{t.data(), t.numel(), t.dtype()}, extents(t.shape()) {
  if (!t.defined() || !t.is_contiguous())
    throw invalid_use("checkpoint_item", name + (t.defined() ? ", a view with gaps" : ", an undefined tensor"),
                      "Pass t.contiguous(), and keep it until save() has returned", at, error_id{533});
}

checkpoint_writer::checkpoint_writer(std::filesystem::path const& path, source_location at)
    : writing_(begun(path, nullptr, at)) {}

checkpoint_writer::checkpoint_writer(std::filesystem::path const& path, communicator& ranks, source_location at)
    : writing_(begun(path, &ranks, at)) {}

checkpoint_writer::~checkpoint_writer() {
  if (!process_was_forked())
    writing_->close();
}

void checkpoint_writer::save(std::vector<checkpoint_item> const& items, checkpoint_metadata texts, source_location at) {
  writing_->save(std::nullopt, items, std::move(texts), at);
}
void checkpoint_writer::save(stream_ref on, std::vector<checkpoint_item> const& items, checkpoint_metadata texts,
                             source_location at) {
  writing_->save(on, items, std::move(texts), at);
}

void checkpoint_writer::finish(source_location at) {
  writing_->finish(at);
}

}  // namespace weir
