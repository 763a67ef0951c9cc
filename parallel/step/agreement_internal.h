// Work that succeeds on all ranks or fails on all ranks. Not installed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

// Calls `round` on every rank until it has returned false on all of them; it is not called again on a rank where it
// returned false. If it throws on a rank, that rank rethrows the exception, and the other ranks throw one of the same
// class (InvalidArgument, IoError, otherwise Error) with "rank 2: " before its text. Each round is bounded work without
// communication, so that no rank waits for another one longer than the group's timeout. All ranks of `group` must call
// this; null stands for this process alone. `caller` names the agreement in errors about ranks that call something else.
void in_rounds(ProcessGroup* group, FunctionRef<bool()> round, const char* caller = "");

// The same with one round.
void on_all_ranks(ProcessGroup* group, FunctionRef<void()> work, const char* caller = "");

// Rank 0's `text`, of at most 4,096 bytes, on all ranks.
std::string text_of_rank_0(ProcessGroup* group, const std::string& text);

// The `own` numbers of all ranks, one row for each rank; null stands for this process alone. All ranks pass the same
// count of numbers.
Tensor gather_numbers(ProcessGroup* group, const std::vector<std::int64_t>& own);

// The texts of all ranks, by rank; ranks may have different numbers of texts. A text has no '\0'.
std::vector<std::vector<std::string>> gather_texts(ProcessGroup& group, const std::vector<std::string>& own);

}  // namespace lockstep::parallel
