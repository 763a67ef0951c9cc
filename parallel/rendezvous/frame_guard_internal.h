// Message authentication of the TCP store: the guard that goes around frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

// The two directions of one connection. A guarded frame is a frame whose length also counts a trailer: the number of the
// frame in its direction (u64, from 0) and the first 16 bytes of the MAC of all before them (128 bits: HMAC may be cut,
// RFC 2104 section 5). So a frame that was altered, repeated, left out or sent back does not open.
class FrameGuard {
 public:
  static constexpr std::size_t kMacBytes = 16;
  static constexpr std::size_t kTrailer = sizeof(std::uint64_t) + kMacBytes;

  FrameGuard(const Digest& key_out, const Digest& key_in) : out_(view(key_out)), in_(view(key_in)) {}

  // A frame becomes a guarded one.
  void seal(std::string& frame);
  // What is inside of `content`, that of the guarded frame `bytes` (its header included). Throws Forged.
  std::string_view open(std::string_view bytes);

  // The frame is not the next one that the peer made.
  struct Forged : CommError {
    Forged();
  };

 private:
  Mac out_, in_;
  std::uint64_t sent_ = 0, received_ = 0;
};

// As first_frame, opened: the content of the first frame in `bytes` once all of it is there, of at most `most` bytes.
std::optional<std::string_view> first_opened(std::optional<FrameGuard>& guard, std::string_view bytes,
                                             std::size_t most);

}  // namespace lockstep::parallel
