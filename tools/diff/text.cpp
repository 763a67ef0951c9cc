#include "tools/diff/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace diff {
namespace {

// Where to look, if everything before is equal.
const char* meaning(What what) {
  switch (what) {
    case What::kInput:
      return "The runs have different data: look at the sampler, its seed, and the number of micro-batches.";
    case What::kOutput:
      return "Its inputs are equal as far as they are recorded: look at the forward of this module, and at what it "
             "draws or reads besides its input.";
    case What::kInputGradient:
      return "All outputs of this micro-batch are equal: look at the loss, and at the backward of this module and of "
             "what uses the same input.";
    case What::kMicroBatchGradient:
      return "All outputs of this micro-batch are equal: look at the backward of the module that has this parameter.";
    case What::kGradient:
      return "The gradients of the micro-batches are equal: look at their sum, its scale, and the communication.";
    case What::kParameter:
      return "The reduced gradients are equal: look at clipping, the optimizer and its options, and at other code that "
             "changes parameters.";
    case What::kBuffer:
      return "Look at the module that updates this buffer in forward, and at the broadcast of buffers.";
  }
  return "";
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// "[0, 3, 17]"
std::string position_text(const ls::Shape& shape, std::int64_t element) {
  std::vector<std::int64_t> position;
  for (std::size_t d = shape.size(); d-- > 0; element /= shape[d])
    position.insert(position.begin(), element % shape[d]);
  return fmt::format("[{}]", fmt::join(position, ", "));
}

std::string text_of(const Difference& difference, const std::string& a, const std::string& b) {
  const bool is_within = !difference.within.empty();
  std::string text = is_within ? fmt::format("The ranks of {} have different values: {}\n", difference.within,
                                             describe(difference.key))
                               : fmt::format("The runs differ first in {}\n", describe(difference.key));
  if (difference.what_differs != "values") text += fmt::format("  {}\n", difference.what_differs);
  text += fmt::format("  {}: {}\n  {}: {}\n", is_within ? "some" : a, ranks_text(difference.ranks_a),
                      is_within ? "others" : b, ranks_text(difference.ranks_b));
  if (difference.element) {
    text += fmt::format("  element {} {}: {:.9g} ({:#x}) on rank {}, {:.9g} ({:#x}) on rank {}\n", *difference.element,
                        position_text(difference.shape, *difference.element), difference.a.value, difference.a.bits,
                        difference.a.rank, difference.b.value, difference.b.bits, difference.b.rank);
    text += fmt::format("  {} of {} elements differ\n", difference.differing, difference.elements);
  } else if (difference.what_differs == "values") {
    text +=
        "  For the element, record the values of both runs: RecorderOptions{.values = true}, or "
        "LOCKSTEP_RECORD_VALUES=1\n";
  }
  return text + (is_within ? "" : std::string(meaning(difference.key.what)) + "\n");
}

}  // namespace

std::string as_text(const Comparison& comparison, const std::string& a, const std::string& b) {
  std::string text = comparison.first ? text_of(*comparison.first, a, b) + "Before it, " : "";
  text += fmt::format("{} tensors of {} steps are equal{}\n", comparison.equal, comparison.steps,
                      comparison.first ? "" : ": the runs have the same bits");
  if (comparison.only_a + comparison.only_b == 0) return text;
  return text +
         fmt::format("Not compared: {} tensors of {} and {} of {}, which the other run does not have, for example {}\n",
                     comparison.only_a, a, comparison.only_b, b, comparison.example);
}

}  // namespace diff
