// Records of other cut models, and of meshes with sequence blocks, are equal on all layouts. Ranks are threads.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/model_parallel/context_training.h"
#include "tests/parallel/model_parallel/tensor_gqa.h"
#include "tools/diff/first_difference.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;
using context_training::Kind;
using tensor_training::HeadNorm;

// Attention by a module that parallelize cuts as a whole.
struct EncoderNet : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", context_training::kVocabulary, 16);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& head = add<nn::Linear>("head", 16, context_training::kVocabulary);
  EncoderNet() {
    for (int i = 0; i < 2; ++i)
      blocks.push_back(nn::TransformerEncoderLayer(16, 4, {.dim_feedforward = 32, .dropout = 0.1}));
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = tokens(ids);
    for (const nn::Module& block : blocks) x = block(x);
    return head(x);
  }
};

struct NormInside : nn::Module {
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{16});
  ls::Tensor forward(const ls::Tensor& x) const override { return norm(x); }
};

// The norm runs once for each of a rank's pieces of the sequence.
struct PiecewiseNet : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", context_training::kVocabulary, 16);
  NormInside& outer = add<NormInside>("outer");
  nn::Linear& up = add<nn::Linear>("up", 16, 32);
  nn::Linear& down = add<nn::Linear>("down", 32, 16);
  nn::Linear& head = add<nn::Linear>("head", 16, context_training::kVocabulary);
  explicit PiecewiseNet(bool is_frozen) {
    for (const nn::Parameter& each : outer.parameters()) each->requires_grad_(!is_frozen);
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    const ls::Tensor x = tokens(ids);
    return head(x + down(ls::gelu(up(outer(x)))));
  }
};

struct RecordedModel {
  std::function<std::unique_ptr<nn::Module>()> make;
  par::ParallelPlan plan;
  bool has_positions = false;  // as a second input
};

struct RecordedMesh {
  int ranks;
  std::vector<par::MeshAxis> axes;
  int stage = 3;
  int missing = 0;  // tensors that are not recorded, because shapes do not say which dimension is cut
};

void train_rank(const Group& group, const RecordedMesh& layout, const RecordedModel& subject,
                const par::Partition& partition) {
  ls::manual_seed(5);
  const par::DeviceMesh mesh(group, layout.axes);
  const std::unique_ptr<nn::Module> model = subject.make();
  par::Parallel run(*model, mesh,
                    {.partition = partition, .plan = subject.plan, .stage = layout.stage, .units = {"blocks.*"}});
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  const nn::CrossEntropyLoss criterion;
  const std::int64_t each = context_training::kSamples / partition.micro_batches;
  for (int step = 0; step < 2; ++step) {
    std::vector<ls::Tensor> mine;
    for (const ls::Tensor& whole : context_training::batch_of(step))
      mine.push_back(whole.narrow(0, each * run.first_micro_batch(), each * run.micro_batches()));
    mine = run.split_sequence(mine);
    optimizer.zero_grad();
    std::vector<ls::Tensor> inputs{mine[0]};
    if (subject.has_positions) inputs.push_back(mine[1]);
    run.backward(inputs, mine[2], [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
      return criterion((x.size() > 1 ? run.module()(x) : run.module()(x[0])).flatten(0, 1), y.flatten());
    });
    run.clip_grad_norm_(0.5);
    optimizer.step();
  }
}

// The runs record themselves.
void record_in(const std::string& directory, const RecordedMesh& mesh, const RecordedModel& subject,
               const par::Partition& partition, int runs = 1) {
  std::filesystem::remove_all(directory);
  setenv("LOCKSTEP_RECORD", directory.c_str(), 1);
  for (int i = 0; i < runs; ++i) {
    if (mesh.ranks == 1)
      train_rank(nullptr, mesh, subject, partition);
    else
      with_threads("local", mesh.ranks, [&](const Group& group) { train_rank(group, mesh, subject, partition); });
  }
  unsetenv("LOCKSTEP_RECORD");
}

void check_meshes(const RecordedModel& subject, const par::Partition& partition,
                  const std::vector<RecordedMesh>& meshes) {
  static int number = 0;  // a directory that was recorded once would have the second run in a subdirectory
  const std::string directory = fmt::format("mesh_record_{}", number++);
  record_in(directory, meshes[0], subject, partition);
  for (std::size_t i = 1; i < meshes.size(); ++i) {
    std::string text;
    for (const par::MeshAxis& axis : meshes[i].axes) text += fmt::format("{} {} ", axis.name, axis.size);
    CAPTURE(text);
    const std::string other = fmt::format("{}_{}", directory, i);
    record_in(other, meshes[i], subject, partition);
    for (int rank = 0; rank < meshes[i].ranks; ++rank)
      CHECK(std::filesystem::exists(fmt::format("{}/rank{}.jsonl", other, rank)));
    const diff::Comparison comparison = diff::compare(diff::read_run(directory), diff::read_run(other), {});
    if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key), ": ", comparison.first->what_differs);
    CHECK(comparison.is_equal());
    INFO(comparison.example);
    CHECK(comparison.only_a == meshes[i].missing);
    CHECK(comparison.only_b == 0);
    CHECK(comparison.steps == 2);
  }
}

}  // namespace

TEST_CASE("records of meshes with sequence blocks and slices are equal") {
  const RecordedModel model{
      .make = [] { return std::make_unique<context_training::Model>(context_training::ModelOptions{.dropout = 0.1}); },
      .plan = {{"blocks.*.attention.query", par::ColwiseParallel{}},
               {"blocks.*.attention.keys", par::ColwiseParallel{.parts = 2}},
               {"blocks.*.attention.proj", par::RowwiseParallel{}},
               {"blocks.*.up", par::ColwiseParallel{}},
               {"blocks.*.down", par::RowwiseParallel{}}},
      .has_positions = true};
  check_meshes(model, {.micro_batches = 4, .tensor_slices = 2, .sequence_blocks = 2, .attention = Kind::kRingZigzag},
               {{2, {{"cp", 2}}}, {4, {{"cp", 2}, {"tp", 2}}}, {8, {{"fsdp", 2}, {"cp", 2}, {"tp", 2}}}});
}

TEST_CASE("records of TransformerEncoderLayers are equal") {
  const RecordedModel model{.make = [] { return std::make_unique<EncoderNet>(); },
                            .plan = {{"blocks.*.self_attn", par::AttentionParallel{}},
                                     {"blocks.*.linear1", par::ColwiseParallel{}},
                                     {"blocks.*.linear2", par::RowwiseParallel{}}}};
  check_meshes(model, {.micro_batches = 4, .tensor_slices = 4},
               {{1, {{"dp", 1}}}, {2, {{"tp", 2}}}, {4, {{"tp", 4}}}, {4, {{"dp", 2}, {"tp", 2}}}});
}

TEST_CASE("records of attention with repeated heads, and norms of heads, are equal") {
  for (const HeadNorm norm : {HeadNorm::kNone, HeadNorm::kBeforeTranspose, HeadNorm::kAfterTranspose}) {
    CAPTURE(static_cast<int>(norm));
    const bool has_norm = norm != HeadNorm::kNone;
    const tensor_training::GqaOptions options{.kv_heads = has_norm ? 4 : 2, .repeat = has_norm ? 1 : 2, .norm = norm};
    const RecordedModel model{.make = [options] { return std::make_unique<tensor_training::GqaModel>(options); },
                              .plan = tensor_training::gqa_plan(options)};
    // With one head of keys on a rank: output and input gradient of k_norm, in 2 blocks, 4 micro-batches and 2 steps.
    const int missing = has_norm ? 2 * 2 * 4 * 2 : 0;
    check_meshes(
        model, {.micro_batches = 4, .tensor_slices = 4},
        {{1, {{"dp", 1}}}, {2, {{"tp", 2}}}, {4, {{"tp", 4}}, 3, missing}, {8, {{"fsdp", 2}, {"tp", 4}}, 3, missing}});
  }
}

TEST_CASE("shards of repeated slices are compared, also if ranks cut them at different elements") {
  // The middle one of three ranks has both slices of the keys, and the others have one. So the quarter of its
  // unit ends in the first slice, and that of the other ranks before it.
  const tensor_training::GqaOptions options{.heads = 6, .kv_heads = 2, .repeat = 3};
  const RecordedModel model{.make = [options] { return std::make_unique<tensor_training::GqaModel>(options); },
                            .plan = tensor_training::gqa_plan(options)};
  check_meshes(model, {.micro_batches = 4, .tensor_slices = 6},
               {{3, {{"tp", 3}}}, {6, {{"tp", 6}}}, {12, {{"fsdp", 4}, {"tp", 3}}}});
}

TEST_CASE("calls of a module for one piece of the sequence are not recorded") {
  for (const bool is_frozen : {false, true}) {
    CAPTURE(is_frozen);
    const RecordedModel model{.make = [is_frozen] { return std::make_unique<PiecewiseNet>(is_frozen); },
                              .plan = {{"tokens", par::SequenceParallel{}},
                                       {"outer", par::SequenceParallel{}},
                                       {"up", par::ColwiseParallel{}},
                                       {"down", par::RowwiseParallel{}},
                                       {"head", par::SequenceParallel{}}}};
    check_meshes(model, {.micro_batches = 4, .tensor_slices = 4, .sequence_parallel = true},
                 {{1, {{"dp", 1}}}, {2, {{"tp", 2}}}, {4, {{"tp", 4}}}, {4, {{"dp", 2}, {"tp", 2}}}});
  }
}

TEST_CASE("the second run of a mesh goes to the subdirectory 2 on all ranks") {
  const RecordedModel model{
      .make = [] { return std::make_unique<EncoderNet>(); },
      .plan = {{"blocks.*.linear1", par::ColwiseParallel{}}, {"blocks.*.linear2", par::RowwiseParallel{}}}};
  record_in("mesh_record_twice", {4, {{"dp", 2}, {"tp", 2}}}, model, {.micro_batches = 4, .tensor_slices = 2}, 2);
  const diff::RunRecord first = diff::read_run("mesh_record_twice"), second = diff::read_run("mesh_record_twice/2");
  CHECK(diff::compare(first, second, {}).is_equal());
  for (int rank = 0; rank < 4; ++rank)
    CHECK(std::filesystem::exists(fmt::format("mesh_record_twice/2/rank{}.jsonl", rank)));
}
