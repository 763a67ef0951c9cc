#include "tools/diff/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace diff {
namespace {

// Advice on what to check, if everything before is equal.
const char* meaning(const Key& key) {
  switch (key.what) {
    case What::kInput:
      return "Check the data: dataset, sampler, seed, transforms, and the number of micro-batches.";
    case What::kOutput:
      return "Check what computes the module's input, the module's own forward, and what it draws or reads besides its "
             "input.";
    case What::kInputGradient:
    case What::kMicroBatchGradient:
      return "If this is the micro-batch's first gradient, check the targets and the loss; else the backward of what "
             "the "
             "gradient comes through.";
    case What::kGradient:
      return "Check the sum over the micro-batches, its scale, communication hooks, and the order of the reduction.";
    case What::kParameter:
      return key.step < 0 ? "Check the initial values: seed, initialisation, and the checkpoint that was loaded."
                          : "Check clipping, the learning rate, the optimizer and its state, and code that writes "
                            "parameters.";
    case What::kBuffer:
      return "Check the module that updates the buffer in forward, and .sync_buffers.";
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

std::string element_text(const Difference& difference, const std::string& a, const std::string& b) {
  if (!difference.element)
    return difference.what_differs == "values"
               ? "  To see the element and its values, record both runs again with LOCKSTEP_RECORD_VALUES=1.\n"
               : "";
  const auto side = [](const std::string& name, const Element& element) {
    return fmt::format("  {}: {:.9g} ({:#x})\n", name, element.value, element.bits);
  };
  return fmt::format("  element {} of {}, at {}; {} elements differ\n", *difference.element, difference.elements,
                     position_text(difference.shape, *difference.element), difference.differing) +
         side(a, difference.a) + side(b, difference.b);
}

std::string text_of(const Difference& difference, const std::string& a, const std::string& b) {
  if (!difference.within.empty())
    return fmt::format("The ranks of {} disagree: {}\n  {} and {} have {}\n{}", difference.within,
                       describe(difference.key), ranks_text(difference.ranks_a), ranks_text(difference.ranks_b),
                       difference.what_differs == "values" ? "different values" : difference.what_differs,
                       element_text(difference, ranks_text(difference.ranks_a), ranks_text(difference.ranks_b))) +
           "Check code that depends on the rank, options that differ between ranks, and buffers.\n";
  std::string text = fmt::format("First difference: {}\n", describe(difference.key));
  if (difference.what_differs != "values") text += fmt::format("  {}\n", difference.what_differs);
  const auto side = [](const std::string& run, const Element& element) {
    return fmt::format("{}, rank {}", run, element.rank);
  };
  return text + element_text(difference, side(a, difference.a), side(b, difference.b)) + meaning(difference.key) + "\n";
}

std::string count_text(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string as_text(const Comparison& comparison, const std::string& a, const std::string& b) {
  std::string text;
  if (comparison.first)
    text = text_of(*comparison.first, a, b) +
           fmt::format("Before it {} are equal.\n", count_text(comparison.equal, "tensor"));
  else
    text = fmt::format("No difference in {} that both runs have.\n", count_text(comparison.equal, "tensor"));
  const auto missing = [&](const std::string& run, std::int64_t steps) {
    if (steps > 0)
      text += fmt::format("Incomplete: {} of the other run are not in {}.\n", count_text(steps, "step"), run);
  };
  missing(b, comparison.steps_only_a);
  missing(a, comparison.steps_only_b);
  if (comparison.only_a + comparison.only_b > 0)
    text +=
        fmt::format("Not compared: {} of {} and {} of {}, for example {}.\n", count_text(comparison.only_a, "tensor"),
                    a, count_text(comparison.only_b, "tensor"), b, comparison.example);
  return text;
}

}  // namespace diff
