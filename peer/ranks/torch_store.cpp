// Every length that the store sends is checked before memory is taken for it.
// Threads: one.
#include "peer/ranks/torch_store.h"

#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir::peer {
namespace {

enum class store_call : std::uint8_t { validate = 0, set = 1, get = 3, check = 5, ping = 13 };
constexpr std::uint32_t magic = 0x3C85F7CE;
constexpr std::uint64_t most_value = 4096;  // weir stores an address

void put(std::string& message, auto value) {
  message.append(reinterpret_cast<char const*>(&value), sizeof value);
}
void put_text(std::string& message, std::string_view text) {
  put(message, static_cast<std::uint64_t>(text.size()));
  message += text;
}

}  // namespace

torch_store::torch_store(std::string host, std::uint16_t port, base::time_limit limit, source_location at)
    : host_(std::move(host)), port_(port), limit_(limit), at_(at) {
  std::int64_t const end = limit.after(base::now_ns());
  while (true) {  // a launcher may start its processes before its store
    std::int64_t const left = end - base::now_ns();
    os::tcp_socket to =
        os::connect_tcp(host_, port_, std::chrono::nanoseconds(std::max<std::int64_t>(left, 1'000'000)));
    if (to.file.is_open()) {
      socket_ = std::move(to.file);
      break;
    }
    constexpr std::int64_t pause_ns = 50'000'000;
    if (left <= pause_ns)
      fail("cannot be reached: " + to.why_not);
    base::sleep_ns(pause_ns);
  }
  std::string first;
  put(first, store_call::validate);
  put(first, magic);
  put(first, store_call::ping);
  auto const nonce = static_cast<std::uint32_t>(os::random_number());
  put(first, nonce);
  send(first);
  std::uint32_t back = 0;
  receive(&back, sizeof back);
  if (back != nonce)
    fail("answers a ping with another number: it is no TCPStore of PyTorch 2.2 or newer");
}

void torch_store::fail(std::string const& why) const {
  throw driver_error(0, "communicator::from_environment",
                     base::text("torchrun's store at ", base::visible(host_), " port ", port_, " ", why),
                     "Start the program with torchrun, or set MASTER_ADDR and MASTER_PORT to rank 0's machine and a "
                     "free port, without TORCHELASTIC_USE_AGENT_STORE",
                     at_, error_id{426});
}

void torch_store::send(std::string const& message) {
  if (os::send_bytes(socket_.get(), std::as_bytes(std::span(message)), limit_) != os::heard::message)
    fail("has hung up");
}

void torch_store::receive(void* into, std::size_t bytes) {
  switch (os::receive_bytes(socket_.get(), {static_cast<std::byte*>(into), bytes}, limit_)) {
    case os::heard::message: return;
    case os::heard::too_late: fail(base::text("has not answered for ", limit_.ns() / 1'000'000, " ms"));
    case os::heard::closed: fail("has hung up");
    case os::heard::refused: fail("cannot be read");
  }
}

void torch_store::set(std::string_view key, std::string_view value) {
  std::string message;
  put(message, store_call::set);
  put_text(message, key);
  put_text(message, value);
  send(message);
}

bool torch_store::has(std::string_view key) {
  std::string message;
  put(message, store_call::check);
  put(message, std::uint64_t{1});
  put_text(message, key);
  send(message);
  std::uint8_t is = 0;
  receive(&is, 1);
  if (is > 1)
    fail(base::text("answers ", int{is}, " where it has 0 and 1 to choose from"));
  return is == 0;
}

std::optional<std::string> torch_store::get(std::string_view key) {
  if (!has(key))
    return {};  // the store drops a client that gets a key without a value
  std::string message;
  put(message, store_call::get);
  put_text(message, key);
  send(message);
  std::uint64_t bytes = 0;
  receive(&bytes, sizeof bytes);
  if (bytes > most_value)
    fail(base::text("has ", bytes, " B under ", key, ", which are not weir's"));
  std::string value(bytes, '\0');
  receive(value.data(), value.size());
  return value;
}

}  // namespace weir::peer
