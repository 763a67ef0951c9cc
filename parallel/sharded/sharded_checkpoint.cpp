// The state of a ShardedDataParallel for checkpoints: this rank's pieces, as parts of whole parameters.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"

namespace lockstep::parallel {

// Every rank saves its own elements; rank 0 saves the buffers. Of the ranks that share a model's slices, one saves the
// tensors that are not slices.
std::vector<StatePart> ShardedDataParallel::State::parts(const StateRanks& ranks) const {
  std::vector<StatePart> parts;
  for (const nn::ListedTensor& each : nn::listed_tensors(module)) {
    const Storage* const storage = each.tensor.impl().storage.get();
    const bool is_parameter =
        std::ranges::any_of(units, [&](const UnitParameters& unit) { return unit.owns(*storage); });
    parts.push_back(is_parameter ? piece_in_state(each, ranks)
                                 : part_of(each, each.tensor, TensorPart::whole(each.tensor.shape()),
                                           ranks.saves_whole && group->rank() == 0, ranks));
  }
  return parts;
}

// The parameter is known by its storage and offset: the module lists a tied one several times.
StatePart ShardedDataParallel::State::piece_in_state(const nn::ListedTensor& parameter, const StateRanks& ranks) const {
  const TensorImpl& impl = parameter.tensor.impl();
  for (const UnitParameters& unit : units) {
    for (const FlatParameters& flat : unit.flats()) {
      if (flat.storage != impl.storage) continue;
      const std::int64_t offset = impl.offset / static_cast<std::int64_t>(item_size(impl.dtype));
      const TensorPart place = part_in_shard(impl.shape, offset, flat.shard.numel(), group->rank());
      return part_of(parameter, elements_in_shard(flat.master, offset, place, group->rank()), place,
                     saves(parameter, ranks), ranks);
    }
  }
  throw Error(fmt::format("checkpoint: parameter {} is in no unit", parameter.name));
}

void ShardedDataParallel::State::after_load() {
  end_call();
  for (UnitParameters& unit : units) {
    unit.mark_frozen_changed();
    for (const FlatParameters& flat : unit.flats()) {
      if (!flat.layout.trained) upload(flat);
    }
  }
}

std::shared_ptr<ModelState> ShardedDataParallel::model_state() {
  class ShardedState final : public ModelState {
   public:
    explicit ShardedState(ShardedDataParallel& run, ShardedDataParallel::State& state)
        : run_(run), state_(state), ranks_(state_ranks(state.module, state.group)) {}
    ProcessGroup* group() const override { return ranks_.group.get(); }
    const StageRunner* stages() const override { return ranks_.stages.get(); }
    bool is_first() const override { return state_.group->rank() == 0 && ranks_.saves_whole; }
    std::vector<StatePart> parts() const override { return state_.parts(ranks_); }
    optim::NamedParameters parameters() const override {
      optim::NamedParameters named;
      for (const ShardedParameter& each : run_.named_parameters()) named.emplace_back(each.name, each.parameter);
      return named;
    }
    void after_load() override { state_.after_load(); }

   private:
    ShardedDataParallel& run_;
    ShardedDataParallel::State& state_;
    StateRanks ranks_;
  };
  return std::make_shared<ShardedState>(*this, *state_);
}

}  // namespace lockstep::parallel
