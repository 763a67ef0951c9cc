// Why a group has failed, and how that and what ranks disagree about is put into words.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/parallel/comm/backend_internal.h"

namespace lockstep::parallel {

// Why a group failed, as one rank tells the others.
enum class Poison : std::uint32_t { kNone, kLost, kLeft, kLate, kDisagreed, kLeftByError };

// "rank 2 has left the group"; `lost` says what became of a lost rank, if that is known. Any number may come as a reason.
std::string poison_text(Poison reason, int culprit, const std::string& lost);

// What a peer says it does. It may say anything: values outside the enumerations are possible.
struct Announcement {
  std::uint64_t kind = 0, dtype = 0, op = 0, root = 0, count = 0;
  Reduction order = Reduction::kCanonical;
  std::string text() const;  // "all_reduce of 10 f32 (sum)"
};

}  // namespace lockstep::parallel
