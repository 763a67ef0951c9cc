#include "tools/diff/first_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/nn/module_internal.h"

namespace diff {
namespace {

int phase(What what) { return what <= What::kMicroBatchGradient ? 0 : what == What::kGradient ? 1 : 2; }

std::string_view module_of(const Key& key) {
  return key.what <= What::kInputGradient ? std::string_view(key.name) : ls::nn::module_path(key.name);
}

bool wants(const Filter& filter, const Key& key) {
  const bool is_gradient = key.what >= What::kInputGradient && key.what <= What::kGradient;
  return (filter.has_gradients || !is_gradient) && (!filter.step || *filter.step == key.step) &&
         ls::nn::matches_any(filter.modules, module_of(key));
}

std::vector<int> ranks_of(const std::vector<Line>& lines) {
  std::vector<int> ranks;
  for (const Line& line : lines) ranks.push_back(line.rank);
  return ranks;
}

// One line for each different part of the tensor, from the lowest rank that has it.
std::vector<Line> distinct_parts(const std::vector<Line>& lines) {
  std::vector<Line> parts;
  for (const Line& line : lines) {
    if (std::ranges::none_of(parts, [&](const Line& each) { return each.part == line.part; })) parts.push_back(line);
  }
  return parts;
}

std::int64_t end_of(const Line& line) { return line.part.begin + line.part.numel; }

bool is_of_slice(const Line& a, const Line& b) {
  return a.part.first == b.part.first && a.part.run == b.part.run && a.part.stride == b.part.stride;
}

bool overlaps(const Line& a, const Line& b) {
  return is_of_slice(a, b) && a.part.begin < end_of(b) && b.part.begin < end_of(a);
}

bool contains(const std::vector<Line>& parts, const Line& part) {
  return std::ranges::any_of(parts, [&](const Line& each) { return each.part == part.part; });
}

// `part`, with the parts of the same slice before and after it, each of which begins where the last one ends. Ranks along
// tp may cut the same elements at different places, because their shards hold other slices as well.
std::vector<Line> row_of(const std::vector<Line>& parts, const Line& part) {
  std::vector<Line> row{part};
  const auto next = [&](const auto& follows) {
    return std::ranges::find_if(
        parts, [&](const Line& each) { return each.part.numel > 0 && is_of_slice(each, part) && follows(each); });
  };
  const auto after = [&](const Line& each) { return each.part.begin == end_of(row.back()); };
  const auto before = [&](const Line& each) { return end_of(each) == row.front().part.begin; };
  for (auto found = next(after); found != parts.end(); found = next(after)) row.push_back(*found);
  for (auto found = next(before); found != parts.end(); found = next(before)) row.insert(row.begin(), *found);
  return row;
}

// Parts that have each element of the tensor once, if the ranks have all of them.
std::vector<Line> parts_of(const std::vector<Line>& lines) {
  const std::vector<Line> distinct = distinct_parts(lines);
  std::vector<Line> parts;
  for (const Line& part : distinct) {
    const auto overlaps_part = [&](const Line& each) { return each.part == part.part || overlaps(each, part); };
    if (std::ranges::any_of(parts, overlaps_part)) continue;
    for (const Line& each : row_of(distinct, part)) parts.push_back(each);
  }
  return parts;
}

std::int64_t elements_of(const std::vector<Line>& parts) {
  std::int64_t elements = 0;
  for (const Line& part : parts) elements += part.part.numel;
  return elements;
}

std::uint64_t hash_of(const std::vector<Line>& parts) {
  std::uint64_t sum = 0;
  for (const Line& part : parts) sum += part.hash;
  return sum;
}

// --- elements --------------------------------------------------------------------------------------------------------

struct Values {
  std::vector<std::uint64_t> bits;  // by position in the whole tensor
  std::vector<double> values;
  std::vector<int> ranks;  // -1: no rank has the element
};

void place(const RunRecord& run, const Line& line, Values& all) {
  const ls::Tensor elements = values_of(run, line), numbers = elements.to(ls::kFloat64);
  const auto* const bytes = static_cast<const std::byte*>(elements.raw_data());
  const std::size_t size = ls::item_size(line.dtype);
  for (std::int64_t i = 0; i < line.part.numel; ++i) {
    const auto at = static_cast<std::size_t>(line.part.at(i));
    std::memcpy(&all.bits[at], bytes + static_cast<std::size_t>(i) * size, size);
    all.values[at] = numbers.span<double>()[static_cast<std::size_t>(i)];
    all.ranks[at] = line.rank;
  }
}

Values values_of_all(const RunRecord& run, const std::vector<Line>& parts) {
  const auto elements = static_cast<std::size_t>(ls::TensorPart::whole(parts[0].shape).numel);
  Values all{std::vector<std::uint64_t>(elements), std::vector<double>(elements), std::vector<int>(elements, -1)};
  for (const Line& part : parts) place(run, part, all);
  return all;
}

void find_element(const RunRecord& run_a, const std::vector<Line>& a, const RunRecord& run_b,
                  const std::vector<Line>& b, Difference& difference) {
  const auto has_values = [](const Line& line) { return line.at.has_value(); };
  if (!std::ranges::all_of(a, has_values) || !std::ranges::all_of(b, has_values)) return;
  const Values in_a = values_of_all(run_a, a), in_b = values_of_all(run_b, b);
  for (std::size_t i = 0; i < in_a.bits.size(); ++i) {
    if (in_a.ranks[i] < 0 || in_b.ranks[i] < 0) continue;
    ++difference.elements;
    if (in_a.bits[i] == in_b.bits[i]) continue;
    if (difference.differing++ > 0) continue;
    difference.element = static_cast<std::int64_t>(i);
    difference.a = {in_a.values[i], in_a.bits[i], in_a.ranks[i]};
    difference.b = {in_b.values[i], in_b.bits[i], in_b.ranks[i]};
  }
}

// --- tensors ---------------------------------------------------------------------------------------------------------

// The difference of two lines that is not one of values: "the shapes (2, 3) and (2, 4)". Empty: none.
std::string other_kind(const Line& a, const Line& b) {
  if (a.shape != b.shape) return fmt::format("the shapes {} and {}", a.shape.to_string(), b.shape.to_string());
  if (a.dtype != b.dtype) return fmt::format("the dtypes {} and {}", ls::name(a.dtype), ls::name(b.dtype));
  return "";
}

// Ranks of one run that have parts of different tensors.
std::optional<Difference> other_tensor_within(const RunRecord& run, const Key& key, const std::vector<Line>& lines) {
  for (const Line& line : lines) {
    const std::string kind = other_kind(lines[0], line);
    if (kind.empty()) continue;
    return Difference{.key = key,
                      .ranks_a = {lines[0].rank},
                      .ranks_b = {line.rank},
                      .what_differs = kind,
                      .within = run.directory,
                      .shape = line.shape};
  }
  return std::nullopt;
}

// Ranks of one run that have the same elements, cut at different places, with different values.
std::optional<Difference> overlap_within(const RunRecord& run, const Key& key, const std::vector<Line>& lines) {
  const std::vector<Line> distinct = distinct_parts(lines), parts = parts_of(lines);
  for (const Line& other : distinct) {
    if (contains(parts, other)) continue;
    const std::vector<Line> row = row_of(distinct, *std::ranges::find_if(
                                                       parts, [&](const Line&each) { return overlaps(each, other); })),
                            other_row = row_of(distinct, other);
    const bool has_same_elements =
        row.front().part.begin == other_row.front().part.begin && elements_of(row) == elements_of(other_row);
    if (!has_same_elements || hash_of(row) == hash_of(other_row)) continue;
    Difference difference{.key = key,
                          .ranks_a = ranks_of(row),
                          .ranks_b = ranks_of(other_row),
                          .what_differs = "values",
                          .within = run.directory,
                          .shape = other.shape};
    find_element(run, row, run, other_row, difference);
    return difference;
  }
  return std::nullopt;
}

// Ranks of one run that have the same part with different values.
std::optional<Difference> same_part_within(const RunRecord& run, const Key& key, const std::vector<Line>& lines) {
  for (const Line& part : distinct_parts(lines)) {
    std::vector<Line> same, other;
    for (const Line& line : lines) {
      if (line.part == part.part) (line.hash == part.hash ? same : other).push_back(line);
    }
    if (other.empty()) continue;
    Difference difference{.key = key,
                          .ranks_a = ranks_of(same),
                          .ranks_b = ranks_of(other),
                          .what_differs = "values",
                          .within = run.directory,
                          .shape = part.shape};
    find_element(run, {part}, run, {other[0]}, difference);
    return difference;
  }
  return std::nullopt;
}

std::optional<Difference> difference_within(const RunRecord& run, const Key& key, const std::vector<Line>& lines) {
  std::optional<Difference> difference = other_tensor_within(run, key, lines);
  if (!difference) difference = same_part_within(run, key, lines);
  if (!difference) difference = overlap_within(run, key, lines);
  return difference;
}

// Throws if parts of different slices overlap.
void check_parts(const RunRecord& run, const Key& key, const std::vector<Line>& parts) {
  const std::int64_t elements = ls::TensorPart::whole(parts[0].shape).numel;
  if (elements_of(parts) > elements)
    throw ls::IoError(
        fmt::format("{}: {}: the ranks have parts with {} elements, expected at most the {} of the "
                    "tensor; no Recorder writes slices that overlap: record the run again",
                    run.directory, describe(key).substr(0, 200), elements_of(parts), elements));
}

std::optional<Difference> difference_between(const RunRecord& run_a, const std::vector<Line>& lines_a,
                                             const RunRecord& run_b, const std::vector<Line>& lines_b, const Key& key) {
  const std::vector<Line> a = parts_of(lines_a), b = parts_of(lines_b);
  check_parts(run_a, key, a);
  check_parts(run_b, key, b);
  Difference difference{.key = key,
                        .ranks_a = ranks_of(a),
                        .ranks_b = ranks_of(b),
                        .what_differs = other_kind(a[0], b[0]),
                        .within = "",
                        .shape = a[0].shape};
  if (!difference.what_differs.empty()) return difference;
  if (elements_of(a) != elements_of(b))
    difference.what_differs = fmt::format("the numbers of elements {} and {}", elements_of(a), elements_of(b));
  else if (hash_of(a) != hash_of(b))
    difference.what_differs = "values";
  else
    return std::nullopt;
  if (difference.what_differs == "values") find_element(run_a, a, run_b, b, difference);
  return difference;
}

// The keys of both runs in the order of a step: micro-batches, then gradients, then what the optimizer has changed.
std::vector<Key> keys_in_order(const RunRecord& a, const RunRecord& b, const Filter& filter) {
  using Place = std::tuple<std::int64_t, int, int, std::int64_t>;
  std::vector<std::pair<Place, Key>> keys;
  const auto add = [&](const Key& key, const std::vector<Line>& lines) {
    if (wants(filter, key)) keys.push_back({{key.step, phase(key.what), key.micro_batch, lines[0].number}, key});
  };
  for (const auto& [key, lines] : a.tensors) add(key, lines);
  for (const auto& [key, lines] : b.tensors) {
    if (!a.tensors.contains(key)) add(key, lines);
  }
  std::ranges::sort(keys);
  std::vector<Key> in_order;
  for (auto& [place, key] : keys) in_order.push_back(std::move(key));
  return in_order;
}

// Throws if the filter leaves nothing of either run.
void check_filter(const std::vector<Key>& keys, const RunRecord& a, const Filter& filter) {
  if (!keys.empty() || a.tensors.empty()) return;
  if (filter.step)
    throw ls::IoError(fmt::format("--step {}: no run has a tensor of it{}; the steps of {} are {} to {}", *filter.step,
                                  filter.modules.empty() ? "" : " and of --module", a.directory,
                                  a.tensors.begin()->first.step, a.tensors.rbegin()->first.step));
  std::set<std::string_view> modules;
  for (const auto& [key, lines] : a.tensors) modules.insert(module_of(key));
  throw ls::IoError(fmt::format("--module {}: no run has a module of this path; {} has for example {}",
                                fmt::join(filter.modules, ", "), a.directory,
                                modules.empty() ? "none" : *modules.rbegin()));
}

// Counts the steps that one run has and the other has not.
void count_missing_steps(const std::vector<Key>& keys, const RunRecord& a, const RunRecord& b, Comparison& result) {
  std::map<std::int64_t, std::pair<bool, bool>> steps;
  for (const Key& key : keys) {
    auto& [in_a, in_b] = steps[key.step];
    in_a = in_a || a.tensors.contains(key);
    in_b = in_b || b.tensors.contains(key);
  }
  for (const auto& [step, in] : steps) {
    if (!in.second) ++result.steps_only_a;
    if (!in.first) ++result.steps_only_b;
  }
}

}  // namespace

Comparison compare(const RunRecord& a, const RunRecord& b, const Filter& filter) {
  Comparison result;
  std::int64_t last_step = -1;
  const std::vector<Key> keys = keys_in_order(a, b, filter);
  check_filter(keys, a, filter);
  count_missing_steps(keys, a, b, result);
  for (const Key& key : keys) {
    const auto in_a = a.tensors.find(key), in_b = b.tensors.find(key);
    const bool has_a = in_a != a.tensors.end(), has_b = in_b != b.tensors.end();
    if (has_a && !result.first) result.first = difference_within(a, key, in_a->second);
    if (has_b && !result.first) result.first = difference_within(b, key, in_b->second);
    if (!has_a || !has_b) {
      ++(has_a ? result.only_a : result.only_b);
      if (result.example.empty()) result.example = describe(key);
      continue;
    }
    if (result.first) continue;
    result.first = difference_between(a, in_a->second, b, in_b->second, key);
    if (result.first) continue;
    ++result.equal;
    if (key.step >= 0 && std::exchange(last_step, key.step) != key.step) ++result.steps;
  }
  return result;
}

std::string describe(const Key& key) {
  const std::string name = key.name.empty() ? "the model" : key.name;
  const std::string call = key.call > 0 && key.what != What::kInput ? fmt::format(", call {}", key.call) : "";
  const std::string state = key.step < 0 ? "before step 0" : fmt::format("after step {}", key.step);
  const std::string where = fmt::format(
      "{} of step {}", key.micro_batch < 0 ? "" : fmt::format(" in micro-batch {}", key.micro_batch), key.step);
  switch (key.what) {
    case What::kInput:
      return fmt::format("input {} of the model{}", key.call, where);
    case What::kOutput:
      return fmt::format("the output of {}{}{}", name, call, where);
    case What::kInputGradient:
      return fmt::format("the gradient of the input of {}{}{}", name, call, where);
    case What::kMicroBatchGradient:
      return fmt::format("the gradient of {}{}{}", name, call, where);
    case What::kGradient:
      return fmt::format("the reduced gradient of {} in step {}", name, key.step);
    case What::kParameter:
      return fmt::format("the parameter {} {}", name, state);
    case What::kBuffer:
      return fmt::format("the buffer {} {}", name, state);
  }
  return name;
}

}  // namespace diff
