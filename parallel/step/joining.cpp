#include <algorithm>
#include <span>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/joining_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

Joining::Joining(const char* mode, const JoinOptions& options, ProcessGroup& group)
    : mode_(mode), options_(options), group_(group) {
  check_same_text(fmt::format("{}: ranks join with different options", mode),
                  fmt::format("divide_by_initial_world_size {} throw_on_early_termination {}",
                              options.divide_by_initial_world_size, options.throw_on_early_termination),
                  group);
}

std::vector<std::int64_t> Joining::steps_of_all() const {
  const Tensor all = gather_numbers(&group_, {own_steps_});
  const std::span<const std::int64_t> numbers = all.span<std::int64_t>();
  return {numbers.begin(), numbers.end()};
}

void Joining::after_step(int joined) {
  if (!is_out_) ++own_steps_;
  if (std::exchange(joined_, joined) == joined) return;
  if (options_.throw_on_early_termination) {
    const std::vector<std::int64_t> steps = steps_of_all();
    const auto [fewest, most] = std::ranges::minmax_element(steps);
    throw CommError(fmt::format("{}: join: rank {} has no more data after {} steps, rank {} is at step {}", mode_,
                                fewest - steps.begin(), *fewest, most - steps.begin(), *most));
  }
  const Tensor first = raw::full({1}, is_out_ ? group_.size() : group_.rank(), {.dtype = kInt32});
  group_.all_reduce(first, ReduceOp::kMin)->wait();
  buffers_of_ = first.item<int>();
}

}  // namespace lockstep::parallel
