// TLS 1.3 with the job's token as external pre-shared key, and with nothing else: no certificates, no other key exchange than
// PSK with (EC)DHE, no tickets, no early data. OpenSSL's libssl does it, opened on first use.
//
// Which store a connection leads to is part of the identity that the client offers, and of the key: both are derived as
// RFC 9258 imports a key, with job, store, port and role as context. A connection that somebody relays to another store of the
// job, or reflects, does not complete its handshake. (OpenSSL labels the binder "ext binder", not "imp binder".)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

struct ssl_ctx_st;

namespace lockstep::parallel {

// The side of a connection: that of the process that connects, or of the one that holds the store.
enum class TlsRole : char { kClient = 'C', kServer = 'S' };

// What a connection to a store is for. Hosts have no part in it: they have many names.
struct TlsBinding {
  std::string job = {};
  std::string store = {};           // its name among the stores of the job
  int port = 0;                     // of the server
  TlsRole role = TlsRole::kClient;  // of the side that offers the identity
};

struct PreSharedKey {
  std::string identity;  // as it is sent: RFC 9258's ImportedIdentity
  Digest key{};
};
PreSharedKey derive_psk(std::string_view token, const TlsBinding& binding);

// A handshake, or a record after it, that is not right: the peer has another key, or bytes were altered.
class TlsError final : public CommError {
 public:
  TlsError(const std::string& what, bool is_refusal) : CommError(what), is_refusal_(is_refusal) {}
  bool is_refusal() const { return is_refusal_; }  // the peer said so

 private:
  bool is_refusal_;
};

class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  // Throws NotBuilt where libssl cannot be opened, CommError where it cannot do what is needed.
  static std::shared_ptr<const TlsContext> make(PreSharedKey psk);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // A connected socket as a stream that shakes hands in its first receive or send. As server it keeps at most kMaxHandshakeBytes
  // of a peer that has not authenticated itself, makes OpenSSL's objects when a whole ClientHello has arrived, and answers a
  // wrong one with one alert that is the same for all causes.
  std::unique_ptr<Stream> stream(Descriptor socket, TlsRole role) const;

  const PreSharedKey& psk() const { return psk_; }

 private:
  friend class TlsStream;
  explicit TlsContext(PreSharedKey psk);

  PreSharedKey psk_;
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace lockstep::parallel
