// Reasons of a group's failure, and the texts of failures and of calls that disagree.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/parallel/comm/backend_internal.h"

namespace lockstep::parallel {

// The reason of a failure, as one rank reports it to the others.
enum class Poison : std::uint32_t { kNone, kLost, kLeft, kLate, kDisagreed, kLeftByError };

// For example "rank 2 has left the group". `lost` says what happened to a lost rank, or is empty. `reason` may be any
// number.
std::string poison_text(Poison reason, int culprit, const std::string& lost);

// The signature of a peer's call. Peers may send anything, so values outside the enumerations are possible.
struct Announcement {
  std::uint64_t kind = 0, dtype = 0, op = 0, root = 0, count = 0;
  Reduction order = Reduction::kCanonical;
  std::string text() const;  // "all_reduce of 10 f32 (sum)"
};

}  // namespace lockstep::parallel
