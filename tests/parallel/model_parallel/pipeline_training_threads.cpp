// Pipelines have the bits of GradientAccumulation, with any ranks, schedule and model.
#include "tests/parallel/model_parallel/pipeline_training.h"

using namespace pipeline_training;

namespace {

constexpr par::Schedule kGPipe = par::Schedule::kGPipe, kInterleaved = par::Schedule::kInterleaved;

const std::vector<Layout> kLayouts = {{.ranks = 2},
                                      {.ranks = 3, .schedule = kGPipe},
                                      {.ranks = 4, .micro_batches = 6},
                                      {.ranks = 2, .chunks = 3, .schedule = kInterleaved}};

}  // namespace

TEST_CASE("pipeline: one to eight ranks have the bits of gradient accumulation") {
  const ModelOptions options{.dropout = 0.1};
  check_same("local", options,
             {{.ranks = 1},
              {.ranks = 1, .micro_batches = 1},
              {.ranks = 2, .micro_batches = 1},
              {.ranks = 2, .micro_batches = 8},
              {.ranks = 8, .micro_batches = 8},
              {.ranks = 4, .schedule = kGPipe},
              {.ranks = 2, .micro_batches = 6, .schedule = kGPipe},
              {.ranks = 1, .chunks = 4, .schedule = kInterleaved},
              {.ranks = 4, .micro_batches = 8, .chunks = 2, .schedule = kInterleaved},
              {.ranks = 2, .micro_batches = 6, .chunks = 4, .schedule = kInterleaved}});
}

TEST_CASE("pipeline: batch norm, dropout and recomputation") {
  check_same("local", {.dropout = 0.2, .norm = true, .recompute = true}, kLayouts);
}
TEST_CASE("pipeline: frozen parameters, and a stage without gradients") {
  check_same("local", {.frozen = true}, kLayouts);
  check_same("local", {.unused = true}, kLayouts);
}
TEST_CASE("pipeline: mixed precision, deferred initialisation") {
  check_same("local", {.dropout = 0.1, .bf16 = true, .deferred = true}, kLayouts);
}
TEST_CASE("pipeline: a transposed boundary, two inputs") {
  check_same("local", {.turned = true, .two_inputs = true}, kLayouts);
}
TEST_CASE("pipeline: fewer samples than micro-batches, weights by samples") {
  check_same("local", {.samples = 3}, kLayouts);
  check_same("local", {.weighting = par::Weighting::kSamples, .samples = 13}, kLayouts);
}
TEST_CASE("pipeline: stages of your own") {
  check_same("local", {}, {{.ranks = 3, .split_before = {"blocks.1", "blocks.5"}}});
}
