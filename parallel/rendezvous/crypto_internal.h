// SHA-256, HMAC-SHA256 and secrets, implemented with OpenSSL's libcrypto. The library is opened on first use, so
// programs whose ranks are on one host do not load its five megabytes.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/tensor/error.h"

struct evp_mac_ctx_st;

namespace lockstep::parallel {

inline constexpr std::size_t kDigestBytes = 32;
using Digest = std::array<char, kDigestBytes>;
inline std::string_view view(const Digest& digest) { return {digest.data(), digest.size()}; }

// Opens "libcrypto" or "libssl", which then stays open. Throws NotBuilt if the library cannot be opened.
void* open_openssl(const char* library);
[[noreturn]] void raise_missing(const char* function);
template <class Function>
void find_in(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) raise_missing(name);
}

// 32 random bytes from the operating system. Throws CommError if the system has none.
Digest random_digest();
// Random bytes from the operating system, at most kDigestBytes, as hexadecimal text.
std::string random_hex(std::size_t bytes);
// The functions below throw NotBuilt if libcrypto cannot be opened.
Digest sha256(std::string_view text);
// Compares in constant time: the time does not depend on where the texts differ.
bool same_secret(std::string_view a, std::string_view b);
// Overwrites the secret. The compiler does not optimize the write away.
void wipe(Digest& secret);

// HMAC-SHA256 under one key. The context is kept, as creating one costs more than a MAC.
class Mac {
 public:
  explicit Mac(std::string_view key);
  Digest operator()(std::initializer_list<std::string_view> parts);

 private:
  struct Free {
    void operator()(evp_mac_ctx_st* context) const;
  };
  std::unique_ptr<evp_mac_ctx_st, Free> context_;
};

}  // namespace lockstep::parallel
