// Reads a launcher's variables. Open MPI's library is loaded at run time, to hand rank 0's address around.
// Threads: one.
#include "peer/ranks/launcher.h"

#include <array>
#include <charconv>
#include <memory>

#include "peer/ranks/torch_store.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir {
namespace {

[[noreturn]] void refuse_variable(std::string what, std::string remedy, source_location at) {
  throw invalid_use("this_launch", std::move(what), std::move(remedy), at, error_id{413});
}

struct launcher_names {
  launch_info::by how;
  char const* launcher;
  std::array<char const*, 3> names;  // of the rank, the number of ranks, the local rank
};
constexpr launcher_names by_torchrun{launch_info::by::torchrun, "torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK"}};
constexpr launcher_names by_mpirun{
    launch_info::by::mpirun, "mpirun", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}};

int number_of(launcher_names const& l, char const* name, source_location at) {
  auto const text = os::environment(name);
  if (!text)
    refuse_variable(base::text(name, " is not set, although other variables of ", l.launcher, " are"),
                    base::text("Start the program with ", l.launcher, ", or set all of its variables"), at);
  int value = 0;
  auto const [end, failed] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (text->empty() || failed != std::errc{} || end != text->data() + text->size() || value < 0)
    refuse_variable(base::text(name, "=", base::visible(*text), " is no number"), "Set it to a number, 0 or more", at);
  return value;
}

launch_info read_launch(launcher_names const& l, source_location at) {
  launch_info const is{l.how, number_of(l, l.names[0], at), number_of(l, l.names[1], at), number_of(l, l.names[2], at)};
  constexpr int most = 65536;
  if (is.size < 1 || is.size > most || is.rank >= is.size || is.local_rank > is.rank)
    refuse_variable(base::text(l.names[0], "=", is.rank, ", ", l.names[1], "=", is.size, ", ", l.names[2], "=",
                               is.local_rank, ": there is no such rank"),
                    "Ranks count from 0; a local rank is at most the rank", at);
  return is;
}

}  // namespace

launch_info this_launch(source_location at) {
  bool const within_mpirun = os::environment("OMPI_COMM_WORLD_SIZE").has_value();
  // torchrun sets WORLD_SIZE and MASTER_ADDR. Within mpirun WORLD_SIZE alone may have another reason.
  bool const within_torchrun = os::environment("WORLD_SIZE") && (os::environment("MASTER_ADDR") || !within_mpirun);
  if (within_torchrun)
    return read_launch(by_torchrun, at);
  if (within_mpirun)
    return read_launch(by_mpirun, at);
  return {};
}

namespace peer {
namespace {

constexpr char const* operation = "communicator::from_environment";

os::tcp_socket listen_or_throw(std::uint16_t port, source_location at) {
  os::tcp_socket s = os::listen_tcp(port);
  if (!s.file.is_open())
    throw driver_error(0, operation, base::text("rank 0 cannot listen on port ", port, ": ", s.why_not),
                       "Choose another MASTER_PORT, or end the program that uses this one", at, error_id{414});
  return s;
}

std::uint16_t master_port(source_location at) {
  auto const text = os::environment("MASTER_PORT").value_or("");
  std::uint16_t port = 0;
  auto const [end, failed] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (failed != std::errc{} || end != text.data() + text.size() || port == 0)
    throw invalid_use(operation, "MASTER_PORT=" + base::visible(text) + " is no port",
                      "Set it to a free port of rank 0's machine, from 1 to 65535", at, error_id{415});
  return port;
}

// turn: this communicator's number in the process. Each has a key of its own.
// The agent's store outlives its processes: a key may hold the address of an earlier rank 0, which does not
// answer, or does not know the nonce. TORCHELASTIC_RESTART_COUNT cannot tell them apart: ranks disagree.
rendezvous_point by_store(launch_info const& l, std::string host, std::uint16_t port, int turn, base::time_limit limit,
                          source_location at) {
  auto const store = std::make_shared<torch_store>(host, port, limit, at);
  std::string const key = base::text("weir/", os::environment("TORCHELASTIC_RUN_ID").value_or(""), "/", turn);
  rendezvous_point point;
  if (l.rank == 0) {
    point.listener = listen_or_throw(0, at);
    point.id = {std::move(host), point.listener.port, os::random_number()};
    store->set(key, text_of(point.id));
    return point;
  }
  std::int64_t const end = limit.after(base::now_ns());
  // Rank 0 runs on MASTER_ADDR's machine: the ranks know that name, and reach it.
  point.ask_again = [store, key, end, limit, at, size = l.size, rank = l.rank] {
    constexpr std::int64_t pause_ns = 20'000'000;
    while (base::now_ns() < end) {
      if (auto const text = store->get(key)) {
        if (auto id = rendezvous_id_of(*text))
          return *id;
      }
      base::sleep_ns(pause_ns);
    }
    throw timed_out(operation,
                    base::text("rank ", rank, " of ", size, ": rank 0 has not told torchrun's store its address for ",
                               limit.ns() / 1'000'000, " ms"),
                    "Check the output of rank 0", at, error_id{416});
  };
  point.id = point.ask_again();
  return point;
}

rendezvous_point by_torchrun_variables(launch_info const& l, int turn, base::time_limit limit, source_location at) {
  auto const host = os::environment("MASTER_ADDR");
  if (!host || host->empty())
    throw invalid_use(operation, "MASTER_ADDR is not set, although RANK and WORLD_SIZE are",
                      "Set it to the name or address of rank 0's machine", at, error_id{417});
  std::uint16_t const port = master_port(at);
  if (os::environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True")
    return by_store(l, *host, port, turn, limit, at);
  rendezvous_point point;
  // No one hands a random nonce around: the turn tells this process's communicators apart.
  point.id = {*host, port, static_cast<std::uint64_t>(turn)};
  if (l.rank == 0)
    point.listener = listen_or_throw(port, at);
  return point;
}

// Open MPI's interface, by the names that its mpi.h refers to.
struct open_mpi {
  using handle = void*;
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*init_thread)(int*, char***, int, int*);
  int (*bcast)(void*, int, handle type, int root, handle communicator);
  int (*finalize)();
  handle world, byte;
};

open_mpi load_open_mpi(source_location at) {
  char const* const file = "libmpi.so.40";
  void* const library = os::load_library(file);
  std::string missing;
  auto const find = [&](char const* name) {
    void* found = nullptr;
    if (library)  // else all names are missing
      found = os::find_symbol(library, name);
    if (!found)
      missing += base::text(missing.empty() ? "" : ", ", name);
    return found;
  };
  open_mpi const mpi{reinterpret_cast<int (*)(int*)>(find("MPI_Initialized")),
                     reinterpret_cast<int (*)(int*)>(find("MPI_Finalized")),
                     reinterpret_cast<int (*)(int*, char***, int, int*)>(find("MPI_Init_thread")),
                     reinterpret_cast<int (*)(void*, int, void*, int, void*)>(find("MPI_Bcast")),
                     reinterpret_cast<int (*)()>(find("MPI_Finalize")),
                     find("ompi_mpi_comm_world"),
                     find("ompi_mpi_byte")};
  if (!missing.empty())
    throw not_supported(operation,
                        library ? base::text(file, " of mpirun lacks ", missing)
                                : base::text(file, " is not found, although mpirun started this process"),
                        "Install Open MPI 4 or 5 (libopenmpi3), or put its folder on LD_LIBRARY_PATH", at,
                        error_id{418});
  return mpi;
}

// A program that uses MPI itself has initialized it before. Any other needs it for this one exchange, and
// ends it at once: at the end of the process MPI_Finalize would wait for ranks that were killed.
rendezvous_point by_mpi(launch_info const& l, source_location at) {
  open_mpi const mpi = load_open_mpi(at);
  int is_over = 0;
  if (mpi.finalized(&is_over) == 0 && is_over)
    throw not_supported(operation, "a second communicator of a process whose MPI is finalized",
                        "Call MPI_Init before the first one, or pass communicator::unique_id() to the others", at,
                        error_id{419});
  rendezvous_point point;
  std::array<char, 512> text{};
  if (l.rank == 0) {
    point.listener = listen_or_throw(0, at);
    bool const one_machine = os::environment("OMPI_COMM_WORLD_LOCAL_SIZE") == os::environment("OMPI_COMM_WORLD_SIZE");
    point.id = {one_machine ? "127.0.0.1" : os::own_address(), point.listener.port, os::random_number()};
    text_of(point.id).copy(text.data(), text.size() - 1);
  }
  int is_the_programs = 0, level = 0;
  int error = mpi.initialized(&is_the_programs);
  if (!error && !is_the_programs)
    error = mpi.init_thread(nullptr, nullptr, 0, &level);
  if (!error)
    error = mpi.bcast(text.data(), static_cast<int>(text.size()), mpi.byte, 0, mpi.world);
  if (!error && !is_the_programs)
    error = mpi.finalize();
  auto const id = rendezvous_id_of(text.data());
  if (error || !id)
    throw driver_error(error, operation, base::text("rank ", l.rank, " of ", l.size, ": Open MPI answers ", error),
                       "Start all ranks by one mpirun", at, error_id{420});
  point.id = *id;
  return point;
}

}  // namespace

rendezvous_point rendezvous_of(launch_info const& l, base::time_limit limit, source_location at) {
  static base::atomic<int> turns{0};
  int const turn = turns.fetch_add(1);
  switch (l.how) {
    case launch_info::by::torchrun: return by_torchrun_variables(l, turn, limit, at);
    case launch_info::by::mpirun: return by_mpi(l, at);
    case launch_info::by::itself: break;
  }
  throw invalid_use(operation, "no launcher started this process",
                    "Start it with torchrun or mpirun, or use communicator::create_all for the devices of one process",
                    at, error_id{421});
}

}  // namespace peer
}  // namespace weir
