// Reads any text as a rank's error file: the result is a message of bounded length without control characters, or
// none.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "tests/fuzz/watched_input.h"

namespace par = lockstep::parallel;

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  const std::string message = par::message_in(std::string(reinterpret_cast<const char*>(data), size));
  if (message.size() > par::kMaxErrorText + 3) std::abort();
  for (const char c : message) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') std::abort();
  }
  // A message that was not truncated must be read as it was written.
  if (message.size() <= par::kMaxErrorText && par::message_in(par::error_json(message)) != message) std::abort();
}
