// TLS 1.3 with the job's token as external pre-shared key, and nothing else: no certificates, no key exchange other
// than PSK with (EC)DHE, no tickets, no early data. OpenSSL's libssl implements TLS and is opened on first use.
//
// The client's identity and the key are bound to one store: both are derived as RFC 9258 imports a key, with job,
// store, port and role as context. A connection that is relayed to another store of the job, or reflected, fails in
// the handshake. (OpenSSL labels the binder "ext binder", not "imp binder".)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

struct ssl_ctx_st;

namespace lockstep::parallel {

// The role in a connection: the client connects, the server holds the store.
enum class TlsRole : char { kClient = 'C', kServer = 'S' };

// The purpose of a connection, to which its key is bound. Host names are not part of it, as a host has many names.
struct TlsBinding {
  std::string job = {};
  std::string store = {};           // the store's name among the job's stores
  int port = 0;                     // port of the server
  TlsRole role = TlsRole::kClient;  // role of the side that offers the identity
};

struct PreSharedKey {
  std::string identity;  // in the form that is sent: RFC 9258's ImportedIdentity
  Digest key{};
};
PreSharedKey derive_psk(std::string_view token, const TlsBinding& binding);

// The handshake or a later record is invalid: the peer has another key, or bytes were altered.
class TlsError final : public CommError {
 public:
  TlsError(const std::string& what, bool is_refusal) : CommError(what), is_refusal_(is_refusal) {}
  bool is_refusal() const { return is_refusal_; }  // the peer reported the error

 private:
  bool is_refusal_;
};

class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  // Throws NotBuilt if libssl cannot be opened, CommError if libssl lacks a required feature.
  static std::shared_ptr<const TlsContext> make(PreSharedKey psk);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // A connected socket as a stream that performs the handshake in its first receive or send. The server's stream keeps
  // at most kMaxHandshakeBytes of an unauthenticated peer, creates OpenSSL's objects when the ClientHello is complete,
  // and answers an invalid ClientHello with one alert, the same for all causes.
  std::unique_ptr<Stream> stream(Descriptor socket, TlsRole role) const;

  const PreSharedKey& psk() const { return psk_; }

 private:
  friend class TlsStream;
  explicit TlsContext(PreSharedKey psk);

  PreSharedKey psk_;
  ssl_ctx_st* context_ = nullptr;
};

}  // namespace lockstep::parallel
