#include "lockstep/parallel/rendezvous/crypto_internal.h"

#include <dlfcn.h>
#include <openssl/opensslv.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/openssl_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

namespace {

template <class Function>
void find_in(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));  // also searches libcrypto, which libssl is linked to
  if (!function) throw NotBuilt(fmt::format("TcpStore: this system's OpenSSL has no {}; install OpenSSL 3", name));
}

OpenSsl open_openssl() {
  const std::string file = fmt::format("libssl.so.{}", OPENSSL_SHLIB_VERSION);
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw NotBuilt(fmt::format("TcpStore: {}, which protects connections, cannot be opened: {}\nInstall it (libssl3)",
                               file, ::dlerror()));
  OpenSsl out{};
#define OPENSSL(name) find_in(library, #name, out.name);
#include "lockstep/parallel/rendezvous/openssl.def"
#undef OPENSSL
  return out;
}

unsigned char* bytes_of(Digest& digest) { return reinterpret_cast<unsigned char*>(digest.data()); }

}  // namespace

void require_openssl(bool succeeded, const char* what) {
  if (!succeeded)
    throw CommError(fmt::format("store: OpenSSL cannot {}: no memory, or disabled by its configuration", what));
}

const OpenSsl& openssl() {
  static const OpenSsl opened = open_openssl();
  return opened;
}

Digest random_digest() {
  Digest out;
  if (::getentropy(out.data(), out.size()) != 0)
    throw CommError(fmt::format("cannot get random numbers from the system: {}", reason(errno)));
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
  std::size_t size = 0;
  require_openssl(
      openssl().EVP_Q_digest(nullptr, "SHA256", nullptr, text.data(), text.size(), bytes_of(out), &size) == 1 &&
          size == out.size(),
      "compute SHA-256");
  return out;
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  Digest out;
  std::size_t size = 0;
  require_openssl(openssl().EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(),
                                      reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes_of(out),
                                      out.size(), &size) &&
                      size == out.size(),
                  "compute HMAC-SHA256");
  return out;
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && openssl().CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(Digest& secret) { openssl().OPENSSL_cleanse(secret.data(), secret.size()); }

}  // namespace lockstep::parallel
