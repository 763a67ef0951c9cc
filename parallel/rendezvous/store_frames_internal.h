// What client and server of a Unix or TCP store say to each other. A frame is a length (u32, little-endian) and as many bytes:
// a hello (Unix), or a message: a code (u8) and fields (u32 count; each a u32 length and its bytes). A request has its operation
// as code and its keys and values as fields, a reply its status and the result.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

enum class StoreStatus : std::uint8_t {
  kDone = 1,      // the result, if there is one
  kWelcome,       // after a hello
  kOtherVersion,  // after a hello; the server's version
  kOtherJob,      // after a hello
  kExhausted,     // instead of an answer to a hello; what the server's process has run out of
  kInvalid,       // the text of an InvalidArgument
  kMalformed,     // what was wrong with the frame; the connection ends
};

struct StoreMessage {
  std::uint8_t code = 0;
  std::vector<std::string> fields;
};

// Identifies a run, so that two of them never mix: a hash of its token or id.
struct JobId {
  std::uint64_t low = 0, high = 0;
  bool operator==(const JobId&) const = default;
};

// The first frame of a client.
struct StoreHello {
  static constexpr std::uint64_t kMagic = 0x6c6f636b73746570;  // "lockstep"
  static constexpr std::uint32_t kVersion = 3;
  std::uint32_t version = kVersion;
  JobId job;
};

// Appends a number, little-endian.
void put_little(std::string& out, std::unsigned_integral auto value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// Whole frames. Reading throws IoError that names the field.
std::string frame(const StoreHello& hello);
std::string frame(std::uint8_t code, const std::vector<std::string>& fields);
std::string frame(const StoreRequest& request);
inline std::string frame(StoreStatus status, const std::vector<std::string>& fields = {}) {
  return frame(static_cast<std::uint8_t>(status), fields);
}
StoreHello read_hello(std::string_view content);
StoreMessage read_message(std::string_view content);

// The content of the first frame in `bytes`, once all of it is there; it may claim at most `most` bytes (else IoError).
std::optional<std::string_view> first_frame(std::string_view bytes, std::size_t most);
inline constexpr std::size_t kFrameHeader = 4;

}  // namespace lockstep::parallel
