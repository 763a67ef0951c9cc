// SHA-256, HMAC-SHA256 and secrets, implemented with OpenSSL (openssl_internal.h).
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::parallel {

inline constexpr std::size_t kDigestBytes = 32;
using Digest = std::array<char, kDigestBytes>;
inline std::string_view view(const Digest& digest) { return {digest.data(), digest.size()}; }

// 32 random bytes from the operating system. Throws CommError if the system has none.
Digest random_digest();
// Random bytes from the operating system, at most kDigestBytes, as hexadecimal text.
std::string random_hex(std::size_t bytes);
// The functions below throw NotBuilt if OpenSSL cannot be opened.
Digest sha256(std::string_view text);
Digest hmac_sha256(std::string_view key, std::string_view text);
// Compares in constant time: the time does not depend on where the texts differ.
bool same_secret(std::string_view a, std::string_view b);
// Overwrites the secret. The compiler does not optimize the write away.
void wipe(Digest& secret);

}  // namespace lockstep::parallel
