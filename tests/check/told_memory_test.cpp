// Copies, fills, memory and graphs past weir, the host beside them, and what is not judged.
// Threads: one.
#include <cstdlib>

#include "simulator/checker/kernel_names.h"
#include "tests/check/told.h"
#include "weir/error.h"

namespace weir::driver::check {
namespace {

struct told_calls : told {
  stream_handle const a = stream(), b = stream();
  address const x = block(a), y = block(a);

  void copy(stream_handle s, address to, address from, std::size_t n, int line, bool waits = false) {
    calls.copied(0, cuda(s), to, from, n, waits, at_line(line));
  }
  void fill(stream_handle s, address to, std::size_t n, int line, bool waits = false) {
    calls.filled(0, cuda(s), to, n, waits, at_line(line));
  }
};

// Copies and fills -------------------------------------------------------------------------------------------

TEST_F(told_calls, that_copy_or_fill_are_exact_uses) {
  copy(a, x, y, 64, 11);
  fill(b, x + 64, 64, 12);
  expect_none();
  fill(b, x + 63, 1, 13);
  expect({kind::race});
  expect_words({"bytes 63-63 of block 1 of gpu:0", "CUDA copy at program.cu:11 writes them on stream 1",
                "CUDA fill at program.cu:13 writes them on stream 2"});
}

TEST_F(told_calls, that_copy_beside_a_launch_race) {
  launch(a, {writes_at(x)}, 11);
  copy(b, y, x, 4096, 12);
  expect({kind::race});
  expect_words({"launch of scale at program.cu:11 may write", "CUDA copy at program.cu:12 reads"});
}

// cudaMemcpy: all that came before on its stream is complete, too.
TEST_F(told_calls, that_wait_are_seen_complete) {
  launch(a, {writes_at(x)}, 11);
  copy(a, y, x, 64, 12, true);
  launch(b, {writes_at(x), writes_at(y)}, 13);
  fill(b, y, 64, 14, true);
  launch(a, {writes_at(y)}, 15);
  expect_none();
}

// Pageable memory is read before the call returns, and belongs to no block.
TEST_F(told_calls, that_copy_pageable_memory_leave_no_use_of_it) {
  char host[64] = {};
  auto const at = reinterpret_cast<address>(host);
  copy(a, x, at, 64, 11);
  copy(b, at, y, 64, 12);
  expect_none();
}

// Memory of the program --------------------------------------------------------------------------------------

struct told_memory : told_calls {
  static constexpr auto none = seen_calls::no_stream;
  static constexpr address theirs = 0x700000000000;
};

TEST_F(told_memory, of_cuda_malloc_is_named_by_its_allocation) {
  calls.allocated(0, none, theirs, 8192, at_line(5));
  launch(a, {writes_at(theirs)}, 11);
  launch(b, {writes_at(theirs)}, 12);
  expect({kind::possible_race});
  expect_words({"bytes 0-8191 of block 3 of gpu:0 (8192 B, allocated by CUDA at program.cu:5)"});
}

TEST_F(told_memory, that_is_freed_waits_for_its_device) {
  calls.allocated(0, none, theirs, 8192, at_line(5));
  launch(a, {writes_at(theirs), writes_at(x)}, 11);
  calls.freed(0, none, theirs, at_line(6));
  launch(b, {writes_at(x)}, 12);
  expect_none();
  launch(b, {writes_at(theirs)}, 13);
  expect({kind::use_after_free});
  expect_words({"which was freed at program.cu:6"});
}

TEST_F(told_memory, that_a_stream_allocates_or_frees_is_in_its_order) {
  for (bool const waits : {true, false}) {
    address const at = theirs + (waits ? 0 : 65536);
    calls.allocated(0, cuda(a), at, 8192, at_line(5));
    if (waits)
      told_order(a, b);
    launch(b, {writes_at(at)}, 11);
    EXPECT_EQ(kinds().size(), waits ? 0u : 1u) << text();
    if (waits)
      told_order(b, a);
    calls.freed(0, cuda(a), at, at_line(6));
    EXPECT_EQ(kinds().size(), waits ? 0u : 2u) << text();
  }
  expect({kind::race, kind::freed_in_use});
  launch(a, {writes_at(theirs)}, 12);
  expect({kind::race, kind::freed_in_use, kind::use_after_free});
}

TEST_F(told_memory, that_comes_back_at_an_address_is_new) {
  calls.allocated(0, cuda(a), theirs, 8192, at_line(5));
  fill(a, theirs, 64, 11);
  calls.freed(0, cuda(a), theirs, at_line(6));
  calls.allocated(0, cuda(b), theirs, 4096, at_line(7));  // the driver orders it
  launch(b, {writes_at(theirs)}, 12);
  fill(b, theirs, 64, 13);
  expect_none();
}

// Its first block is no defect: the program gave the memory to weir.
TEST_F(told_memory, may_serve_blocks_of_weir) {
  calls.allocated(0, none, theirs, 65536, at_line(5));
  begins(a, theirs + 4096, 4096, 60);
  launch(b, {writes_at(theirs + 4096)}, 11);
  expect_none();
  calls.allocated(0, none, theirs + 4096, 4096, at_line(6));  // it is weir's
  ends({{0, a}}, theirs + 4096, 4096, 61);
  expect({kind::freed_in_use});
}

// As cudaIpcOpenMemHandle and cudaGetSymbolAddress find it.
TEST_F(told_memory, that_is_found_where_a_block_was_freed_is_new) {
  calls.allocated(0, none, theirs, 8192, at_line(5));
  launch(a, {writes_at(theirs)}, 11);
  calls.freed(0, none, theirs, at_line(6));
  calls.found(0, theirs + 4096, 4096, at_line(7));
  launch(a, {writes_at(theirs + 4096)}, 12);
  calls.found(0, theirs + 4096, 4096, at_line(8));  // again: nothing is new
  expect_none();
  launch(b, {writes_at(theirs + 4096)}, 13);
  expect({kind::possible_race});
  expect_words({"(4096 B, allocated by CUDA at program.cu:7)", "program.cu:12 may write", "program.cu:13 may write"});
  calls.freed(0, none, theirs + 4096, at_line(9));
  launch(b, {writes_at(theirs + 4096)}, 14);
  expect({kind::possible_race, kind::use_after_free});
}

// CUDA does not say that cudaIpcCloseMemHandle waits for work.
TEST_F(told_memory, of_another_process_closes_without_a_wait) {
  calls.found(0, theirs, 8192, at_line(5));
  launch(a, {writes_at(theirs), writes_at(x)}, 11);
  calls.closed(theirs, at_line(6));
  expect({kind::unmapped_in_use});
  launch(b, {writes_at(x)}, 12);
  expect({kind::unmapped_in_use, kind::possible_race});
  launch(b, {writes_at(theirs)}, 13);
  expect({kind::unmapped_in_use, kind::possible_race, kind::use_after_free});
  calls.found(0, theirs, 8192, at_line(7));
  fill(a, theirs, 64, 14);
  calls.closed(theirs, at_line(8));
  EXPECT_EQ(kinds().back(), kind::unmapped_in_use) << text();
  EXPECT_EQ(kinds().size(), 4u) << text();
}
TEST_F(told_memory, of_another_process_that_no_work_uses_is_closed) {
  calls.found(0, theirs, 8192, at_line(5));
  launch(a, {writes_at(theirs)}, 11);
  fill(a, theirs, 64, 12);
  calls.stream_done(0, cuda(a));
  calls.closed(theirs, at_line(6));
  calls.closed(theirs, at_line(7));
  calls.closed(x, at_line(8));  // weir's own memory is no such block
  launch(b, {writes_at(x)}, 13);
  expect_none();
}

// Of what lies there from then on nothing is told.
TEST_F(told_memory, that_is_hidden_has_no_history) {
  calls.allocated(0, none, theirs, 8192, at_line(5));
  calls.freed(0, none, theirs, at_line(6));
  calls.hidden(theirs + 64, 1);
  launch(a, {writes_at(theirs)}, 11);
  launch(b, {writes_at(theirs)}, 12);
  calls.found(0, theirs, 8192, at_line(7));
  launch(a, {writes_at(theirs)}, 13);
  calls.hidden(theirs, 8192);  // its module is unloaded
  launch(b, {writes_at(theirs)}, 14);
  fill(b, theirs, 8192, 15);
  expect_none();
  calls.hidden(x, 4096);  // weir's own block, whose races are reported on
  launch(a, {writes_at(x)}, 16);
  launch(b, {writes_at(x)}, 17);
  expect({kind::possible_race});
}

// cuMemUnmap takes the pages of several cuMemMap.
TEST_F(told_memory, that_is_unmapped_ends_with_all_its_parts) {
  for (address const at : {theirs, theirs + 8192, theirs + 16384})
    calls.allocated(0, none, at, 8192, at_line(5));
  calls.unmapped(theirs, 16384, at_line(6));
  launch(a, {writes_at(theirs + 16384)}, 11);
  expect_none();
  launch(a, {writes_at(theirs)}, 12);
  launch(a, {writes_at(theirs + 8192)}, 13);
  expect({kind::use_after_free, kind::use_after_free});
}

TEST_F(told_memory, of_the_host_does_not_change_under_its_copy) {
  for (bool const waits : {true, false}) {
    alignas(64) static char host[64];
    auto const at = reinterpret_cast<address>(host);
    calls.allocated(-1, none, at, sizeof host, at_line(5));
    copy(a, x, at, sizeof host, 11);
    if (waits)
      calls.stream_done(0, cuda(a));
    ++host[3];  // a bare pointer: seen when the copy is complete
    calls.stream_done(0, cuda(a));
    EXPECT_EQ(kinds().size(), waits ? 0u : 1u) << text();
    calls.freed(0, none, at, at_line(6));
  }
  expect({kind::source_changed});
  expect_words({"bytes 0-63 of pinned block 2 (64 B, allocated by CUDA at program.cu:5)",
                "the source of CUDA copy at program.cu:11"});
}

TEST_F(told_memory, of_the_host_is_not_read_before_its_copy) {
  alignas(64) static char host[64];
  auto const at = reinterpret_cast<address>(host);
  calls.allocated(-1, none, at, sizeof host, at_line(5));
  copy(a, at, x, sizeof host, 11);
  host_uses(host, 4, host_use::reads, "host", {"program.cpp", "", 70});
  expect({kind::early_host});
  expect_words({"CUDA copy at program.cu:11 writes them"});
}

// The host beside launches -----------------------------------------------------------------------------------

struct told_host : told_memory {
  told_host() { calls.allocated(-1, none, at(), sizeof host, at_line(5)); }
  address at() const { return reinterpret_cast<address>(host); }
  void uses(std::size_t from, std::size_t n, host_use how, unsigned line) {
    host_uses(host + from, n, how, "host", {"program.cpp", "", line});
  }
  alignas(64) char host[64] = {};
};

TEST_F(told_host, of_a_graph_writes_what_its_copies_read) {
  std::vector<seen_calls::node> nodes(2);
  nodes[0].is_host = true;
  nodes[1].bytes = {{at(), 64, false}, {x, 64, true}};
  nodes[1].after = {0};
  calls.graph_made(0x9000, nodes);
  calls.graph_launched(0, cuda(a), 0x9000, at_line(12));
  ++host[3];  // as the graph's host function does
  calls.device_done(0);
  expect_none();
}

// The program goes on to use its memory, which is not pinned any more.
TEST_F(told_host, may_be_used_after_it_is_unregistered) {
  calls.freed(-1, seen_calls::no_stream, at(), at_line(6));
  copy(a, x, at(), sizeof host, 12);
  launch(a, {writes_at(at())}, 13);
  expect_none();
}

// The launch changes the bytes after the copy was enqueued, or while it is under way.
TEST_F(told_host, is_not_the_writer_of_what_a_launch_writes) {
  launch(a, {writes_at(at())}, 11);
  told_order(a, b);
  copy(b, x, at(), sizeof host, 12);
  ++host[3];  // as the launch does
  calls.device_done(0);
  expect_none();
  copy(b, x, at(), sizeof host, 13);
  launch(b, {writes_at(at())}, 14);
  ++host[3];
  calls.device_done(0);
  expect_none();
}

TEST_F(told_host, waits_for_a_launch_that_was_given_its_memory) {
  launch(a, {writes_at(at())}, 11);
  uses(0, 64, host_use::reads, 70);
  expect({kind::early_host});
  expect_words({"launch of scale at program.cu:11 may write them on stream 1 of gpu:0, host at program.cpp:70 reads"});
  calls.stream_done(0, cuda(a));
  uses(0, 64, host_use::writes, 71);
  expect({kind::early_host});
}

TEST_F(told_host, reads_what_launches_read) {
  launch(a, {reads_at(at())}, 11);
  uses(0, 64, host_use::reads, 70);
  expect_none();
  uses(0, 64, host_use::writes, 71);
  expect({kind::early_host});
}

TEST_F(told_host, beside_a_vague_pointer_is_a_possible_race) {
  launch(a, {inside_at(at())}, 11);
  uses(0, 64, host_use::reads, 70);
  launch(b, {writes_at(at())}, 12);
  uses(32, 8, host_use::reads, 71);
  // the two launches; and each beside the host's use
  EXPECT_EQ(kinds(), std::vector<kind>(4, kind::possible_race)) << text();
}

// Graphs -----------------------------------------------------------------------------------------------------

struct told_graphs : told_calls {
  static seen_calls::node kernel(char const* name, pointers p) { return {name, std::move(p), {}, {}}; }
};

TEST_F(told_graphs, launched_beside_their_writer_name_their_kernel) {
  calls.graph_made(0x9000, {kernel("scale", {writes_at(y)}), kernel("sum", {reads_at(x)})});
  launch(a, {writes_at(x)}, 11);
  calls.graph_launched(0, cuda(b), 0x9000, at_line(12));
  expect({kind::possible_race});
  expect_words({"launch of scale at program.cu:11", "launch of sum at program.cu:12 may read them on stream 2"});
}

TEST_F(told_graphs, use_the_bytes_of_their_copies) {
  calls.graph_made(0x9000, {{nullptr, {}, {{x, 4096, false}, {y, 4096, true}}, {}}});
  launch(a, {writes_at(x)}, 11);
  calls.graph_launched(0, cuda(b), 0x9000, at_line(12));
  expect({kind::race});
  expect_words({"CUDA graph launch at program.cu:12 reads"});
}

TEST_F(told_graphs, of_one_executable_follow_each_other) {
  calls.graph_made(0x9000, {kernel("scale", {writes_at(x)})});
  calls.graph_launched(0, cuda(a), 0x9000, at_line(11));
  calls.graph_launched(0, cuda(b), 0x9000, at_line(12));
  expect_none();
  calls.graph_made(0x9001, {kernel("scale", {writes_at(x)})});
  calls.graph_launched(0, cuda(a), 0x9001, at_line(13));
  expect({kind::possible_race});
}

TEST_F(told_graphs, that_are_updated_or_gone_use_what_they_have_now) {
  calls.graph_made(0x9000, {kernel("scale", {writes_at(x)})});
  calls.graph_made(0x9000, {kernel("scale", {writes_at(y)})});
  launch(a, {writes_at(x)}, 11);
  calls.graph_launched(0, cuda(b), 0x9000, at_line(12));
  calls.graph_gone(0x9000);
  calls.graph_made(0x9000, {});
  calls.graph_launched(0, cuda(a), 0x9000, at_line(13));
  expect_none();
}

TEST_F(told_graphs, that_weir_captures_have_the_launches_inside) {
  ASSERT_TRUE(machine->begin_capture(0, a, capture_mode::relaxed).ok());
  launch(a, {writes_at(x)}, 11);
  auto const g = machine->end_capture(0, a);
  ASSERT_TRUE(g.ok());
  auto const e = machine->instantiate(0, g.value);
  ASSERT_TRUE(e.ok());
  launch(b, {writes_at(x)}, 12);  // the capture itself used nothing
  expect_none();
  ASSERT_TRUE(machine->launch_graph(0, a, e.value).ok());
  expect({kind::possible_race});
  EXPECT_TRUE(machine->destroy_graph(g.value).ok());
  EXPECT_TRUE(machine->destroy_executable(e.value).ok());
}

TEST_F(told_graphs, order_their_nodes_by_their_edges_alone) {
  for (bool const has_edge : {true, false}) {
    auto nodes = std::vector<seen_calls::node>{kernel("sum", {reads_at(x)}), kernel("scale", {writes_at(x)}),
                                               kernel("init", {writes_at(y)})};
    nodes[0].after = {2};
    if (has_edge)
      nodes[2].after = {1};
    calls.graph_made(0x9000, nodes);
    EXPECT_EQ(kinds().size(), has_edge ? 0u : 1u) << text();
  }
  expect({kind::possible_race});
  expect_words({"bytes 0-4095 of block 1",
                "launch of sum may read them, launch of scale may write them, both in one "
                "graph, and no edge orders the two"});
}

// The captured work of two calls: one edge is missing, not one for each pair of kernels.
TEST_F(told_graphs, with_many_unordered_kernels_are_one_report) {
  auto const nodes = std::vector<seen_calls::node>{kernel("sum", {reads_at(x)}), kernel("scale", {writes_at(x)}),
                                                   kernel("init", {writes_at(x)})};
  calls.graph_made(0x9000, nodes, at_line(20));
  expect({kind::possible_race});
  expect_words({"both in one graph, instantiated at program.cu:20, and no edge orders the two",
                "It is only possible: which bytes the two use", "So may 2 other pairs of calls at these places, as "});
}

TEST_F(told_graphs, with_copies_that_no_edge_orders_race) {
  std::vector<seen_calls::node> nodes(2);
  nodes[0].bytes = {{x, 64, false}};
  nodes[1].bytes = {{x + 32, 64, true}};
  calls.graph_made(0x9000, nodes);
  expect({kind::race});
  nodes[1].after = {0};
  calls.graph_made(0x9001, nodes);
  expect({kind::race});
}

// What is said -----------------------------------------------------------------------------------------------

TEST_F(told_calls, that_are_not_understood_are_listed) {
  for (int i = 0; i < 3; ++i)
    calls.not_understood("launches with a packed parameter buffer");
  EXPECT_EQ(judge->unseen().text(),
            "Not judged: memory that kernels reach by other ways than a pointer in their parameters; launches with a "
            "packed parameter buffer (3)");
}

TEST_F(told_calls, of_wrong_devices_change_nothing) {
  for (int const device : {-1, 2, 1000}) {
    calls.launched(device, 0, "scale", pointers{writes_at(x)}, {});
    calls.stream_made(device, 0x5000, true);
    calls.recorded(device, 0x5000, 0x1000);
    calls.stream_done(device, 0x5000);
    calls.device_done(device);
  }
  calls.freed(0, seen_calls::no_stream, 0x10, {});
  calls.graph_launched(0, cuda(a), 0x9999, {});
  expect_none();
}

// Kernels ----------------------------------------------------------------------------------------------------

TEST(kernel_name, is_short_and_demangled) {
  auto const brief = [](char const* name) { return short_name(demangled(name)); };
  EXPECT_EQ(brief("_Z5scalePfi"), "scale");
  EXPECT_EQ(brief("_ZN3lib5scaleIfEEvPT_i"), "lib::scale<float>");
  EXPECT_EQ(brief("_ZN12_GLOBAL__N_15scaleEPf"), "scale");
  EXPECT_EQ(brief("sm90_gemm_f32"), "sm90_gemm_f32");
  EXPECT_EQ(short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
                       "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"),
            "at::native::vectorized_elementwise_kernel<...>");
}

TEST(suppression, is_a_glob_or_a_place) {
  EXPECT_TRUE(matches("a*c?", "abbcd"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_FALSE(matches("a*c", "abd"));
  auto const all = suppressions::parse("# mine\n\n kernel: *reduce*\r\nblock: model.cu:120\n", "file");
  EXPECT_TRUE(all.name_kernel("at::native::reduce_kernel<512>"));
  EXPECT_FALSE(all.name_kernel("scale"));
  EXPECT_TRUE(all.name_block({"src/model.cu", "", 120}));
  EXPECT_FALSE(all.name_block({"src/other_model.cu", "", 120}));
  EXPECT_FALSE(all.name_block({"src/model.cu", "", 12}));
  EXPECT_FALSE(all.name_block({"el.cu", "", 120}));
}

TEST(suppression, that_is_none_is_refused_with_its_line) {
  for (char const* const wrong : {"kernels: a", "kernel:", "block: model.cu", "block: model.cu:x", "block: :12"}) {
    try {
      suppressions::parse("kernel: a\n" + std::string(wrong), "my.txt");
      FAIL() << wrong;
    } catch (invalid_use const& e) {
      EXPECT_NE(std::string(e.what()).find("my.txt line 2: \"" + std::string(wrong) + '"'), std::string::npos)
          << e.what();
    }
  }
}

struct suppressed : ::testing::Test {
  suppressed() {
    ::setenv("WEIR_CHECK_SUPPRESS", file.c_str(), 1);
    std::FILE* const f = std::fopen(file.c_str(), "w");
    std::fputs("kernel: sum*\nblock: program.cpp:2\n", f);
    std::fclose(f);
  }
  ~suppressed() override {
    ::unsetenv("WEIR_CHECK_SUPPRESS");
    std::remove(file.c_str());
  }
  std::string const file = ::testing::TempDir() + "weir_suppressions.txt";
};
struct suppressed_calls : suppressed, told_calls {
  void TestBody() override {}
};

TEST_F(suppressed, pairs_are_counted_and_not_reported) {
  suppressed_calls t;
  t.launch(t.a, {writes_at(t.x)}, 11, "sum_rows");
  t.launch(t.b, {writes_at(t.x)}, 12);
  t.launch(t.a, {writes_at(t.y)}, 13);
  t.launch(t.b, {writes_at(t.y)}, 14);
  t.expect_none();
  EXPECT_EQ(t.judge->unseen().suppressed, 2u);
  t.calls.device_done(0);
  t.launch(t.a, {writes_at(t.x)}, 15);
  t.launch(t.b, {writes_at(t.x)}, 16);
  t.expect({kind::possible_race});
}

TEST_F(suppressed, by_a_file_that_is_not_there_is_refused) {
  std::remove(file.c_str());
  EXPECT_THROW(suppressions::of_process(), invalid_use);
}

}  // namespace
}  // namespace weir::driver::check
