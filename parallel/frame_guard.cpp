#include "lockstep/parallel/frame_guard_internal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <algorithm>
#include <span>

#include "lockstep/parallel/socket_internal.h"
#include "lockstep/parallel/store_frames_internal.h"
#include "lockstep/tensor/byte_reader.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

void require(bool succeeded) {
  if (!succeeded) throw CommError("store: libcrypto cannot compute HMAC-SHA256 (no memory, or its configuration)");
}

void write_little(char* to, std::unsigned_integral auto value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) to[i] = static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

Digest random_digest() {
  Digest out;
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = uninterrupted([&] { return ::getrandom(out.data() + done, out.size() - done, 0); });
    if (count <= 0) throw CommError(fmt::format("store: no random numbers from the system: {}", reason(errno)));
    done += static_cast<std::size_t>(count);
  }
  return out;
}

Digest sha256(std::string_view text) {
  Digest out;
  unsigned int size = 0;
  require(EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(out.data()), &size, EVP_sha256(),
                     nullptr) == 1 &&
          size == out.size());
  return out;
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(Digest& secret) { OPENSSL_cleanse(secret.data(), secret.size()); }

void Mac::Free::operator()(evp_mac_ctx_st* context) const { EVP_MAC_CTX_free(context); }

Mac::Mac(std::string_view key) {
  const std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> hmac(EVP_MAC_fetch(nullptr, "HMAC", nullptr), EVP_MAC_free);
  require(hmac != nullptr);
  context_.reset(EVP_MAC_CTX_new(hmac.get()));
  char digest[] = "SHA256";
  const OSSL_PARAM settings[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_end()};
  require(context_ && EVP_MAC_init(context_.get(), bytes_of(key), key.size(), settings) == 1);
}

Digest Mac::operator()(std::initializer_list<std::string_view> parts) {
  require(EVP_MAC_init(context_.get(), nullptr, 0, nullptr) == 1);  // again, with the same key
  for (const std::string_view part : parts) require(EVP_MAC_update(context_.get(), bytes_of(part), part.size()) == 1);
  Digest out;
  std::size_t size = 0;
  require(EVP_MAC_final(context_.get(), reinterpret_cast<unsigned char*>(out.data()), &size, out.size()) == 1 &&
          size == out.size());
  return out;
}

FrameGuard::Forged::Forged()
    : CommError("store: a frame was altered or repeated on its way, or comes from somebody else") {}

void FrameGuard::seal(std::string& frame) {
  char number[sizeof(sent_)];
  write_little(number, sent_++);
  write_little(frame.data(), static_cast<std::uint32_t>(frame.size() - kFrameHeader + kTrailer));
  frame.append(number, sizeof(number));
  const Digest mac = out_({frame});
  frame.append(mac.data(), kMacBytes);
}

std::string_view FrameGuard::open(std::string_view bytes) {
  if (bytes.size() < kFrameHeader + kTrailer) throw Forged();
  const std::string_view guarded = bytes.substr(0, bytes.size() - kMacBytes), mac = bytes.substr(guarded.size());
  const std::string_view content = guarded.substr(0, guarded.size() - sizeof(received_));
  ByteReader number(std::as_bytes(std::span(guarded.substr(content.size()))), "store: frame");
  const Digest expected = in_({guarded});
  if (!same_secret(view(expected).substr(0, kMacBytes), mac)) throw Forged();
  if (number.little<std::uint64_t>("number") != received_) throw Forged();
  ++received_;
  return content.substr(kFrameHeader);
}

std::optional<std::string_view> first_opened(std::optional<FrameGuard>& guard, std::string_view bytes,
                                             std::size_t most) {
  const auto content = first_frame(bytes, most + (guard ? FrameGuard::kTrailer : 0));
  if (!content || !guard) return content;
  return guard->open(bytes.substr(0, kFrameHeader + content->size()));
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
