// The summary of a step as it arrives: the sum over all ranks, multiplied by 1 / n with the gradients.
#include "lockstep/parallel/step/step_summary_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "tests/support/testing.h"

using ls::parallel::StepSummary;

namespace {

// What an all-reduce makes of `ranks` equal summaries.
StepSummary reduced(const StepSummary& own, int ranks, double scale, ls::DType dtype) {
  const ls::Tensor metadata = ls::zeros({StepSummary::kElements}, {.dtype = dtype});
  own.write(metadata);
  const ls::Tensor sum = ls::zeros({StepSummary::kElements}, {.dtype = dtype});
  for (int r = 0; r < ranks; ++r) ls::raw::add_(sum, metadata);
  return StepSummary::read(sum * scale, scale);
}

}  // namespace

TEST_CASE("a step's summary is exact in f32, with any number of ranks and micro-batches") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    for (int ranks = 1; ranks <= 1024; ++ranks) {
      const StepSummary own{
          .micro_batches = 1024 / ranks, .samples = (std::int64_t{1} << 24) - 1, .stop = 1, .joined = 1};
      for (const double scale : {1.0, 1.0 / ranks, 1.0 / static_cast<double>(ranks * own.micro_batches)}) {
        const StepSummary total = reduced(own, ranks, scale, dtype);
        REQUIRE(total.micro_batches == ranks * own.micro_batches);
        REQUIRE(total.samples == ranks * own.samples);
        REQUIRE(total.stop == ranks);
        REQUIRE(total.joined == ranks);
      }
    }
  }
}

TEST_CASE("the loss of a step's summary is scaled as gradients are") {
  CHECK(reduced({.loss = 1.5}, 4, 0.25, ls::kFloat32).loss == 1.5);
  CHECK(reduced({.loss = 1.5}, 4, 1, ls::kFloat32).loss == 6);
}
