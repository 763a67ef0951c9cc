#include "lockstep/parallel/checkpoint/checkpoint.h"

#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/optim/checkpoint_internal.h"
#include "lockstep/parallel/checkpoint/group_file_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/model_state_internal.h"
#include "lockstep/parallel/step/random_state.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

namespace safetensors = nn::safetensors;

namespace {

// The model's parts, and how they lie in whole tensors, for a call of save_checkpoint or load_checkpoint.
struct View {
  CheckpointedModel model;
  // The model's parts and the optimizer's tensors that are shaped like them, by the name of their entry.
  std::map<std::string, StatePart> parts;
};

View view_of(const ModelState& state, const optim::Optimizer* optimizer) {
  View view;
  view.model.parameters = state.parameters();
  for (StatePart& part : state.parts()) {
    view.model.state.insert(part.name, part.part);
    view.parts.emplace("model." + part.name, std::move(part));
  }
  for (const auto& [name, parameter] : view.model.parameters) {
    StatePart part = view.parts.at("model." + name);
    part.part = parameter.master().detach();
    for (const char* buffer : optimizer ? optimizer->buffer_names() : std::vector<const char*>())
      view.parts.emplace(fmt::format("optimizer.state.{}.{}", name, buffer), part);
  }
  return view;
}

lockstep::CheckpointParts without_model(const CheckpointParts& parts) {
  return {.optimizer = parts.optimizer, .scheduler = parts.scheduler, .extra = parts.extra};
}

// A rank's optimizer state by index would not show which elements its tensors are.
void check_names(const View& view, const StateDict& entries) {
  for (const auto& [name, part] : view.parts)
    LOCKSTEP_CHECK(part.part.numel() == part.shape.numel() || !entries.contains("optimizer.param_groups.0.params"),
                   "save_checkpoint: the optimizer has parameters that the sharded model lacks; construct it with "
                   "run.parameters()");
}

std::vector<safetensors::Piece> pieces_of(const View& view, const StateDict& entries, bool is_first) {
  std::vector<safetensors::Piece> pieces;
  for (const auto& [name, tensor] : entries) {
    safetensors::Piece piece = {
        .name = name, .part = tensor, .shape = tensor.shape(), .place = TensorPart::whole(tensor.shape())};
    bool is_saved = is_first;
    if (const auto found = view.parts.find(name); found != view.parts.end()) {
      piece.shape = found->second.shape;
      piece.place = found->second.place;
      is_saved = found->second.is_saved;
    }
    if (!is_saved) {
      piece.part = raw::empty({0}, {.dtype = tensor.dtype()});
      piece.place = {};
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Reads an entry: of a part its elements, in the part's shape; otherwise the whole tensor.
Tensor read(const safetensors::Reader& reader, const safetensors::Entry& entry, const View& view) {
  const auto found = view.parts.find(entry.name);
  if (found == view.parts.end()) return reader.read(entry);
  const StatePart& part = found->second;
  LOCKSTEP_CHECK(entry.shape == part.shape, "{}: the model has {}, the file {}", in_quotes(entry.name),
                 part.shape.to_string(), entry.shape.to_string());
  return raw::view(reader.read(entry, part.place), part.part.shape());
}

bool is_wanted(const std::string& name, const CheckpointParts& parts) {
  return name.starts_with("model.") || name.starts_with("random.") ||
         (parts.optimizer && name.starts_with("optimizer.")) || (parts.scheduler && name.starts_with("scheduler.")) ||
         (parts.extra && name.starts_with("extra."));
}

ModelState& state_of(const char* op, const CheckpointParts& parts) {
  LOCKSTEP_CHECK(parts.model.state(), "{}: there is no model; pass .model = &run", op);
  return *parts.model.state();
}

}  // namespace

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  const ModelState& state = state_of("save_checkpoint", parts);
  ProcessGroup* const group = state.group();
  if (group) share_random_state(*group);
  std::vector<safetensors::Piece> pieces;
  on_all_ranks(group, [&] {
    const View view = view_of(state, parts.optimizer);
    const StateDict entries = checkpoint_entries(&view.model, without_model(parts));
    check_names(view, entries);
    pieces = pieces_of(view, entries, !group || group->rank() == 0);
  });
  save_pieces(std::move(pieces), checkpoint_metadata(parts.metadata), path, group);
}

void load_checkpoint(const std::string& path, const CheckpointParts& parts) {
  ModelState& state = state_of("load_checkpoint", parts);
  ProcessGroup* const group = state.group();
  std::optional<InputFile> file;
  std::optional<safetensors::Reader> reader;
  Metadata metadata;
  on_all_ranks(group, [&] {
    reader.emplace(file.emplace(path));
    metadata = reader->metadata();
    check_checkpoint_format(metadata, path);
  });
  check_file(*file, *reader, group);

  View view;
  StateDict entries;
  std::size_t next = 0;
  Callback<void()> apply;
  in_rounds(group, [&] {
    try {
      if (next == 0) view = view_of(state, parts.optimizer);
      std::uint64_t bytes = 0;
      for (; next < reader->entries().size() && bytes < kRoundBytes; ++next) {
        const safetensors::Entry& entry = reader->entries()[next];
        if (!is_wanted(entry.name, parts)) continue;
        const Tensor tensor = read(*reader, entry, view);
        bytes += static_cast<std::uint64_t>(tensor.numel()) * item_size(tensor.dtype());
        entries.insert(entry.name, tensor);
      }
      if (next < reader->entries().size()) return true;
      apply = prepare_checkpoint_load(entries, &view.model, without_model(parts));
      return false;
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("load_checkpoint: {}: {}", path, error.what()));
    }
  });
  apply();
  state.after_load();
  if (parts.metadata) *parts.metadata = std::move(metadata);
}

}  // namespace lockstep::parallel
