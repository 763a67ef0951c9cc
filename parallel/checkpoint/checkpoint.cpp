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
#include "lockstep/parallel/checkpoint/stage_entries_internal.h"
#include "lockstep/parallel/checkpoint/weights_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/model_state_internal.h"
#include "lockstep/parallel/step/random_state.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

namespace safetensors = nn::safetensors;

namespace {

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
  // The model's parameters, each slice as one: its name, and that of the parameter.
  std::vector<std::pair<std::string, std::string>> parameters;
  std::set<std::string> copies;  // the parameters that another rank saves
};

std::string entry_of(std::string_view prefix, const std::string& name) { return std::string(prefix) + name; }

View view_of(const ModelState& state, const optim::Optimizer* optimizer) {
  View view;
  std::map<std::string, StatePart> listed;
  view.model.parameters = state.parameters();
  for (StatePart& part : state.parts()) {
    view.model.state.insert(part.listed_name(), part.part);
    view.parts[entry_of(kModelEntry, part.name)].push_back(
        {.entry = entry_of(kModelEntry, part.listed_name()), .part = part});
    listed.emplace(part.listed_name(), std::move(part));
  }
  for (const auto& [name, parameter] : view.model.parameters) {
    StatePart part = listed.at(name);
    view.parameters.emplace_back(name, part.name);
    if (part.is_copy) view.copies.insert(part.name);
    part.part = parameter.master().detach();
    const auto key = [](const std::string& of, const char* buffer) {
      return fmt::format("{}{}.{}", kStateEntry, of, buffer);
    };
    for (const char* buffer : optimizer ? optimizer->buffer_names() : std::vector<const char*>())
      view.parts[key(part.name, buffer)].push_back({.entry = key(name, buffer), .part = part});
    if (part.slice.empty()) continue;
    view.of_slices[key(part.name, "step")].push_back(key(name, "step"));
    view.of_slices[entry_of(kParamGroup, part.name)].push_back(entry_of(kParamGroup, name));
  }
  return view;
}

lockstep::CheckpointParts without_model(const CheckpointParts& parts) {
  return {.optimizer = parts.optimizer, .scheduler = parts.scheduler, .extra = parts.extra};
}

// This rank's entries of a model in stages, as all ranks need to know them.
StageEntries own_entries(const View& view, const StateDict& entries, const StageRunner& stages) {
  StageEntries own;
  for (const auto& [name, parts] : view.parts) {
    if (name.starts_with(kModelEntry)) own.model.insert(name.substr(kModelEntry.size()));
  }
  std::vector<std::int64_t> places;
  const std::vector<StageRunner::Place> of_all = stages.places();
  for (std::size_t p = 0; p < of_all.size(); ++p) {
    if (of_all[p] != StageRunner::Place::kElsewhere) places.push_back(static_cast<std::int64_t>(p));
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < view.parameters.size(); ++i) {
    const auto& [listed, name] = view.parameters[i];
    if (i > 0 && name == view.parameters[i - 1].second) continue;  // another slice
    const std::int64_t place = places.at(next++);
    const std::string group = entry_of(kParamGroup, listed);
    if (entries.contains(group))
      own.stepped[name] = {.place = place,
                           .group = static_cast<std::size_t>(entries.at(group).span<std::int64_t>()[0])};
  }
  return own;
}

// An optimizer state by index would not show which elements its tensors are, or which parameters.
void check_names(const ModelState& state, const View& view, const StateDict& entries) {
  const bool is_whole = std::ranges::all_of(view.parts, [](const auto& named) {
    return std::ranges::all_of(named.second,
                               [](const EntryPart& each) { return each.part.part.numel() == each.part.shape.numel(); });
  });
  LOCKSTEP_CHECK((is_whole && !state.stages()) || !entries.contains("optimizer.param_groups.0.params"),
                 "save_checkpoint: the optimizer has parameters that {}; construct it with run.parameters()",
                 state.stages() ? "this rank's stages lack" : "the sharded model lacks");
}

// The numbers that the optimizer's parameters have if none is cut, by this rank's entries: all slices of a parameter have
// its number, and no number is left out.
std::map<std::string, std::int64_t> numbers_of_whole(const View& view, const StateDict& entries) {
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
  std::map<std::string, std::int64_t> numbers, of_whole;
  for (const auto& [number, name, entry] : numbered)
    numbers[entry] = of_whole.emplace(name, static_cast<std::int64_t>(of_whole.size())).first->second;
  return numbers;
}

// The same with the parameters of all stages.
std::map<std::string, std::int64_t> numbers_of_stages(const View& view, const StageEntries& all) {
  const std::map<std::string, std::int64_t> of_whole = all.numbers();
  std::map<std::string, std::int64_t> numbers;
  for (const auto& [listed, name] : view.parameters) {
    if (const auto found = of_whole.find(name); found != of_whole.end())
      numbers.emplace(entry_of(kParamGroup, listed), found->second);
  }
  return numbers;
}

StateDict with_numbers(const StateDict& entries, const std::map<std::string, std::int64_t>& numbers) {
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

std::vector<safetensors::Piece> pieces_of(const ModelState& state, const View& view, const StateDict& entries) {
  std::vector<safetensors::Piece> pieces;
  std::set<std::string> done;
  const bool is_first_of_all = !state.group() || state.group()->rank() == 0;
  const auto add_whole = [&](const std::string& name, const Tensor& tensor) {
    const std::string of = tensor_of(name);
    const bool is_saved = of.empty() ? is_first_of_all : state.is_first() && !view.copies.contains(of);
    pieces.push_back(piece_of(name, tensor, tensor.shape(), TensorPart::whole(tensor.shape()), is_saved));
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

// Throws unless the file has the tensors of a model that is cut or in stages, under the names of whole tensors.
void check_model_names(const View& view, const StageEntries& all, const safetensors::Reader& reader) {
  if (view.of_slices.empty() && all.model.empty()) return;
  std::set<std::string> names = all.model;
  for (const auto& entry : view.parts) {
    if (entry.first.starts_with(kModelEntry)) names.insert(entry.first.substr(kModelEntry.size()));
  }
  const Shape any{1};  // read() has checked the shapes
  std::vector<nn::WeightPart> own;
  std::vector<nn::WeightSource> saved;
  for (const std::string& name : names)
    own.push_back({.name = name, .part = {}, .shape = any, .place = TensorPart::whole(any)});
  for (const safetensors::Entry& entry : reader.entries()) {
    if (entry.name.starts_with(kModelEntry)) saved.push_back({entry.name.substr(kModelEntry.size()), any});
  }
  const nn::WeightMatch check({.where = "", .has_options = false}, saved, own, {}, {});
}

bool is_wanted(const std::string& name, const CheckpointParts& parts) {
  return name.starts_with(kModelEntry) || name.starts_with("random.") ||
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
  if (group) share_random_state(*group, "save_checkpoint");
  View view;
  StateDict entries;
  StageEntries own;
  on_all_ranks(group, [&] {
    view = view_of(state, parts.optimizer);
    entries = checkpoint_entries(&view.model, without_model(parts));
    check_names(state, view, entries);
    if (state.stages()) own = own_entries(view, entries, *state.stages());
  });
  std::map<std::string, std::int64_t> numbers;
  if (state.stages())
    numbers = numbers_of_stages(view, of_all_ranks(own, *group));
  else if (!view.of_slices.empty())
    numbers = numbers_of_whole(view, entries);
  std::vector<safetensors::Piece> pieces;
  on_all_ranks(group, [&] { pieces = pieces_of(state, view, with_numbers(entries, numbers)); });
  if (state.stages()) add_pieces_of_others(pieces, *group);
  save_pieces(std::move(pieces), checkpoint_metadata(parts.metadata), path, group);
}

namespace {

// Adds the file's name to errors.
template <class Body>
auto naming(const std::string& path, const Body& body) {
  try {
    return body();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("load_checkpoint: {}: {}", path, error.what()));
  }
}

// Ranks have the optimizer's groups of all stages.
void check_groups(const StageEntries& all, const optim::Optimizer& optimizer) {
  for (const auto& [name, each] : all.stepped)
    LOCKSTEP_CHECK(
        each.group < optimizer.group_count(),
        "{} is in group {} of another rank's optimizer, but this rank's has {} groups; give the optimizers of all "
        "ranks the same groups, also without parameters",
        name, each.group, optimizer.group_count());
}

}  // namespace

void load_checkpoint(const std::string& path, const CheckpointParts& parts) {
  ModelState& state = state_of("load_checkpoint", parts);
  ProcessGroup* const group = state.group();
  std::optional<nn::WeightFiles> files;
  on_all_ranks(
      group, [&] { files.emplace(path); }, "load_checkpoint");
  check_same_files(*files, group);
  if (!parts.optimizer && !parts.scheduler && !parts.extra && !is_checkpoint(*files)) {
    load_weights("load_checkpoint", state, *files, nullptr);
    if (parts.metadata) *parts.metadata = metadata_of(*files);
    return;
  }
  on_all_ranks(group, [&] { check_checkpoint_format(*files); });
  const safetensors::Reader* const reader = &files->files()[0]->reader;

  View view;
  StageEntries own, all;  // of a model in stages
  on_all_ranks(group, [&] {
    view = naming(path, [&] { return view_of(state, parts.optimizer); });
    if (state.stages()) own = own_entries(view, checkpoint_entries(&view.model, without_model(parts)), *state.stages());
  });
  if (state.stages()) all = of_all_ranks(own, *group);
  view.model.elsewhere = all.groups_without(own);

  StateDict entries;
  std::size_t next = 0;
  Callback<void()> apply;
  in_rounds(group, [&] {
    return naming(path, [&] {
      std::uint64_t bytes = 0;
      for (; next < reader->entries().size() && bytes < kRoundBytes; ++next) {
        const safetensors::Entry& entry = reader->entries()[next];
        if (!is_wanted(entry.name, parts) || all.has_without(own, entry.name)) continue;
        bytes += read(*reader, entry, view, entries);
      }
      if (next < reader->entries().size()) return true;
      check_model_names(view, all, *reader);
      if (parts.optimizer) check_groups(all, *parts.optimizer);
      apply = prepare_checkpoint_load(entries, &view.model, without_model(parts));
      return false;
    });
  });
  apply();
  state.after_load();
  if (parts.metadata) *parts.metadata = metadata_of(*files);
}

}  // namespace lockstep::parallel
