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

std::int64_t kept_bytes(const par::DeviceMesh& mesh, int slices, int layers, const ModelOptions& options) {
  Stack model(layers, options);
  par::ParallelPlan plan = plan_of(options);
  std::erase_if(plan, [](const auto& entry) { return entry.first == "norm" || entry.first == "head"; });
  par::parallelize(model, mesh["tp"],
                   {.tensor_slices = slices, .sequence_parallel = options.sequence, .plan = std::move(plan)});
  const ls::Tensor ids = ls::zeros({kBatch, kLength}, {.dtype = ls::kInt64});
  const auto bytes = [] {
    const ls::AllocatorStats stats = ls::allocator_stats();
    return static_cast<std::int64_t>(stats.allocated_bytes + stats.communication_bytes);
  };
  model(ids).sum().backward();  // makes what stays
  const std::int64_t before = bytes();
  const ls::Tensor out = model(ids);
  return bytes() - before;
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
