// Tensor parallelism: the bytes of activations that a rank keeps for backward, by the formulas.
#include "tests/parallel/model_parallel/tensor_training.h"

using namespace tensor_training;

namespace {

constexpr std::int64_t kBatch = 2, kLength = 64;

struct Stack : nn::Module {
  Stack(int layers, const ModelOptions& options)
      : tokens(add<nn::Embedding>("tokens", kVocabulary, options.width)), blocks(add<nn::ModuleList>("blocks")) {
    for (int i = 0; i < layers; ++i) blocks.push_back(Block(options));
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = tokens(ids);
    for (nn::Module& block : blocks) x = block(x);
    return x;
  }
  nn::Embedding& tokens;
  nn::ModuleList& blocks;
};

// The bytes that forward keeps for backward, with its result.
std::int64_t kept_bytes(const nn::Module& model, const ls::Tensor& x) {
  const auto bytes = [] {
    const ls::AllocatorStats stats = ls::allocator_stats();
    return static_cast<std::int64_t>(stats.allocated_bytes + stats.communication_bytes);
  };
  model(x).sum().backward();  // makes what stays
  const std::int64_t before = bytes();
  const ls::Tensor out = model(x);
  return bytes() - before;
}

std::int64_t kept_bytes(const par::DeviceMesh& mesh, int slices, int layers, const ModelOptions& options) {
  Stack model(layers, options);
  par::ParallelPlan plan = plan_of(options);
  std::erase_if(plan, [](const auto& entry) { return entry.first == "norm" || entry.first == "head"; });
  par::parallelize(model, mesh["tp"],
                   {.tensor_slices = slices, .sequence_parallel = options.sequence, .plan = std::move(plan)});
  return kept_bytes(model, ls::zeros({kBatch, kLength}, {.dtype = ls::kInt64}));
}

// Nothing but `down` keeps its input.
struct Pair : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override { return down(up(x) + 1.0); }
  nn::Linear& up = add<nn::Linear>("up", 16, 32);
  nn::Linear& down = add<nn::Linear>("down", 32, 16);
};

std::int64_t kept_bytes_of_pair(const par::DeviceMesh& mesh, int slices, bool is_frozen) {
  Pair pair;
  pair.down.weight->requires_grad_(!is_frozen);
  par::parallelize(
      pair, mesh["tp"],
      {.tensor_slices = slices, .plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
  return kept_bytes(pair, ls::ones({kBatch, kLength, 16}).requires_grad_());
}

}  // namespace

TEST_CASE("a block's activations: what is outside of the regions is whole, or divided where the sequence is cut") {
  for (const int t : {1, 2, 4}) {
    for (const int slices : {4, 8}) {
      for (const bool sequence : {false, true}) {
        CAPTURE(t);
        CAPTURE(slices);
        CAPTURE(sequence);
        with_group("shm", t, [&](const Group& group) {
          const par::DeviceMesh mesh(group, {{"tp", t}});
          const ModelOptions options{.bias = false, .sequence = sequence};
          const std::int64_t block = (kept_bytes(mesh, slices, 5, options) - kept_bytes(mesh, slices, 1, options)) / 4;
          const std::int64_t positions = kBatch * kLength * 4, all = positions * options.width;
          // q, k, v, the attention's result, and the two tensors of the MLP, twice as wide; a number for each head.
          const std::int64_t cut = (8 * all + positions * options.heads) / t;
          // The inputs of both norms, with mean and deviation of each position. Their results are the layers' inputs, which
          // gradients of weights need whole.
          const std::int64_t norms = (2 * all + 4 * positions) / (sequence ? t : 1);
          CHECK(block == cut + norms + 2 * all);
        });
      }
    }
  }
}

TEST_CASE("a row-parallel layer whose weight is frozen keeps no input") {
  for (const int t : {1, 2}) {
    for (const int slices : {t, 4}) {  // one slice on each rank, or several
      CAPTURE(t);
      CAPTURE(slices);
      with_group("shm", t, [&](const Group& group) {
        const par::DeviceMesh mesh(group, {{"tp", t}});
        const std::int64_t input = kBatch * kLength * 32 / t * 4;
        CHECK(kept_bytes_of_pair(mesh, slices, /*is_frozen=*/false) -
                  kept_bytes_of_pair(mesh, slices, /*is_frozen=*/true) ==
              input);
      });
    }
  }
}
