// How client and server of a TCP store make sure of each other, as two machines over bytes, without sockets:
//
//   client -> server   hello: magic, version, mode, role, 32 bytes
//   server -> client   hello likewise
//   client -> server   its proof          } with authentication only
//   server -> client   its proof          }
//
// With authentication the 32 bytes of the hellos are fresh nonces, and a proof is an HMAC-SHA256 under the job's token of
// role, version, job and both nonces: only who has the token can make it, it fits no other meeting, job or direction.
// Two keys made in the same way then guard the frames (FrameGuard), one for each direction. Without authentication the
// 32 bytes are the SHA-256 of the job's name, frames go as they are, and whoever reaches the port may join.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/store_server_internal.h"

namespace lockstep::parallel {

// Which job a side belongs to, and how it shows that.
struct TcpIdentity {
  std::string token;         // empty: without authentication
  std::string token_source;  // for messages: "the variable LOCKSTEP_JOB_TOKEN"
  std::string job;
};

inline constexpr std::uint32_t kTcpStoreVersion = 1;
inline constexpr std::size_t kTcpPrefixBytes = 14;  // of a hello: all but its last 32 bytes
inline constexpr std::size_t kTcpHelloBytes = kTcpPrefixBytes + kDigestBytes;

class TcpHandshake : public Handshake {
 public:
  std::size_t wanted(std::size_t have) const final;

 protected:
  enum class Role : char { kClient = 'C', kServer = 'S' };
  // Keeps a reference to `identity`.
  TcpHandshake(const TcpIdentity& identity, Role role);

  std::string prefix(Role role) const;
  std::string hello() const;
  // Whether the peer's hello has come and been taken; throws IoError at the first byte that is none of it.
  bool take_hello(std::string& in);
  // The peer's proof, likewise.
  bool take_proof(std::string& in);
  std::string own_proof() const;
  FrameGuard make_guard() const;
  bool authenticates() const { return !identity_.token.empty(); }

  bool has_hello_ = false;

 private:
  Role other() const { return role_ == Role::kClient ? Role::kServer : Role::kClient; }
  Digest derive(Role role, std::string_view purpose) const;

  const TcpIdentity& identity_;
  Role role_;
  Digest own_{}, peers_{};  // the 32 bytes of the hellos
};

class TcpServerHandshake final : public TcpHandshake {
 public:
  explicit TcpServerHandshake(const TcpIdentity& identity) : TcpHandshake(identity, Role::kServer) {}
  Step take(std::string& in) override;
};

class TcpClientHandshake final : public TcpHandshake {
 public:
  explicit TcpClientHandshake(const TcpIdentity& identity) : TcpHandshake(identity, Role::kClient) {}
  std::string start() const { return hello(); }
  Step take(std::string& in) override;
};

}  // namespace lockstep::parallel
