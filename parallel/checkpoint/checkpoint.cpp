#include "lockstep/parallel/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/optim/checkpoint_internal.h"
#include "lockstep/parallel/checkpoint/group_file_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/model_state_internal.h"
#include "lockstep/parallel/step/random_state.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

namespace safetensors = nn::safetensors;

namespace {

constexpr const char* kParamGroup = "optimizer.param_group.";  // of a parameter: its group, and its number

// A part of an entry of the file.
struct EntryPart {
  std::string entry;  // its name among this rank's entries: "model.up.weight[2/4]"
  StatePart part;
};

// The model's parts, and how they lie in whole tensors, for a call of save_checkpoint or load_checkpoint. Keys are names of
// entries of the file. An entry that has no key here is on all ranks, whole and under the same name.
struct View {
  CheckpointedModel model;
  // The parts of the model's tensors, and of the optimizer's that are shaped like them.
  std::map<std::string, std::vector<EntryPart>> parts;
  // This rank's entries that are equal for all slices of a parameter: "optimizer.state.up.weight[2/4].step".
  std::map<std::string, std::vector<std::string>> of_slices;
};

View view_of(const ModelState& state, const optim::Optimizer* optimizer) {
  View view;
  std::map<std::string, StatePart> listed;
  view.model.parameters = state.parameters();
  for (StatePart& part : state.parts()) {
    view.model.state.insert(part.listed_name(), part.part);
    view.parts["model." + part.name].push_back({.entry = "model." + part.listed_name(), .part = part});
    listed.emplace(part.listed_name(), std::move(part));
  }
  for (const auto& [name, parameter] : view.model.parameters) {
    StatePart part = listed.at(name);
    part.part = parameter.master().detach();
    const auto key = [](const std::string& of, const char* buffer) {
      return fmt::format("optimizer.state.{}.{}", of, buffer);
    };
    for (const char* buffer : optimizer ? optimizer->buffer_names() : std::vector<const char*>())
      view.parts[key(part.name, buffer)].push_back({.entry = key(name, buffer), .part = part});
    if (part.slice.empty()) continue;
    view.of_slices[key(part.name, "step")].push_back(key(name, "step"));
    view.of_slices[kParamGroup + part.name].push_back(kParamGroup + name);
  }
  return view;
}

lockstep::CheckpointParts without_model(const CheckpointParts& parts) {
  return {.optimizer = parts.optimizer, .scheduler = parts.scheduler, .extra = parts.extra};
}

// A rank's optimizer state by index would not show which elements its tensors are.
void check_names(const View& view, const StateDict& entries) {
  for (const auto& [name, parts] : view.parts) {
    for (const auto& [entry, part] : parts)
      LOCKSTEP_CHECK(part.part.numel() == part.shape.numel() || !entries.contains("optimizer.param_groups.0.params"),
                     "save_checkpoint: the optimizer has parameters that the sharded model lacks; construct it with "
                     "run.parameters()");
  }
}

// The entries with the numbers that the optimizer's parameters have if none is cut: all slices of a parameter have its
// number, and no number is left out.
StateDict with_numbers_of_whole(const View& view, const StateDict& entries) {
  if (view.of_slices.empty()) return entries;
  std::map<std::string, std::string> whole;  // the parameter's entry in the file, by a slice's entry
  for (const auto& [name, slices] : view.of_slices) {
    for (const std::string& entry : slices) whole.emplace(entry, name);
  }
  std::vector<std::tuple<std::int64_t, std::string, std::string>> numbered;  // number, entry in the file, own entry
  for (const auto& [name, tensor] : entries) {
    if (!name.starts_with(kParamGroup)) continue;
    const auto found = whole.find(name);
    numbered.emplace_back(tensor.span<std::int64_t>()[1], found == whole.end() ? name : found->second, name);
  }
  std::ranges::sort(numbered);
  std::map<std::string, std::int64_t> numbers;  // by own entry
  std::map<std::string, std::int64_t> of_whole;
  for (const auto& [number, name, entry] : numbered)
    numbers[entry] = of_whole.emplace(name, static_cast<std::int64_t>(of_whole.size())).first->second;
  StateDict result;
  for (const auto& [name, tensor] : entries) {
    const auto found = numbers.find(name);
    const Tensor own = found == numbers.end() ? tensor : raw::clone(tensor);
    if (found != numbers.end()) own.span<std::int64_t>()[1] = found->second;
    result.insert(name, own);
  }
  return result;
}

safetensors::Piece piece_of(const std::string& name, const Tensor& tensor, const Shape& shape, const TensorPart& place,
                            bool is_saved) {
  return {.name = name,
          .part = is_saved ? tensor : raw::empty({0}, {.dtype = tensor.dtype()}),
          .shape = shape,
          .place = is_saved ? place : TensorPart()};
}

std::vector<safetensors::Piece> pieces_of(const View& view, const StateDict& entries, bool is_first) {
  std::vector<safetensors::Piece> pieces;
  std::set<std::string> done;
  const auto add_whole = [&](const std::string& name, const Tensor& tensor) {
    pieces.push_back(piece_of(name, tensor, tensor.shape(), TensorPart::whole(tensor.shape()), is_first));
  };
  for (const auto& [name, parts] : view.parts) {
    for (const auto& [entry, part] : parts) {
      if (!entries.contains(entry)) continue;  // of a parameter without a step
      pieces.push_back(piece_of(name, entries.at(entry), part.shape, part.place, part.is_saved));
      done.insert(entry);
    }
  }
  for (const auto& [name, slices] : view.of_slices) {
    const Tensor* first = nullptr;
    for (const std::string& entry : slices) {
      if (!entries.contains(entry)) continue;
      const Tensor& tensor = entries.at(entry);
      if (!first) add_whole(name, *(first = &tensor));
      LOCKSTEP_CHECK(
          std::ranges::equal(nn::bytes_of(*first), nn::bytes_of(tensor)),
          "save_checkpoint: {} differs from {}, but all slices of a parameter must be in the same group of the "
          "optimizer and have the same number of steps",
          in_quotes(entry), in_quotes(slices[0]));
      done.insert(entry);
    }
  }
  for (const auto& [name, tensor] : entries) {
    if (!done.contains(name)) add_whole(name, tensor);
  }
  return pieces;
}

// Reads an entry of the file: this rank's parts of it, each in the part's shape, or the whole tensor. Returns the number of
// bytes.
std::uint64_t read(const safetensors::Reader& reader, const safetensors::Entry& entry, const View& view,
                   StateDict& entries) {
  std::uint64_t bytes = 0;
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    bytes += static_cast<std::uint64_t>(tensor.numel()) * item_size(tensor.dtype());
    entries.insert(name, tensor);
  };
  if (const auto parts = view.parts.find(entry.name); parts != view.parts.end()) {
    for (const auto& [name, part] : parts->second) {
      LOCKSTEP_CHECK(entry.shape == part.shape, "{}: the model has {}, the file {}", in_quotes(entry.name),
                     part.shape.to_string(), entry.shape.to_string());
      add(name, raw::view(reader.read(entry, part.place), part.part.shape()));
    }
  } else if (const auto slices = view.of_slices.find(entry.name); slices != view.of_slices.end()) {
    for (const std::string& name : slices->second) add(name, reader.read(entry));
  } else {
    add(entry.name, reader.read(entry));
  }
  return bytes;
}

// Throws unless the file has the tensors of a model that is cut, under the names of whole tensors.
void check_model_names(const View& view, const safetensors::Reader& reader) {
  if (view.of_slices.empty()) return;
  const std::string prefix = "model.";
  const Tensor none = raw::empty({0});
  StateDict own, saved;
  for (const auto& entry : view.parts) {
    if (entry.first.starts_with(prefix)) own.insert(entry.first.substr(prefix.size()), none);
  }
  for (const safetensors::Entry& entry : reader.entries()) {
    if (entry.name.starts_with(prefix)) saved.insert(entry.name.substr(prefix.size()), none);
  }
  nn::check_state_dict(own, saved, /*strict=*/true);
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
    const StateDict entries = with_numbers_of_whole(view, checkpoint_entries(&view.model, without_model(parts)));
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
        bytes += read(*reader, entry, view, entries);
      }
      if (next < reader->entries().size()) return true;
      check_model_names(view, *reader);
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
