// The search for the ranks that are to blame for a timeout. Ranks that wait for others themselves are not. All ranks are
// global ranks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/callback.h"

namespace lockstep::parallel {

inline constexpr int kNobody = -1;                             // instead of a rank: none
inline constexpr int kNoAnswer = -2;                           // the rank does not say which one it waits for
inline constexpr std::chrono::milliseconds kUntilSilent{500};  // a waiting rank answers much more often

// Returns the `late` ranks that do not answer. If all do, returns the rank at the end of the chain that begins with
// `first`, one of them: the first that does not answer. Returns none if there is no such rank, because the chain's ranks
// wait for each other or for `own`, or the last one waits for nobody. `ask` returns, for each of the given ranks, the rank
// that it waits for, kNobody or kNoAnswer.
std::vector<int> find_silent(const std::vector<int>& late, int first, int own,
                             FunctionRef<std::vector<int>(const std::vector<int>& ranks)> ask);

// "rank 1 has not arrived, rank 5 does not answer", where rank 5 is not one of the `late` ranks. `name_of` returns "rank 1",
// `delay_of` "has not arrived".
std::string text_of_silent(const std::vector<int>& silent, const std::vector<int>& late,
                           FunctionRef<std::string(int rank)> name_of, FunctionRef<const char*(int rank)> delay_of);

}  // namespace lockstep::parallel
