#include "lockstep/optim/checkpoint.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/optim/checkpoint_internal.h"
#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/random/random.h"

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

// The random state of a checkpoint; empty if it cannot be restored. A file of an earlier version can be loaded, but not
// continued from with the same random numbers.
std::vector<std::uint64_t> saved_random_state(const StateDict& entries, bool model_alone) {
  if (model_alone && !entries.contains(kRandomKey)) return {};
  const auto words = optim::StateReader(entries).list<std::int64_t>(kRandomKey);
  if (words.size() % 3 == 1 && model_alone) {
    warn("load_checkpoint", "the file's random state has format 1, which cannot be restored; call manual_seed");
    return {};
  }
  LOCKSTEP_CHECK(words.size() % 3 != 1,
                 "{} has format 1, and a run cannot continue from it with the same random numbers; load the model "
                 "alone ({{.model = &model}}) and start a new run with its weights",
                 kRandomKey);
  std::vector<std::uint64_t> state(words.begin(), words.end());
  random::check_state(state);
  return state;
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

CheckpointedModel checkpointed(const nn::Module& model) {
  return {.state = model.state_dict(), .parameters = model.named_parameters()};
}

}  // namespace

StateDict checkpoint_entries(const CheckpointedModel* model, const CheckpointParts& parts) {
  StateDict dict;
  if (model) insert_all(dict, "model.", model->state);
  if (parts.optimizer)
    insert_all(dict, "optimizer.", parts.optimizer->shared_state(model ? model->parameters : optim::NamedParameters()));
  if (parts.scheduler) insert_all(dict, "scheduler.", parts.scheduler->state_dict());
  if (parts.extra) insert_all(dict, "extra.", *parts.extra);
  dict.insert(kRandomKey, random_state());
  return dict;
}

Metadata checkpoint_metadata(const Metadata* metadata) {
  Metadata all = metadata ? *metadata : Metadata();
  all[kFormatKey] = kFormat;
  return all;
}

namespace {

// Metadata of the file, with the version.
Metadata all_metadata(const nn::WeightFiles& files) {
  return files.path() == files.files()[0]->source.name() ? files.files()[0]->reader.metadata() : Metadata();
}

}  // namespace

bool is_checkpoint(const nn::WeightFiles& files) { return all_metadata(files).contains(kFormatKey); }

Metadata metadata_of(const nn::WeightFiles& files) {
  Metadata metadata = all_metadata(files);
  metadata.erase(kFormatKey);
  return metadata;
}

void check_checkpoint_format(const nn::WeightFiles& files) {
  const Metadata metadata = all_metadata(files);
  const auto version = metadata.find(kFormatKey);
  LOCKSTEP_CHECK(
      version != metadata.end(),
      "load_checkpoint: {} is a file of weights, not a checkpoint with the state of an optimizer, a scheduler "
      "or a caller; pass .model alone",
      files.path());
  LOCKSTEP_CHECK(version->second == kFormat,
                 "load_checkpoint: {} is a checkpoint of format {}, this version reads format {}; read it with load()",
                 files.path(), in_quotes(version->second), kFormat);
}

Callback<void()> prepare_checkpoint_load(const StateDict& entries, const CheckpointedModel* model,
                                         const CheckpointParts& parts) {
  Callback<void()> load_optimizer, load_scheduler;
  optim::SavedGroups groups;
  if (parts.optimizer)
    load_optimizer =
        parts.optimizer->prepare_load(part(entries, "optimizer."), model ? model->parameters : optim::NamedParameters(),
                                      &groups, model ? model->elsewhere : optim::GroupsOfParameters());
  if (parts.scheduler)
    load_scheduler = parts.scheduler->prepare_load(part(entries, "scheduler."), parts.optimizer ? &groups : nullptr);
  StateDict extra;
  if (parts.extra) extra = with_prefix_removed(entries, "extra.");
  std::vector<std::uint64_t> random = saved_random_state(entries, !parts.optimizer && !parts.scheduler);
  nn::StateDictLoad load_model;
  if (model) load_model = {{.where = "", .has_options = false}, model->state, with_prefix_removed(entries, "model.")};
  return
      [load_model = std::move(load_model), random = std::move(random), extra = std::move(extra), target = parts.extra,
       load_scheduler = std::move(load_scheduler), load_optimizer = std::move(load_optimizer)] {
        load_model.copy();
        if (!random.empty()) random::set_state(random);
        if (load_scheduler) load_scheduler();
        if (load_optimizer) load_optimizer();  // after the scheduler, to keep a rate that was set with set_lr
        if (target) *target = extra;
      };
}

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  if (parts.optimizer) parts.optimizer->require_whole("save_checkpoint");
  CheckpointedModel model;
  if (parts.model) model = checkpointed(*parts.model);
  save(checkpoint_entries(parts.model ? &model : nullptr, parts), path, checkpoint_metadata(parts.metadata));
}

void load_checkpoint(const std::string& path, const CheckpointParts& parts) {
  if (parts.optimizer) parts.optimizer->require_whole("load_checkpoint");
  StateDict dict;
  Metadata metadata;
  {
    const nn::WeightFiles files(path);
    metadata = metadata_of(files);
    if (parts.model && !parts.optimizer && !parts.scheduler && !parts.extra && !is_checkpoint(files)) {
      nn::refuse_parts("load_checkpoint", parts.model->parameters(), "load with parallel::load_checkpoint");
      nn::load_weights("load_checkpoint", *parts.model, files, nullptr);
      if (parts.metadata) *parts.metadata = std::move(metadata);
      return;
    }
    check_checkpoint_format(files);
    dict = files.files()[0]->reader.read_all();
  }
  CheckpointedModel model;
  if (parts.model) model = checkpointed(*parts.model);
  Callback<void()> apply;
  try {
    apply = prepare_checkpoint_load(dict, parts.model ? &model : nullptr, parts);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("load_checkpoint: {}: {}", path, error.what()));
  }
  apply();
  if (parts.metadata) *parts.metadata = std::move(metadata);
}

}  // namespace lockstep
