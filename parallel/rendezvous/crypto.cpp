#include "lockstep/parallel/rendezvous/crypto_internal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/opensslv.h>
#include <openssl/params.h>
#include <sys/random.h>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

// Functions of libcrypto, by their own names.
struct Crypto {
  decltype(&::EVP_Digest) EVP_Digest;
  decltype(&::EVP_sha256) EVP_sha256;
  decltype(&::EVP_MAC_fetch) EVP_MAC_fetch;
  decltype(&::EVP_MAC_free) EVP_MAC_free;
  decltype(&::EVP_MAC_CTX_new) EVP_MAC_CTX_new;
  decltype(&::EVP_MAC_CTX_free) EVP_MAC_CTX_free;
  decltype(&::EVP_MAC_init) EVP_MAC_init;
  decltype(&::EVP_MAC_update) EVP_MAC_update;
  decltype(&::EVP_MAC_final) EVP_MAC_final;
  decltype(&::OSSL_PARAM_construct_utf8_string) OSSL_PARAM_construct_utf8_string;
  decltype(&::OSSL_PARAM_construct_end) OSSL_PARAM_construct_end;
  decltype(&::CRYPTO_memcmp) CRYPTO_memcmp;
  decltype(&::OPENSSL_cleanse) OPENSSL_cleanse;
};

Crypto open_crypto() {
  void* const library = open_openssl("libcrypto");
  Crypto out{};
  find_in(library, "EVP_Digest", out.EVP_Digest);
  find_in(library, "EVP_sha256", out.EVP_sha256);
  find_in(library, "EVP_MAC_fetch", out.EVP_MAC_fetch);
  find_in(library, "EVP_MAC_free", out.EVP_MAC_free);
  find_in(library, "EVP_MAC_CTX_new", out.EVP_MAC_CTX_new);
  find_in(library, "EVP_MAC_CTX_free", out.EVP_MAC_CTX_free);
  find_in(library, "EVP_MAC_init", out.EVP_MAC_init);
  find_in(library, "EVP_MAC_update", out.EVP_MAC_update);
  find_in(library, "EVP_MAC_final", out.EVP_MAC_final);
  find_in(library, "OSSL_PARAM_construct_utf8_string", out.OSSL_PARAM_construct_utf8_string);
  find_in(library, "OSSL_PARAM_construct_end", out.OSSL_PARAM_construct_end);
  find_in(library, "CRYPTO_memcmp", out.CRYPTO_memcmp);
  find_in(library, "OPENSSL_cleanse", out.OPENSSL_cleanse);
  return out;
}

const Crypto& crypto() {
  static const Crypto opened = open_crypto();
  return opened;
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

void require(bool succeeded) {
  if (!succeeded)
    throw CommError("store: libcrypto cannot compute HMAC-SHA256: no memory, or disabled by its configuration");
}

}  // namespace

void* open_openssl(const char* library) {
  const std::string file = fmt::format("{}.so.{}", library, OPENSSL_SHLIB_VERSION);
  void* const opened = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened)
    throw NotBuilt(fmt::format("TcpStore: {}, which protects connections, cannot be opened: {}\nInstall it (libssl3)",
                               file, ::dlerror()));
  return opened;
}

void raise_missing(const char* function) {
  throw NotBuilt(fmt::format("TcpStore: this system's OpenSSL has no {}; install OpenSSL 3", function));
}

Digest random_digest() {
  Digest out;
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = uninterrupted([&] { return ::getrandom(out.data() + done, out.size() - done, 0); });
    if (count <= 0) throw CommError(fmt::format("cannot get random numbers from the system: {}", reason(errno)));
    done += static_cast<std::size_t>(count);
  }
  return out;
}

std::string random_hex(std::size_t bytes) {
  const Digest random = random_digest();
  std::string out;
  for (const char byte : view(random).substr(0, bytes)) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
}

Digest sha256(std::string_view text) {
  Digest out;
  unsigned int size = 0;
  require(crypto().EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(out.data()), &size,
                              crypto().EVP_sha256(), nullptr) == 1 &&
          size == out.size());
  return out;
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && crypto().CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(Digest& secret) { crypto().OPENSSL_cleanse(secret.data(), secret.size()); }

void Mac::Free::operator()(evp_mac_ctx_st* context) const { crypto().EVP_MAC_CTX_free(context); }

Mac::Mac(std::string_view key) {
  const Crypto& c = crypto();
  const std::unique_ptr<EVP_MAC, decltype(&::EVP_MAC_free)> hmac(c.EVP_MAC_fetch(nullptr, "HMAC", nullptr),
                                                                 c.EVP_MAC_free);
  require(hmac != nullptr);
  context_.reset(c.EVP_MAC_CTX_new(hmac.get()));
  char digest[] = "SHA256";
  const OSSL_PARAM settings[] = {c.OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 c.OSSL_PARAM_construct_end()};
  require(context_ && c.EVP_MAC_init(context_.get(), bytes_of(key), key.size(), settings) == 1);
}

Digest Mac::operator()(std::initializer_list<std::string_view> parts) {
  const Crypto& c = crypto();
  require(c.EVP_MAC_init(context_.get(), nullptr, 0, nullptr) == 1);  // again, with the same key
  for (const std::string_view part : parts) require(c.EVP_MAC_update(context_.get(), bytes_of(part), part.size()) == 1);
  Digest out;
  std::size_t size = 0;
  require(c.EVP_MAC_final(context_.get(), reinterpret_cast<unsigned char*>(out.data()), &size, out.size()) == 1 &&
          size == out.size());
  return out;
}

}  // namespace lockstep::parallel
