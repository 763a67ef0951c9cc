#include "lockstep/parallel/checkpoint/weights.h"

#include <optional>
#include <set>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/checkpoint/group_file_internal.h"
#include "lockstep/parallel/checkpoint/weights_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"

namespace lockstep::parallel {
namespace {

std::vector<nn::WeightPart> parts_of(const ModelState& state) {
  std::vector<nn::WeightPart> parts;
  for (const StatePart& each : state.parts()) {
    const bool has_elements = each.place.numel > 0;
    parts.push_back({.name = each.name,
                     .part = each.part,
                     .shape = each.shape,
                     .place = each.place,
                     .id = has_elements ? each.part.raw_data() : nullptr});
  }
  return parts;
}

// The names that ranks of other stages have.
std::set<std::string> names_of_all(const ModelState& state, const std::vector<nn::WeightPart>& parts) {
  std::vector<std::string> own;
  for (const nn::WeightPart& part : parts) own.push_back(part.name);
  std::set<std::string> all(own.begin(), own.end());
  if (!state.stages() || !state.group()) return all;
  for (const std::vector<std::string>& names : gather_texts(*state.group(), own))
    all.insert(names.begin(), names.end());
  return all;
}

}  // namespace

void check_same_files(const nn::WeightFiles& files, ProcessGroup* group) {
  const Tensor counts = gather_numbers(group, {static_cast<std::int64_t>(files.files().size())});
  const std::span<const std::int64_t> each = counts.span<std::int64_t>();
  for (std::size_t r = 1; r < each.size(); ++r)
    LOCKSTEP_CHECK_IO(each[r] == each[0], "{}: rank {} reads {} files, rank 0 {}; give all ranks the same ones",
                      files.path(), r, each[r], each[0]);
  for (const auto& file : files.files()) check_file(file->source, file->reader, group);
}

nn::LoadWeightsResult load_weights(const CheckpointModel& model, const std::string& path,
                                   const nn::LoadWeightsOptions& options) {
  LOCKSTEP_CHECK(model.state(), "load_weights: there is no model; pass the object of a training mode");
  ModelState& state = *model.state();
  std::optional<nn::WeightFiles> files;
  on_all_ranks(
      state.group(), [&] { files.emplace(path); }, "load_weights");
  check_same_files(*files, state.group());
  return load_weights("load_weights", state, *files, &options);
}

nn::LoadWeightsResult load_weights(const char* op, ModelState& state, const nn::WeightFiles& files,
                                   const nn::LoadWeightsOptions* options) {
  ProcessGroup* const group = state.group();
  const std::vector<nn::WeightPart> parts = parts_of(state);
  const std::set<std::string> known = names_of_all(state, parts);
  std::optional<nn::WeightLoad> load;
  on_all_ranks(group, [&] { load.emplace(op, files, parts, known, options); });
  in_rounds(group, [&] { return load->read(parts, kRoundBytes); });
  state.after_load();
  return load->result();
}

}  // namespace lockstep::parallel
