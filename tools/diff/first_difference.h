// The first difference of two recorded runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/diff/run_record.h"

namespace diff {

// A choice of the tensors to compare.
struct Filter {
  std::vector<std::string> modules = {};  // paths, with all below them; '*' for any text without '.'. Empty: all
  std::optional<std::int64_t> step = std::nullopt;
  bool has_gradients = true;  // false: no gradients, for runs whose losses have different factors
};

// An element on the rank that made it.
struct Element {
  double value = 0;
  std::uint64_t bits = 0;
  int rank = 0;
};

struct Difference {
  Key key;
  // The ranks that have the tensor; a part that several ranks have counts for the first of them. Within one run: the
  // ranks of one value, and those of others.
  std::vector<int> ranks_a, ranks_b;
  std::string what_differs;  // "values", "dtype f32 and bf16", "shape ..."
  // The directory of the one run whose ranks differ; "": the two runs differ.
  std::string within;
  ls::Shape shape;
  // With values: the first element that differs, and the number of those.
  std::optional<std::int64_t> element = std::nullopt;
  Element a = {}, b = {};
  std::int64_t differing = 0, elements = 0;
};

struct Comparison {
  std::optional<Difference> first = std::nullopt;
  std::int64_t equal = 0;                           // tensors before it that both runs have
  std::int64_t steps = 0;                           // in which both have tensors
  std::int64_t only_a = 0, only_b = 0;              // tensors of one run alone
  std::string example = {};                         // one of those
  std::int64_t steps_only_a = 0, steps_only_b = 0;  // steps of which the other run has no tensor
  bool is_equal() const { return !first && steps_only_a + steps_only_b == 0; }
};

// Throws lockstep::IoError for slices that overlap, and for a filter that leaves nothing.
Comparison compare(const RunRecord& a, const RunRecord& b, const Filter& filter);

// "the output of blocks.0 in micro-batch 3 of step 2"
std::string describe(const Key& key);

}  // namespace diff
