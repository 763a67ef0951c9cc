// The state of a ShardedDataParallel for checkpoints: this rank's pieces, as parts of whole parameters.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"

namespace lockstep::parallel {

// Every rank saves its own elements; rank 0 saves the buffers.
std::vector<StatePart> ShardedDataParallel::State::parts() const {
  std::vector<StatePart> parts;
  for (const auto& [name, tensor] : module.state_dict()) {
    const Storage* const storage = tensor.impl().storage.get();
    const bool is_parameter =
        std::ranges::any_of(units, [&](const UnitParameters& unit) { return unit.owns(*storage); });
    parts.push_back(is_parameter ? part_of(name, tensor)
                                 : StatePart{.name = name,
                                             .part = tensor,
                                             .shape = tensor.shape(),
                                             .place = TensorPart::whole(tensor.shape()),
                                             .is_saved = group->rank() == 0});
  }
  return parts;
}

// `parameter` is known by its storage and offset: the module's state dict names a tied parameter several times.
StatePart ShardedDataParallel::State::part_of(const std::string& name, const Tensor& parameter) const {
  const TensorImpl& impl = parameter.impl();
  for (const UnitParameters& unit : units) {
    for (const FlatParameters& flat : unit.flats()) {
      if (flat.storage != impl.storage) continue;
      const std::int64_t offset = impl.offset / static_cast<std::int64_t>(item_size(impl.dtype));
      const TensorPart place = part_in_shard(impl.shape, offset, flat.shard.numel(), group->rank());
      return {.name = name,
              .part = elements_in_shard(flat.master, offset, place, group->rank()),
              .shape = impl.shape,
              .place = place};
    }
  }
  throw Error(fmt::format("checkpoint: parameter {} is in no unit", name));
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
    explicit ShardedState(ShardedDataParallel& run, ShardedDataParallel::State& state) : run_(run), state_(state) {}
    ProcessGroup* group() const override { return state_.group.get(); }
    std::vector<StatePart> parts() const override { return state_.parts(); }
    optim::NamedParameters parameters() const override {
      optim::NamedParameters named;
      for (const ShardedParameter& each : run_.named_parameters()) named.emplace_back(each.name, each.parameter);
      return named;
    }
    void after_load() override { state_.after_load(); }

   private:
    ShardedDataParallel& run_;
    ShardedDataParallel::State& state_;
  };
  return std::make_shared<ShardedState>(*this, *state_);
}

}  // namespace lockstep::parallel
