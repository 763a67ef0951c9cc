#include "lockstep/parallel/rendezvous/tls_internal.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/openssl_internal.h"

namespace lockstep::parallel {

namespace {

// --- identity and key -----------------------------------------------------------------------------------------------

void put_big(std::string& out, std::uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// TLS's opaque vector: the length, in the given number of bytes, and the content.
void put_opaque(std::string& out, std::string_view content, int length_bytes) {
  put_big(out, content.size(), length_bytes);
  out += content;
}

constexpr std::uint64_t kTls13 = 0x0304, kHkdfSha256 = 0x0001;
constexpr std::size_t kRecordHeader = 5, kMaxPiece = 16 << 10;  // sizes of TLS records

}  // namespace

// RFC 9258, sections 4.1 and 4.2. The context is a hash, so that an identity has the same short length for every job.
PreSharedKey derive_psk(std::string_view token, const TlsBinding& binding) {
  std::string context;
  put_opaque(context, binding.job, 4);
  put_opaque(context, binding.store, 4);
  put_big(context, static_cast<std::uint64_t>(binding.port), 2);
  context += static_cast<char>(binding.role);

  PreSharedKey out;
  put_opaque(out.identity, "lockstep store 1", 2);
  put_opaque(out.identity, view(sha256(context)), 2);
  put_big(out.identity, kTls13, 2);
  put_big(out.identity, kHkdfSha256, 2);

  std::string label;  // HKDF-Expand-Label (RFC 8446, section 7.1) of one block
  put_big(label, kDigestBytes, 2);
  put_opaque(label, "tls13 derived psk", 1);
  put_opaque(label, view(sha256(out.identity)), 1);
  Digest extracted = hmac_sha256(std::string(kDigestBytes, '\0'), token);
  out.key = hmac_sha256(view(extracted), label + "\x01");
  wipe(extracted);
  return out;
}

// --- one connection -------------------------------------------------------------------------------------------------

class TlsStream final : public Stream {
 public:
  TlsStream(std::shared_ptr<const TlsContext> context, Descriptor socket, TlsRole role)
      : Stream(std::move(socket)), context_(std::move(context)), role_(role) {
    if (role_ == TlsRole::kClient) start();
  }
  ~TlsStream() override { openssl().SSL_free(ssl_); }

  Transmission receive(std::string& into, std::size_t most) override;
  Transmission send(std::string_view data, std::size_t& offset) override;
  short events(short wanted) const override {
    const auto when_known = static_cast<short>(is_known_ ? wanted : POLLIN);
    return static_cast<short>(when_known | (unsent_.empty() ? 0 : POLLOUT));
  }
  bool has_proof() const override { return is_known_ || has_answered_; }

  static int use_session(SSL* handle, const EVP_MD*, const unsigned char** identity, std::size_t* size,
                         SSL_SESSION** session);
  static int find_session(SSL* handle, const unsigned char* identity, std::size_t size, SSL_SESSION** session);

 private:
  void start();
  bool shake_hands();
  bool has_client_hello() const;
  void feed(const std::string& bytes);
  Transmission pull();
  Transmission push();
  void decrypt(std::string& into, std::size_t most);
  [[noreturn]] void fail(const char* what);
  SSL_SESSION* make_session() const;

  std::shared_ptr<const TlsContext> context_;
  TlsRole role_;
  SSL* ssl_ = nullptr;
  BIO *in_ = nullptr, *out_ = nullptr;  // ssl_ owns them
  std::string client_hello_;            // server only: the bytes of it that have arrived
  std::string unsent_;                  // encrypted bytes
  std::size_t budget_ = kMaxHandshakeBytes;
  bool is_known_ = false;      // the handshake is over
  bool has_answered_ = false;  // server only: it has accepted the ClientHello, whose binder proves the token
  bool is_closed_ = false;
};

void TlsStream::start() {
  const OpenSsl& s = openssl();
  ssl_ = s.SSL_new(context_->context_);
  in_ = s.BIO_new(s.BIO_s_mem());
  out_ = s.BIO_new(s.BIO_s_mem());
  if (!ssl_ || !in_ || !out_) {
    s.BIO_free(in_);
    s.BIO_free(out_);
  }
  require_openssl(ssl_ && in_ && out_, "make a connection");
  s.SSL_set_bio(ssl_, in_, out_);
  require_openssl(s.SSL_set_ex_data(ssl_, 0, this) == 1, "make a connection");
  if (role_ == TlsRole::kServer) return s.SSL_set_accept_state(ssl_);
  s.SSL_set_connect_state(ssl_);
  s.SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);  // a server with a certificate is not trusted
}

SSL_SESSION* TlsStream::make_session() const {
  const OpenSsl& s = openssl();
  constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
  const Digest& key = context_->psk_.key;
  SSL_SESSION* const session = s.SSL_SESSION_new();
  const SSL_CIPHER* const cipher = s.SSL_CIPHER_find(ssl_, kAes128GcmSha256);
  if (session && cipher &&
      s.SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      s.SSL_SESSION_set_cipher(session, cipher) == 1 &&
      s.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  s.SSL_SESSION_free(session);
  return nullptr;
}

int TlsStream::use_session(SSL* handle, const EVP_MD*, const unsigned char** identity, std::size_t* size,
                           SSL_SESSION** session) {
  const auto* const self = static_cast<const TlsStream*>(openssl().SSL_get_ex_data(handle, 0));
  const std::string& own = self->context_->psk_.identity;
  *identity = reinterpret_cast<const unsigned char*>(own.data());
  *size = own.size();
  *session = self->make_session();
  return *session != nullptr;
}

int TlsStream::find_session(SSL* handle, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
  const auto* const self = static_cast<const TlsStream*>(openssl().SSL_get_ex_data(handle, 0));
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), size) != self->context_->psk_.identity) return 0;
  *session = self->make_session();
  return *session != nullptr;
}

// Moves bytes from the socket to OpenSSL: before the handshake is over, no more than the budget.
Transmission TlsStream::pull() {
  std::string bytes;
  const std::size_t most = is_known_ ? kMaxPiece : budget_;
  if (most == 0) throw TlsError(fmt::format("TLS: more than {} bytes of a handshake", kMaxHandshakeBytes), false);
  const Transmission transfer = Stream::receive(bytes, most);
  if (transfer == Transmission::kClosed) is_closed_ = true;
  if (transfer != Transmission::kDone) return transfer;
  if (!is_known_) budget_ -= bytes.size();
  if (ssl_) {
    feed(bytes);
  } else {
    client_hello_ += bytes;
  }
  return transfer;
}

void TlsStream::feed(const std::string& bytes) {
  const int size = static_cast<int>(bytes.size());
  require_openssl(openssl().BIO_write(in_, bytes.data(), size) == size, "store the received bytes");
}

// Moves bytes from OpenSSL to the socket.
Transmission TlsStream::push() {
  char buffer[kMaxPiece];
  for (;;) {
    std::size_t sent = 0;
    const Transmission transfer = Stream::send(unsent_, sent);
    unsent_.erase(0, sent);
    if (transfer == Transmission::kClosed) is_closed_ = true;
    if (transfer != Transmission::kDone) return transfer;
    const int count = ssl_ ? openssl().BIO_read(out_, buffer, sizeof(buffer)) : 0;
    if (count <= 0) return Transmission::kDone;
    unsent_.assign(buffer, static_cast<std::size_t>(count));
  }
}

// Whether the ClientHello is complete. Throws at the first byte that cannot be part of a record with one complete
// ClientHello of an accepted length.
bool TlsStream::has_client_hello() const {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(client_hello_[i]); };
  const std::size_t have = client_hello_.size();
  const std::size_t record = have > 4 ? 256u * byte(3) + byte(4) : 4;
  const bool is_hello = (have < 1 || byte(0) == 22) && (have < 2 || byte(1) == 3) && (have < 3 || byte(2) <= 3) &&
                        (have < 4 || byte(3) <= kMaxHandshakeBytes / 256) && record >= 4 &&
                        kRecordHeader + record <= kMaxHandshakeBytes && have <= kRecordHeader + record &&
                        (have < 6 || byte(5) == 1) && (have < 7 || byte(6) == 0) &&
                        (have < 9 || 256u * byte(7) + byte(8) == record - 4);
  if (!is_hello) throw TlsError("TLS: not the ClientHello of a Lockstep store's client", false);
  return have == kRecordHeader + record;
}

// Returns true once the handshake is complete; false if the peer must send more, or has closed.
bool TlsStream::shake_hands() {
  const OpenSsl& s = openssl();
  while (!is_known_) {
    if (!ssl_ && has_client_hello()) {
      start();
      feed(std::exchange(client_hello_, {}));
    }
    if (ssl_) {
      s.ERR_clear_error();
      const int result = s.SSL_do_handshake(ssl_);
      if (result != 1 && s.SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) fail("handshake");
      has_answered_ = role_ == TlsRole::kServer;
      is_known_ = result == 1;
      if (is_known_ && (s.SSL_session_reused(ssl_) != 1 || s.SSL_version(ssl_) != TLS1_3_VERSION))
        throw TlsError("TLS: the peer does not use the pre-shared key", false);
      if (push() == Transmission::kClosed) return false;
    }
    if (!is_known_ && pull() != Transmission::kDone) return false;
  }
  return true;
}

// An unauthenticated client receives the same alert for every error, which reveals nothing, such as the job.
void TlsStream::fail(const char* what) {
  constexpr char kHandshakeFailure[] = {21, 3, 3, 0, 2, 2, SSL3_AD_HANDSHAKE_FAILURE};
  const OpenSsl& s = openssl();
  const unsigned long code = s.ERR_get_error();
  const char* const text = code == 0 ? nullptr : s.ERR_reason_error_string(code);
  s.ERR_clear_error();
  if (role_ == TlsRole::kServer && !has_answered_) {
    std::size_t sent = 0;  // the buffer of a new socket has room
    static_cast<void>(Stream::send({kHandshakeFailure, sizeof(kHandshakeFailure)}, sent));
  }
  is_closed_ = true;
  throw TlsError(fmt::format("TLS {}: {}", what, text ? text : "the connection ended"),
                 ERR_GET_REASON(code) == SSL_AD_REASON_OFFSET + SSL3_AD_HANDSHAKE_FAILURE);
}

void TlsStream::decrypt(std::string& into, std::size_t most) {
  const OpenSsl& s = openssl();
  char buffer[kMaxPiece];
  while (most > 0 && !is_closed_) {
    s.ERR_clear_error();
    const int count = s.SSL_read(ssl_, buffer, static_cast<int>(std::min(most, sizeof(buffer))));
    if (count <= 0) {
      const int error = s.SSL_get_error(ssl_, count);
      if (error == SSL_ERROR_WANT_READ) return;
      if (error != SSL_ERROR_ZERO_RETURN) fail("record");
      is_closed_ = true;
      return;
    }
    into.append(buffer, static_cast<std::size_t>(count));
    most -= static_cast<std::size_t>(count);
  }
}

Transmission TlsStream::receive(std::string& into, std::size_t most) {
  const std::size_t before = into.size();
  if (!is_closed_ && shake_hands()) {
    decrypt(into, most);
    if (into.size() == before && !is_closed_ && pull() == Transmission::kDone) decrypt(into, most);
    if (!is_closed_) push();  // the reply to a key update
  }
  if (into.size() > before) return Transmission::kDone;
  return is_closed_ ? Transmission::kClosed : Transmission::kWouldBlock;
}

Transmission TlsStream::send(std::string_view data, std::size_t& offset) {
  const OpenSsl& s = openssl();
  if (is_closed_ || !shake_hands()) return is_closed_ ? Transmission::kClosed : Transmission::kWouldBlock;
  for (;;) {
    const Transmission transfer = push();
    if (transfer != Transmission::kDone || offset == data.size()) return transfer;
    s.ERR_clear_error();
    const int count =
        s.SSL_write(ssl_, data.data() + offset, static_cast<int>(std::min(data.size() - offset, kMaxPiece)));
    if (count <= 0) fail("record");  // a memory BIO takes all bytes
    offset += static_cast<std::size_t>(count);
  }
}

// --- the context ----------------------------------------------------------------------------------------------------

TlsContext::TlsContext(PreSharedKey psk) : psk_(std::move(psk)) {}

std::shared_ptr<const TlsContext> TlsContext::make(PreSharedKey psk) {
  const std::shared_ptr<TlsContext> out(new TlsContext(std::move(psk)));
  const OpenSsl& s = openssl();
  SSL_CTX* const context = out->context_ = s.SSL_CTX_new(s.TLS_method());
  require_openssl(context, "make a context");
  char groups[] = "X25519:P-256";  // only one key share of 32 bytes is sent
  require_openssl(s.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr) == 1 &&
                      s.SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, nullptr) == 1 &&
                      s.SSL_CTX_ctrl(context, SSL_CTRL_SET_GROUPS_LIST, 0, groups) == 1 &&
                      s.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
                      s.SSL_CTX_set_num_tickets(context, 0) == 1 && s.SSL_CTX_set_max_early_data(context, 0) == 1,
                  "do TLS 1.3 with AES-128-GCM and X25519");
  s.SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  s.SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  s.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  s.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                 SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
                 nullptr);
  s.SSL_CTX_set_psk_use_session_callback(context, TlsStream::use_session);
  s.SSL_CTX_set_psk_find_session_callback(context, TlsStream::find_session);
  return out;
}

TlsContext::~TlsContext() {
  wipe(psk_.key);
  openssl().SSL_CTX_free(context_);
}

std::unique_ptr<Stream> TlsContext::stream(Descriptor socket, TlsRole role) const {
  return std::make_unique<TlsStream>(shared_from_this(), std::move(socket), role);
}

}  // namespace lockstep::parallel
