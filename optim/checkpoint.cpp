#include "lockstep/optim/checkpoint.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/random.h"
#include "lockstep/tensor/warning.h"

namespace lockstep {
namespace {

constexpr const char* kFormatKey = "lockstep_checkpoint";
constexpr const char* kFormat = "1";
constexpr const char* kRandomKey = "random.state";

void insert_all(StateDict& dict, const std::string& prefix, const StateDict& part) {
  for (const auto& [name, tensor] : part) dict.insert(prefix + name, tensor);
}

// The seed and counters are unsigned 64-bit integers; i64 tensors store their bits.
Tensor random_state() {
  const std::vector<std::uint64_t> words = random::state();
  return optim::to_tensor(std::vector<std::int64_t>(words.begin(), words.end()));
}

// A file of an earlier version can be loaded, but not continued from with the same random numbers.
void restore_random_state(const StateDict& dict, const CheckpointParts& parts) {
  const auto words = optim::StateReader(dict).list<std::int64_t>(kRandomKey);
  if (words.size() % 3 == 1 && !parts.optimizer && !parts.scheduler) {
    warn("load_checkpoint", "the file's random state has format 1, which cannot be restored; call manual_seed");
    return;
  }
  LOCKSTEP_CHECK(words.size() % 3 != 1,
                 "{} has format 1, and a run cannot continue from it with the same random numbers; load the model "
                 "alone ({{.model = &model}}) and start a new run with its weights",
                 kRandomKey);
  random::set_state(std::vector<std::uint64_t>(words.begin(), words.end()));
}

// The entries whose names begin with `prefix`, with the prefix removed.
StateDict with_prefix_removed(const StateDict& dict, const std::string& prefix) {
  StateDict result;
  for (const auto& [name, tensor] : dict) {
    if (name.starts_with(prefix)) result.insert(name.substr(prefix.size()), tensor);
  }
  return result;
}

StateDict part(const StateDict& dict, const std::string& prefix) {
  StateDict result = with_prefix_removed(dict, prefix);
  LOCKSTEP_CHECK(!result.empty(), "the file has no entry that begins with \"{}\"", prefix);
  return result;
}

// Checks and copies all parts before the first change. The model is loaded first: its load checks before it changes
// anything, and the later steps cannot fail.
void load_parts(const StateDict& dict, const CheckpointParts& parts) {
  Callback<void()> load_optimizer, load_scheduler;
  optim::SavedGroups groups;
  if (parts.optimizer) load_optimizer = parts.optimizer->prepare_load(part(dict, "optimizer."), parts.model, &groups);
  if (parts.scheduler)
    load_scheduler = parts.scheduler->prepare_load(part(dict, "scheduler."), parts.optimizer ? &groups : nullptr);
  StateDict extra;
  if (parts.extra) extra = with_prefix_removed(dict, "extra.");
  const StateDict model = parts.model ? with_prefix_removed(dict, "model.") : StateDict();

  const std::vector<std::uint64_t> previous = random::state();
  restore_random_state(dict, parts);
  try {
    if (parts.model) parts.model->load_state_dict(model);
  } catch (...) {
    random::set_state(previous);
    throw;
  }
  if (load_scheduler) load_scheduler();
  if (load_optimizer) load_optimizer();  // after the scheduler, to keep a rate that was set with set_lr
  if (parts.extra) *parts.extra = std::move(extra);
}

}  // namespace

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  StateDict dict;
  if (parts.model) insert_all(dict, "model.", parts.model->state_dict());
  if (parts.optimizer) insert_all(dict, "optimizer.", parts.optimizer->state_dict(parts.model));
  if (parts.scheduler) insert_all(dict, "scheduler.", parts.scheduler->state_dict());
  if (parts.extra) insert_all(dict, "extra.", *parts.extra);
  dict.insert(kRandomKey, random_state());
  Metadata metadata = parts.metadata ? *parts.metadata : Metadata();
  metadata[kFormatKey] = kFormat;
  save(dict, path, metadata);
}

void load_checkpoint(const std::string& path, const CheckpointParts& parts) {
  Metadata metadata;
  const StateDict dict = load(path, &metadata);
  LOCKSTEP_CHECK(metadata.contains(kFormatKey) && metadata[kFormatKey] == kFormat,
                 "load_checkpoint: {} is a tensor file, not a checkpoint of this version; read it with load()", path);
  try {
    load_parts(dict, parts);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("load_checkpoint: {}: {}", path, error.what()));
  }
  metadata.erase(kFormatKey);
  if (parts.metadata) *parts.metadata = std::move(metadata);
}

}  // namespace lockstep
