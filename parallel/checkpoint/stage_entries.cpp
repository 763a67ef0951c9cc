#include "lockstep/parallel/checkpoint/stage_entries_internal.h"

#include <algorithm>
#include <sstream>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

namespace safetensors = nn::safetensors;

namespace {

// The rest of a text, after numbers and a space.
std::string rest_of(std::istringstream& text) {
  std::string rest;
  text.ignore(1);
  std::getline(text, rest, '\0');
  return rest;
}

std::string text_of(const safetensors::Piece& piece) {
  return fmt::format("{} {} {} {}", static_cast<int>(piece.part.dtype()), piece.shape.dim(),
                     fmt::join(piece.shape.begin(), piece.shape.end(), " "), piece.name);
}

safetensors::Piece piece_of(const std::string& text) {
  std::istringstream stream(text);
  int dtype = 0;
  std::size_t dims = 0;
  stream >> dtype >> dims;
  std::vector<std::int64_t> sizes(dims);
  for (std::int64_t& size : sizes) stream >> size;
  if (dims == 0) stream.ignore(1);  // the empty list of sizes has a space after it, too
  return {.name = rest_of(stream),
          .part = raw::empty({0}, {.dtype = static_cast<DType>(dtype)}),
          .shape = Shape(sizes),
          .place = {}};
}

}  // namespace

std::map<std::string, std::int64_t> StageEntries::numbers() const {
  std::vector<std::tuple<std::size_t, std::int64_t, std::string>> ordered;
  for (const auto& [name, each] : stepped) ordered.emplace_back(each.group, each.place, name);
  std::ranges::sort(ordered);
  std::map<std::string, std::int64_t> numbers;
  for (const auto& [group, place, name] : ordered) numbers.emplace(name, static_cast<std::int64_t>(numbers.size()));
  return numbers;
}

optim::GroupsOfParameters StageEntries::groups_without(const StageEntries& own) const {
  optim::GroupsOfParameters groups;
  for (const auto& [name, each] : stepped) {
    if (!own.stepped.contains(name)) groups.emplace(name, each.group);
  }
  return groups;
}

bool StageEntries::has_without(const StageEntries& own, std::string_view entry) const {
  const std::string name = tensor_of(entry);
  return !entry.starts_with(kParamGroup) && model.contains(name) && !own.model.contains(name);
}

StageEntries of_all_ranks(const StageEntries& own, ProcessGroup& group) {
  std::vector<std::string> names(own.model.begin(), own.model.end()), stepped;
  for (const auto& [name, each] : own.stepped) stepped.push_back(fmt::format("{} {} {}", each.place, each.group, name));
  StageEntries all;
  for (const auto& of_rank : gather_texts(group, names)) all.model.insert(of_rank.begin(), of_rank.end());
  for (const auto& of_rank : gather_texts(group, stepped)) {
    for (const std::string& text : of_rank) {
      std::istringstream stream(text);
      StageEntries::Stepped each{};
      stream >> each.place >> each.group;
      all.stepped.emplace(rest_of(stream), each);
    }
  }
  return all;
}

std::string tensor_of(std::string_view entry) {
  for (const std::string_view prefix : {kModelEntry, kParamGroup}) {
    if (entry.starts_with(prefix)) return std::string(entry.substr(prefix.size()));
  }
  if (!entry.starts_with(kStateEntry)) return {};
  return std::string(entry.substr(kStateEntry.size(), entry.rfind('.') - kStateEntry.size()));
}

void add_pieces_of_others(std::vector<safetensors::Piece>& pieces, ProcessGroup& group) {
  std::set<std::string> known;
  std::vector<std::string> own;
  for (const safetensors::Piece& piece : pieces) {
    if (!tensor_of(piece.name).empty() && known.insert(piece.name).second) own.push_back(text_of(piece));
  }
  for (const auto& of_rank : gather_texts(group, own)) {
    for (const std::string& text : of_rank) {
      safetensors::Piece piece = piece_of(text);
      if (known.insert(piece.name).second) pieces.push_back(std::move(piece));
    }
  }
}

}  // namespace lockstep::parallel
