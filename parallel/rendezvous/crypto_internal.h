// SHA-256, HMAC-SHA256 and handling of secrets, by OpenSSL's libcrypto. The library is opened on first use: programs whose
// ranks are on one host do not load its five megabytes.
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

// One of OpenSSL's libraries: "libcrypto" or "libssl". It stays open. Throws NotBuilt where it cannot be opened.
void* open_openssl(const char* library);
[[noreturn]] void raise_missing(const char* function);
template <class Function>
void find_in(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) raise_missing(name);
}

// From the system. Throws CommError where it has none.
Digest random_digest();
// So many bytes from the system, at most kDigestBytes, in hexadecimal.
std::string random_hex(std::size_t bytes);
// These throw NotBuilt where libcrypto cannot be opened.
Digest sha256(std::string_view text);
// In a time that does not depend on where they differ.
bool same_secret(std::string_view a, std::string_view b);
// Overwrites it, in a way that the compiler keeps.
void wipe(Digest& secret);

// HMAC-SHA256 under one key. The context is kept: making one costs more than a MAC.
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
