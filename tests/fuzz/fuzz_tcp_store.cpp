// Any bytes at any pace, before a TCP store's handshake, within it and after it: nobody gets in without the token, no frame
// opens but those that were sealed, little is kept, and errors have short texts. The first byte chooses what is tried.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_frames_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"
#include "lockstep/parallel/rendezvous/tcp_handshake_internal.h"
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

// Hands the bytes over as the server's loop does: pieces, each as long as its first byte says, and no more than wanted.
void shake_hands(par::Handshake& handshake, std::string_view bytes, bool may_succeed) {
  std::string in;
  while (!bytes.empty()) {
    const std::size_t wanted = handshake.wanted(in.size());
    expect(wanted > 0 && in.size() + wanted <= par::kMaxHelloBytes);
    const std::size_t size =
        std::min({wanted, static_cast<std::size_t>(static_cast<unsigned char>(bytes[0])) + 1, bytes.size()});
    in += bytes.substr(0, size);
    bytes.remove_prefix(size);
    const par::Handshake::Step step = handshake.take(in);
    expect(step.reply.size() <= par::kMaxHelloBytes);
    if (step.state == par::Handshake::State::kMore) continue;
    return expect(may_succeed && step.state == par::Handshake::State::kKnown);
  }
}

const par::TcpIdentity kAuthenticated{"0123456789abcdef", "the fuzzer", "job"};
const par::TcpIdentity kPlain{{}, {}, "job"};

void open_forged(std::string_view bytes) {
  std::optional<par::FrameGuard> guard(std::in_place, par::Digest{}, par::Digest{});
  expect(!par::first_opened(guard, bytes, par::kMaxFrame));
}

// What somebody with the token may write, sealed and opened again.
void read_sealed(std::string_view content) {
  par::FrameGuard sender(par::Digest{1}, par::Digest{2});
  std::optional<par::FrameGuard> receiver(std::in_place, par::Digest{2}, par::Digest{1});
  std::string bytes = par::frame({.op = par::StoreOp::kSet, .keys = {"k"}, .values = {std::string(content)}});
  sender.seal(bytes);
  const auto opened = par::first_opened(receiver, bytes, par::kMaxFrame);
  expect(opened && par::read_message(*opened).fields.at(1) == content);
  par::StoreMessage message = par::read_message(content);
  expect(message.fields.size() <= par::kMaxWaitKeys + 1);
  const std::size_t fields = message.fields.size();
  const par::StoreRequest request = par::to_request(message.code, std::move(message.fields));
  expect(request.keys.size() + request.values.size() == fields);
  par::check_store_request(request);
  par::StoreTable table;
  table.execute(request);
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  par::TcpServerHandshake server(kAuthenticated), plain_server(kPlain);
  par::TcpClientHandshake client(kAuthenticated), plain_client(kPlain);
  attempt([&] {
    switch (data[0] % 6) {
      case 0:
        return shake_hands(server, bytes, false);
      case 1:
        return shake_hands(client, bytes, false);
      case 2:
        return shake_hands(plain_server, bytes, true);
      case 3:
        return shake_hands(plain_client, bytes, true);
      case 4:
        return open_forged(bytes);
      default:
        return read_sealed(bytes);
    }
  });
}
