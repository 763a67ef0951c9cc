// A recorded run (parallel/step/recorder.h): the lines of all its ranks.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace diff {

namespace ls = lockstep;

// The kinds of tensors, in the order in which a step computes them.
enum class What { kInput, kOutput, kInputGradient, kMicroBatchGradient, kGradient, kParameter, kBuffer };
// "output", as in the file.
const char* name(What what);

// A tensor of a run.
struct Key {
  std::int64_t step = 0;
  What what = What::kInput;
  int micro_batch = -1;  // -1: of the whole step
  std::string name = {};
  std::int64_t call = 0;
  auto operator<=>(const Key&) const = default;
};

// A tensor, or a part of one, on one rank.
struct Line {
  int rank = 0;
  ls::DType dtype = ls::kFloat32;
  ls::Shape shape;  // of the whole tensor
  ls::TensorPart part;
  std::uint64_t hash = 0;
  std::optional<std::int64_t> at = std::nullopt;  // of the values
  std::int64_t number = 0;                        // of the line in the file
};

struct RunRecord {
  std::string directory;
  std::map<Key, std::vector<Line>> tensors;
};

// Throws lockstep::IoError, naming file and line, for anything that no Recorder has written.
RunRecord read_run(const std::string& directory);
// Adds the lines of one rank. A program that was killed leaves an incomplete last line, which is left out. Returns the
// ranks of the run. Throws as read_run.
std::vector<int> add_rank(RunRecord& run, int rank, std::span<const std::byte> bytes, const std::string& path);

// The elements of a line, in its dtype. Throws lockstep::IoError if the file of values does not have them.
ls::Tensor values_of(const RunRecord& run, const Line& line);

}  // namespace diff
