#include "lockstep/parallel/rendezvous/tcp_handshake_internal.h"

#include <algorithm>

#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

std::string little(std::unsigned_integral auto value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof(value); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

void copy_front(Digest& to, std::string& from) {
  std::copy_n(from.begin(), to.size(), to.begin());
  from.erase(0, to.size());
}

}  // namespace

TcpHandshake::TcpHandshake(const TcpIdentity& identity, Role role)
    : identity_(identity), role_(role), own_(authenticates() ? random_digest() : sha256(identity.job)) {}

std::string TcpHandshake::prefix(Role role) const {
  const char mode = authenticates() ? 'A' : 'P';
  return "lockstep" + little(kTcpStoreVersion) + mode + static_cast<char>(role);
}

std::string TcpHandshake::hello() const { return prefix(role_).append(view(own_)); }

std::size_t TcpHandshake::wanted(std::size_t have) const { return (has_hello_ ? kDigestBytes : kTcpHelloBytes) - have; }

bool TcpHandshake::take_hello(std::string& in) {
  const std::string expected = prefix(other());
  const std::size_t size = std::min(in.size(), expected.size());
  if (in.compare(0, size, expected, 0, size) != 0)
    throw IoError("it is no store of this version of Lockstep, or only one side authenticates");
  if (in.size() < kTcpHelloBytes) return false;
  in.erase(0, kTcpPrefixBytes);
  copy_front(peers_, in);
  if (!authenticates() && !same_secret(view(peers_), view(own_))) throw IoError("it belongs to another job");
  return has_hello_ = true;
}

bool TcpHandshake::take_proof(std::string& in) {
  if (in.size() < kDigestBytes) return false;
  Digest proof;
  copy_front(proof, in);
  if (!same_secret(view(proof), view(derive(other(), "proof"))))
    throw IoError("it does not have this job's token, or belongs to another job");
  return true;
}

std::string TcpHandshake::own_proof() const { return std::string(view(derive(role_, "proof"))); }

// Every part but the last has a fixed size, so no two inputs read the same.
Digest TcpHandshake::derive(Role role, std::string_view purpose) const {
  const bool is_client = role_ == Role::kClient;
  Mac mac(identity_.token);
  return mac({fmt::format("lockstep store {:>5} {}", purpose, static_cast<char>(role)), little(kTcpStoreVersion),
              view(is_client ? own_ : peers_), view(is_client ? peers_ : own_), identity_.job});
}

FrameGuard TcpHandshake::make_guard() const {
  Digest out = derive(role_, "key"), in = derive(other(), "key");
  FrameGuard guard(out, in);
  wipe(out);
  wipe(in);
  return guard;
}

Handshake::Step TcpServerHandshake::take(std::string& in) {
  if (!has_hello_) {
    if (!take_hello(in)) return {};
    return {authenticates() ? State::kMore : State::kKnown, hello()};
  }
  if (!take_proof(in)) return {};
  return {State::kKnown, own_proof(), make_guard()};
}

Handshake::Step TcpClientHandshake::take(std::string& in) {
  if (!has_hello_) {
    if (!take_hello(in)) return {};
    if (!authenticates()) return {State::kKnown};
    return {State::kMore, own_proof()};
  }
  if (!take_proof(in)) return {};
  return {State::kKnown, {}, make_guard()};
}

}  // namespace lockstep::parallel
