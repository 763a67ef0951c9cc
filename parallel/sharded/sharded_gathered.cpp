// All parameters of a ShardedDataParallel outside a step: `gathered`, and the comparison of check_every.
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

void ShardedDataParallel::State::gathered(FunctionRef<void()> body) {
  end_failed_call();
  LOCKSTEP_CHECK(!joining, "ShardedDataParallel: gathered inside join, in which ranks that have joined take no part");
  LOCKSTEP_CHECK(!gathers->is_running(),
                 "ShardedDataParallel: gathered inside a step, or before the backward of operator()'s result");
  if (gathers->has_all()) return with_whole_parameters(module, body);
  const Finally hide([this] { gathers->end_all(); });
  gather_all("FSDP gathered, all ranks");
  const std::vector<Tensor> kept = copy_values();
  try {
    with_whole_parameters(module, body);
  } catch (...) {
    undo_changes(kept);
    throw;
  }
  const UnitParameters* const changed = undo_changes(kept);
  LOCKSTEP_CHECK(!changed,
                 "ShardedDataParallel: parameters of {} were changed inside gathered, and the change is undone; change "
                 "a sharded model by its optimizer or by parallel::load_checkpoint",
                 changed->name());
}

void ShardedDataParallel::State::gather_all(const char* purpose) {
  upload_trained();
  gathers->gather_all(purpose);
}

// Copies of what a change in `gathered` would change for good: of resident parameters this rank's shard, and all of
// those that are frozen.
std::vector<Tensor> ShardedDataParallel::State::copy_values() const {
  std::vector<Tensor> kept;
  for (const UnitParameters& unit : units) {
    for (const FlatParameters& flat : unit.flats())
      kept.push_back(is_resident() ? raw::clone(flat.layout.trained ? flat.shard : flat.whole) : Tensor());
  }
  return kept;
}

// Undoes changes of parameters in `gathered`, which other ranks do not see. Returns the unit that was changed, or null.
const UnitParameters* ShardedDataParallel::State::undo_changes(const std::vector<Tensor>& kept) {
  std::size_t at = 0;
  const UnitParameters* changed = nullptr;
  for (UnitParameters& unit : units) {
    if (unit.has_new_version()) changed = &unit;
    for (const FlatParameters& flat : unit.flats()) {
      if (unit.has_new_version() && is_resident()) raw::copy(kept[at], flat.layout.trained ? flat.shard : flat.whole);
      ++at;
    }
  }
  return changed;
}

// With check_every: compares the parameters that the ranks gather, before the step after every so many.
void ShardedDataParallel::State::check_gathered() {
  const std::int64_t steps = gradients->steps();
  if (options.check_every == 0 || steps == 0 || steps % options.check_every != 0) return;
  const Finally hide([this] { gathers->end_all(); });
  gather_all("FSDP check_every");
  check_same_values(mode, module, *group, /*with_buffers=*/false);
  check_same_whole_values(mode, module);
}

// Copies the values that the optimizer has changed, or a checkpoint, to the shard, rounded to its dtype.
void ShardedDataParallel::State::upload(const FlatParameters& flat) {
  if (flat.master.ref() == flat.shard.ref()) return;
  const bool is_offloaded = flat.master.device() != flat.shard.device();
  raw::copy(is_offloaded ? raw::to(flat.master, flat.shard.dtype()) : flat.master, flat.shard);
  const int rank = group->global_rank(group->rank());
  if (is_offloaded) group->traffic().add(-1 - rank, rank, Phase::kOffload, bytes_of(flat.shard));
}

// Gathers of a failed step, which other ranks may have launched as well, still read the shards: waits for them.
void ShardedDataParallel::State::upload_trained() {
  for (UnitParameters& unit : units) unit.release();
  for (const FlatParameters* flat : trained) upload(*flat);
}

}  // namespace lockstep::parallel
