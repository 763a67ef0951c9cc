#include "lockstep/parallel/replicated/shards.h"

#include "lockstep/parallel/replicated/gradient_sets_internal.h"
#include "lockstep/parallel/replicated/shard_buffers_internal.h"
#include "lockstep/parallel/replicated/shard_rows_internal.h"
#include "lockstep/parallel/replicated/standing_gradients_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/random.h"

namespace lockstep::parallel {

struct Shards::State {
  State(nn::Module& module, const ShardsOptions& options)
      : module(module), options(options), parameters(module), sets(parameters.list()), buffers(module) {}
  nn::Module& module;
  ShardsOptions options;
  TrainedParameters parameters;
  GradientSets sets;
  ShardBuffers buffers;
};

Shards::Shards(nn::Module& module, const ShardsOptions& options) {
  LOCKSTEP_CHECK(options.shards >= 1 && options.shards <= random::kMaxShards, "Shards: {} shards, expected 1 to {}",
                 options.shards, random::kMaxShards);
  state_ = std::make_unique<State>(module, options);
}
Shards::~Shards() = default;

Tensor Shards::operator()(const Tensor& x) const { return state_->module(x); }
std::vector<nn::Parameter> Shards::parameters() const { return state_->module.parameters(); }

Tensor Shards::run(const Batch& batch, ShardLoss loss_fn) {
  State& state = *state_;
  const std::int64_t rows = rows_of("Shards", batch);
  const int shards = state.options.shards;
  const int running = static_cast<int>(std::min<std::int64_t>(rows, shards));
  LOCKSTEP_CHECK(running > 0, "Shards: the batch has no rows");
  const bool weighted = state.options.weighting == Weighting::kSamples;

  if (state.parameters.changed()) state.sets = GradientSets(state.parameters.list());
  const std::vector<nn::Parameter>& parameters = state.parameters.list();
  StandingGradients standing(parameters);
  state.buffers.begin_step(running > 1);
  std::vector<Tensor> losses;
  for (int s = 0; s < running; ++s) {
    const RowRange range = shard_rows(rows, s, shards);
    const random::ShardGuard shard(s);
    nn::ReplicaView view;
    if (s > 0) state.buffers.enter(view);
    const nn::ReplicaViewGuard guard(s > 0 && !state.buffers.empty() ? &view : nn::current_replica_view());
    state.sets.begin(s, running);
    const Tensor loss = loss_fn(narrow_rows(batch, range));
    const std::int64_t weight = weighted ? range.count : 1;
    losses.push_back(weighted_loss("Shards", loss, weight));
    weighted_backward(loss, weight);
    state.sets.end(s, running);
  }
  const StepScale scale = weighted ? StepScale(rows) : StepScale(shards, running);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Tensor sum = state.sets.finish(p);
    scale_gradient(sum, scale.first);
    scale_gradient(sum, scale.second);
    set_rounded(parameters[p].master(), sum);
  }
  standing.add_back();
  return combine_losses(losses, scale);
}

}  // namespace lockstep::parallel
