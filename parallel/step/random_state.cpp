#include "lockstep/parallel/step/random_state.h"

#include <algorithm>
#include <map>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

void share_random_state(ProcessGroup& group, const char* caller) {
  const std::vector<std::uint64_t> own = random::state();
  const Tensor size = raw::full({1}, static_cast<std::int64_t>(own.size()), {.dtype = kInt64});
  group.all_reduce(size, ReduceOp::kMax, {.name = caller})->wait();
  std::vector<std::uint64_t> padded = own;
  padded.resize(static_cast<std::size_t>(size.item<std::int64_t>()), 0);
  const auto length = static_cast<std::int64_t>(padded.size());
  const Tensor all = raw::empty({group.size(), length}, {.dtype = kInt64});
  group.all_gather(all, raw::from_bytes(padded.data(), {length}, kInt64), {.name = caller})->wait();

  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>
      calls;  // the most of any rank, by site and micro-batch
  const std::span<const std::int64_t> values = all.span<std::int64_t>();
  for (int r = 0; r < group.size(); ++r) {
    const auto state = values.subspan(static_cast<std::size_t>(r * length), static_cast<std::size_t>(length));
    const auto seed = static_cast<std::uint64_t>(state[1]);
    LOCKSTEP_CHECK(seed == own[1],
                   "{}: rank {} has seed {}, this rank {}; "
                   "call manual_seed with the same seed on all ranks",
                   caller, r, seed, own[1]);
    for (std::size_t i = 2; i < state.size(); i += 3) {
      std::uint64_t& number = calls[{static_cast<std::uint64_t>(state[i]), static_cast<std::uint64_t>(state[i + 1])}];
      number = std::max(number, static_cast<std::uint64_t>(state[i + 2]));
    }
  }
  std::vector<std::uint64_t> merged{own[0], own[1]};
  for (const auto& [place, number] : calls) {
    if (number > 0) merged.insert(merged.end(), {place.first, place.second, number});
  }
  random::set_state(merged);
}

}  // namespace lockstep::parallel
