// Pipelines on ranks that are threads: bytes, errors on all ranks, and ranks that differ.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/parallel/model_parallel/failing_stages.h"
#include "tests/parallel/model_parallel/pipeline_bytes.h"

using failing_stages::Stages;

namespace par = ls::parallel;
namespace nn = ls::nn;

TEST_CASE("stages on threads send the bytes of the formula") { pipeline_bytes::check_bytes("local"); }

TEST_CASE("an exception in a stage ends the step on all threads") {
  failing_stages::check_failing_stages("local");
  failing_stages::check_error_before_the_schedule("local");
}

TEST_CASE("pipelines of ranks that differ are refused") {
  const par::PipelineOptions plain = {.chain = failing_stages::kChain, .micro_batches_per_rank = 4};
  struct Difference {
    std::function<void(par::PipelineOptions&)> apply;  // on rank 1
    std::string text;
  };
  const std::vector<Difference> differences = {
      {[](par::PipelineOptions& options) { options.micro_batches_per_rank = 8; },
       "rank 0 has schedule of 4 micro-batches"},
      {[](par::PipelineOptions& options) { options.schedule = par::Schedule::kGPipe; },
       "rank 0 has schedule of 4 micro-batches"},
      {[](par::PipelineOptions& options) { options.table = par::ScheduleTable::make(par::Schedule::kGPipe, 2, 4, 1); },
       "rank 0 has schedule of 4 micro-batches"},
      {[](par::PipelineOptions& options) { options.weighting = par::Weighting::kSamples; }, "rank 0 has weighting 0"},
      {[](par::PipelineOptions& options) { options.split_before = {"second"}; },
       "rank 0 has second in stage 0, rank 1 has second in stage 1"},
      {[](par::PipelineOptions& options) {
         options.chain = {"second", "first", "third", "last"};
       },
       "rank 0 has first in stage 0, rank 1 has second in stage 0"},
  };
  for (const Difference& difference : differences) {
    with_group("local", 2, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"pp", 2}});
      Stages model;
      par::PipelineOptions own = plain;
      if (group->rank() == 1) difference.apply(own);
      const std::string text = error_of<ls::CommError>([&] { par::Pipeline(model, mesh["pp"], own); });
      CHECK_MESSAGE(contains(text, "Pipeline: ranks have different options: "), text);
      CHECK_MESSAGE(contains(text, difference.text), text);
    });
  }
}

TEST_CASE("a loss that is not a number reaches all stages") {
  with_group("local", 3, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"pp", 3}});
    Stages model;
    par::Pipeline run(model, mesh["pp"], {.chain = failing_stages::kChain, .micro_batches_per_rank = 4});
    ls::Tensor y = ls::ones({8, 8});
    y[5].fill_(kNan);
    const auto loss = [&](const ls::Tensor& in, const ls::Tensor& target) { return nn::mse_loss(model(in), target); };
    CHECK(std::isnan(run.backward(ls::ones({8, 8}), y, loss).item<double>()));
    CHECK(std::isnan(run.evaluate(ls::ones({8, 8}), y, loss).item<double>()));
    CHECK(std::isfinite(run.evaluate(ls::ones({8, 8}), ls::ones({8, 8}), loss).item<double>()));
  });
}
