// Any bytes at any pace, before and within a TCP store's handshake, and after it: nobody is authenticated without the token,
// little is kept, and errors have short texts. The first byte chooses what is tried.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/parallel/rendezvous/tls_internal.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

// Runs `work`, whose errors must be of the expected kinds.
template <class Work>
void attempt(Work work) {
  try {
    work();
  } catch (const ls::IoError& error) {
    expect(std::string_view(error.what()).size() <= 400);
  } catch (const ls::InvalidArgument& error) {
    expect(std::string_view(error.what()).size() <= 400);
  } catch (const ls::CommError& error) {
    expect(std::string_view(error.what()).size() <= 400);
  }
}

const par::TlsContext& context() {
  static const auto made =
      par::TlsContext::make(par::derive_psk("0123456789abcdef", {.job = "job", .store = "fuzzed", .port = 29500}));
  return *made;
}

// Sends the bytes to one side of a connection in pieces, each as long as its first byte says.
void shake_hands(par::TlsRole role, std::string_view bytes) {
  int pair[2];
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const auto stream = context().stream(ls::Descriptor(pair[0]), role);
  const ls::Descriptor peer(pair[1]);
  std::string received;
  std::size_t sent = 0;
  if (role == par::TlsRole::kClient) expect(stream->send("hello", sent) == par::Transmission::kWouldBlock);
  while (!bytes.empty()) {
    const std::size_t size = std::min(static_cast<std::size_t>(static_cast<unsigned char>(bytes[0])) + 1, bytes.size());
    std::size_t offset = 0;
    if (par::send_some(peer, bytes.substr(0, size), offset) == par::Transmission::kClosed) break;
    bytes.remove_prefix(size);
    const par::Transmission transfer = stream->receive(received, par::kMaxHelloBytes);
    expect(transfer != par::Transmission::kDone && received.empty());
    if (transfer == par::Transmission::kClosed) break;
  }
}

// The requests of a peer that has the token.
void read_request(std::string_view content) {
  par::StoreMessage message = par::read_message(content);
  const std::size_t fields = message.fields.size();
  expect(fields <= par::kMaxWaitKeys + 1);
  const par::StoreRequest request = par::to_request(message.code, std::move(message.fields));
  expect(request.keys.size() + request.values.size() == fields);
  par::check_store_request(request);
  expect(!par::describe(request).empty());
  par::StoreTable table;
  table.execute(request);
}

void read_frames(std::string_view bytes) {
  while (const auto content = par::first_frame(bytes, par::kMaxFrame)) {
    attempt([&] { par::read_hello(*content); });
    attempt([&] { par::read_message(*content); });
    bytes.remove_prefix(par::kFrameHeader + content->size());
  }
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  attempt([&] {
    switch (data[0] % 4) {
      case 0:
        return shake_hands(par::TlsRole::kServer, bytes);
      case 1:
        return shake_hands(par::TlsRole::kClient, bytes);
      case 2:
        return read_request(bytes);
      default:
        return read_frames(bytes);
    }
  });
}
