// Tensor parallelism: the bytes that a rank sends and keeps, by the formulas.
#include "tests/parallel/model_parallel/tensor_training.h"

using namespace tensor_training;
using par::Phase;

namespace {

struct Bytes {
  std::int64_t activations, gradients;
};

// Those that this rank sends in forward and backward of `loss`.
template <class Loss>
Bytes sent_in(const Group& group, const Loss& loss) {
  par::TrafficStats& traffic = group->traffic();
  traffic.clear();
  loss().backward();
  for (const par::LinkTraffic& link : traffic.links())
    CHECK((link.phase == Phase::kActivations || link.phase == Phase::kActivationGradients));
  return {traffic.bytes(Phase::kActivations), traffic.bytes(Phase::kActivationGradients)};
}

constexpr std::int64_t kBatch = 2, kPositions = kBatch * kTime;

}  // namespace

TEST_CASE("a block sends 8 (t - 1) / t b s h numbers, and a rank keeps 1 / t of what is cut") {
  for (const int t : {2, 4}) {
    for (const int slices : {t, 8}) {
      for (const bool fused : {false, true}) {
        with_threads("local", t, [&](const Group& group) {
          const par::DeviceMesh mesh(group, {{"tp", t}});
          const ModelOptions options{.fused = fused, .gated = true, .bias = false};
          Block block(options);
          const auto bytes_of = [&] {
            std::int64_t bytes = 0;
            for (const nn::Parameter& each : block.parameters()) bytes += each->numel() * 4;
            return bytes;
          };
          std::int64_t cut = 0;
          for (const auto& [name, parameter] : block.named_parameters())
            cut += name.find("norm") == std::string::npos && name != "mlp.gate.bias" ? parameter->numel() * 4 : 0;
          cut += block.mlp.gate->bias->numel() * 4;
          const std::int64_t whole = bytes_of();
          par::ParallelPlan styles;
          for (const auto& [pattern, style] : plan_of(options)) styles.emplace_back(pattern.substr(9), style);
          const par::TensorPlan plan = par::parallelize(block, mesh["tp"], {.tensor_slices = slices, .plan = styles});
          CHECK(plan.whole_bytes == whole);
          CHECK(plan.parameter_bytes == whole - cut + cut / t);
          CHECK(bytes_of() == plan.parameter_bytes);

          const ls::Tensor x = ls::randn({kBatch, kTime, options.width}).requires_grad_();
          const Bytes sent = sent_in(mesh["tp"].group(), [&] { return block(x).sum(); });
          const std::int64_t numbers = kPositions * options.width;
          CHECK(sent.activations == 4 * (t - 1) * numbers / t * 4);
          CHECK(sent.gradients == 4 * (t - 1) * numbers / t * 4);
          CHECK(plan.bytes_per_micro_batch(kPositions) == sent.activations + sent.gradients);
        });
      }
    }
  }
}

TEST_CASE("with sequence parallelism a block sends as much, and the gradients of its norms") {
  for (const int t : {2, 4}) {
    with_threads("local", t, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"tp", t}});
      const ModelOptions options{.vocabulary = true, .sequence = true};
      Model model(options);
      const par::TensorPlan plan = par::parallelize(
          model, mesh["tp"], {.tensor_slices = 4, .sequence_parallel = true, .plan = plan_of(options)});
      const ls::Tensor ids = ls::arange(kPositions).reshape({kBatch, kTime});
      const Bytes sent = sent_in(mesh["tp"].group(), [&] { return model(ids).sum(); });
      constexpr std::int64_t kPadded = 20, kBlocks = 2;
      const std::int64_t hidden = kPositions * options.width * 4, each = (t - 1) * hidden / t;
      // Norms have two parameters; row-parallel layers a bias.
      const std::int64_t whole = (kBlocks * (4 + 2) + 2) * options.width * 4;
      CHECK(sent.activations == 4 * kBlocks * each + 2 * each + (t - 1) * kPositions * kPadded / t * 4);
      CHECK(sent.gradients == 4 * kBlocks * each + 2 * each + 2 * (t - 1) * whole / t);
      CHECK(plan.bytes_per_micro_batch(kPositions) == sent.activations + sent.gradients);
    });
  }
}

TEST_CASE("layers that are cut along the vocabulary") {
  for (const int t : {2, 4}) {
    for (const bool gathers : {false, true}) {
      with_threads("local", t, [&](const Group& group) {
        const par::DeviceMesh mesh(group, {{"tp", t}});
        const ModelOptions options{.vocabulary = true, .gathers = gathers};
        Model model(options);
        const par::TensorPlan plan = par::parallelize(
            model, mesh["tp"],
            {.tensor_slices = 4,
             .plan = {{"tokens", par::VocabParallel{}}, {"head", par::VocabParallel{.gather_output = gathers}}}});
        const ls::Tensor ids = ls::arange(kPositions).reshape({kBatch, kTime});
        const nn::CrossEntropyLoss of_whole;
        std::optional<par::VocabCrossEntropyLoss> of_columns;
        if (!gathers) of_columns.emplace(model, "head");
        const Bytes sent = sent_in(mesh["tp"].group(), [&] {
          const ls::Tensor logits = model(ids).flatten(0, 1), targets = ids.flatten();
          return gathers ? of_whole(logits, targets) : (*of_columns)(logits, targets);
        });
        constexpr std::int64_t kPadded = 20;
        const std::int64_t hidden = kPositions * options.width, rows = 2 * (t - 1) * hidden / t * 4;
        CHECK(sent.activations ==
              rows + (gathers ? (t - 1) * kPositions * kPadded / t * 4 : 6 * (t - 1) * kPositions / t * 4));
        CHECK(sent.gradients == rows);
        if (gathers) CHECK(plan.bytes_per_micro_batch(kPositions) == sent.activations + sent.gradients);
      });
    }
  }
}

TEST_CASE("the traffic of a mode includes that of the axis tp, of all steps and of the last") {
  const auto check = [](const Group& group, const par::DeviceMesh& mesh, const par::TensorPlan& plan, auto& run) {
    const ls::Tensor ids = ls::arange(kPositions).reshape({kBatch, kTime}).repeat({2, 1});
    for (int step = 1; step <= 2; ++step) {
      run.backward(ids, ids, [&](const ls::Tensor& x, const ls::Tensor& y) {
        return nn::cross_entropy(run.module()(x).flatten(0, 1), y.flatten());
      });
      std::int64_t in_step = 0, in_all = 0;
      const auto is_of_model = [](Phase phase) {
        return phase == Phase::kActivations || phase == Phase::kActivationGradients;
      };
      for (const par::LinkTraffic& link : run.traffic().step_links())
        in_step += is_of_model(link.phase) ? link.bytes : 0;
      for (const par::LinkTraffic& link : run.traffic().links()) {
        if (!is_of_model(link.phase)) continue;
        in_all += link.bytes;
        CHECK(link.from == group->rank());
        CHECK(link.to / mesh["tp"].size() == group->rank() / mesh["tp"].size());  // along tp
      }
      CHECK(in_step == 2 * plan.bytes_per_micro_batch(kPositions));
      CHECK(in_all == step * in_step);
    }
    if (run.group()) {
      const std::int64_t gradients = run.group()->traffic().bytes(Phase::kGradients);
      CHECK(gradients > 0);
      CHECK(run.traffic().bytes(Phase::kGradients) == gradients);
    }
  };
  for (const int t : {2, 4}) {
    with_threads("local", 2 * t, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", t}});
      const ModelOptions options{};
      Model alone(options), replicated(options), sharded(options);
      const auto cut = [&](Model& model) {
        return par::parallelize(model, mesh["tp"], {.tensor_slices = 4, .plan = plan_of(options)});
      };
      const par::TensorPlan plan = cut(alone);
      cut(replicated), cut(sharded);
      par::GradientAccumulation accumulation(alone, {.micro_batches = 2});
      check(group, mesh, plan, accumulation);
      mesh["tp"].group()->traffic().clear();
      par::DistributedDataParallel ddp(replicated, mesh["dp"].group(), {.micro_batches_per_rank = 2});
      check(group, mesh, plan, ddp);
      mesh["tp"].group()->traffic().clear();
      par::ShardedDataParallel fsdp(sharded, mesh["dp"].group(), {.micro_batches_per_rank = 2});
      check(group, mesh, plan, fsdp);
      Model whole(options);
      mesh["tp"].group()->traffic().clear();
      par::Parallel run(whole, mesh, {.partition = {.micro_batches = 4, .tensor_slices = 4}, .plan = plan_of(options)});
      check(group, mesh, plan, run);
    });
  }
}

TEST_CASE("the plan says who has which columns") {
  ModelOptions options{.vocabulary = true};
  Model model(options);
  const par::TensorPlan plan = par::parallelize(model, par::DeviceMesh(nullptr, {{"tp", 1}}),
                                                {.tensor_slices = 2,
                                                 .plan = {{"tokens", par::VocabParallel{}},
                                                          {"blocks.1.mlp.up", par::ColwiseParallel{}},
                                                          {"blocks.1.mlp.down", par::RowwiseParallel{}}}});
  CHECK(plan.to_string() ==
        "2 tensor slices on 1 rank, 2 on each; 73548 of 73548 bytes of parameters on this rank\n"
        "module             style            columns of this rank\n"
        "tokens             VocabParallel    0 to 18 of 19\n"
        "blocks.1.mlp.up    ColwiseParallel  0 to 63 of 64\n"
        "blocks.1.mlp.down  RowwiseParallel  0 to 63 of 64\n"
        "a micro-batch of n positions sends 0 n bytes, in forward and backward\n");
}
