// Records of cut models: equal on all layouts of a partition, and every change of one bit is named. Ranks are threads.
#include <atomic>
#include <bit>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/tensor/random/random.h"
#include "tests/parallel/model_parallel/tensor_training.h"
#include "tools/diff/first_difference.h"

using namespace tensor_training;

namespace {

constexpr int kRecordedSteps = 2;
constexpr std::uint32_t kMask = 1u << 20;

enum class Kind { kNone, kForward, kBackward, kGradient, kReduction, kOptimizer };
enum class Cut { kWhole, kColumns, kPositions };  // of an activation

// A change of one bit of what one rank has.
struct Fault {
  Kind kind = Kind::kNone;
  std::string name = {};     // of the module or parameter
  int rank = 0;              // of all; -1: all ranks
  std::int64_t element = 0;  // of the tensor on this rank
  Cut cut = Cut::kWhole;
  std::string seen = {};  // the module whose input has the changed gradient
  std::int64_t parts = 1;
  int step = 1, micro_batch = 1;
};

void flip(const ls::Tensor& t, std::int64_t element, std::uint32_t mask) {
  static_cast<std::uint32_t*>(t.raw_data())[element] ^= mask;
}

// What a rank of a layout records.
struct Rank {
  int number, tp;  // among all ranks, and along the axis tp
  const Fault& fault;
  std::int64_t& whole_element;  // of the changed tensor
  int step = 0;
  std::string piece = {};  // the changed parameter of this rank, which may be a slice

  bool is_faulty() const { return fault.rank < 0 || fault.rank == number; }
  bool is_now() const {
    return is_faulty() && step == fault.step && ls::random::current_micro_batch() == fault.micro_batch;
  }
};

std::int64_t element_in_whole(const Fault& fault, const ls::Shape& own, int ranks, int rank) {
  const std::int64_t e = fault.element, last = own[own.size() - 1], before = own[own.size() - 2];
  if (fault.cut == Cut::kColumns) {
    const std::int64_t run = last / fault.parts, column = e % last;
    return e / last * last * ranks + column / run * run * ranks + rank * run + column % run;
  }
  if (fault.cut == Cut::kPositions) return (e / (before * last) * ranks + rank) * before * last + e % (before * last);
  return e;
}

class FaultyReduction final : public par::CommHook {
 public:
  explicit FaultyReduction(const Rank& rank) : rank_(rank) {}
  std::shared_ptr<par::Work> start(const par::GradBucket& bucket, par::ProcessGroup& group) override {
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      if (rank_.step == rank_.fault.step && rank_.is_faulty() && bucket.names[i] == rank_.piece)
        flip(bucket.gradients[i], rank_.fault.element, kMask);
    }
    return group.all_reduce_scaled(bucket.buffer, 1.0 / group.size());
  }
  std::string describe() const override { return "faulty"; }

 private:
  const Rank& rank_;
};

nn::Module& module_at(nn::Module& module, const std::string& path) {
  for (nn::Module* const child : module.children()) {
    if (path == child->name()) return *child;
    if (path.starts_with(child->name() + ".")) return module_at(*child, path.substr(child->name().size() + 1));
  }
  return module;
}

ls::Tensor changed(const ls::Tensor& gradient, std::int64_t element) {
  const ls::Tensor other = gradient.contiguous().clone();
  flip(other, element, kMask);
  return other;
}

void install_in_module(nn::Module& model, Rank& rank, int ranks) {
  module_at(model, rank.fault.name)
      .register_forward_hook([&rank, ranks](const nn::Module&, const std::vector<ls::Tensor>&, const ls::Tensor& y) {
        if (!rank.is_now() || !ls::autograd::grad_mode()) return ls::Tensor();
        rank.whole_element = element_in_whole(rank.fault, y.shape(), ranks, rank.tp);
        if (rank.fault.kind == Kind::kForward) {
          REQUIRE(y.is_contiguous());
          flip(y, rank.fault.element, 1);
        } else {
          y.register_hook([e = rank.fault.element](const ls::Tensor& gradient) { return changed(gradient, e); });
        }
        return ls::Tensor();
      });
}

std::string whole_name(const par::ShardedParameter& each) {
  const nn::ParameterSlice* const slice = each.parameter.slice();
  return slice ? slice->name : each.name;
}

std::int64_t place_of(const par::ShardedParameter& each, std::int64_t i) {
  const nn::ParameterSlice* const slice = each.parameter.slice();
  return slice ? slice->part.at(each.part.at(i)) : each.part.at(i);
}

// The first piece of the parameter that has the element.
const par::ShardedParameter* piece_of(const std::vector<par::ShardedParameter>& pieces, const Fault& fault) {
  for (const par::ShardedParameter& each : pieces) {
    if (whole_name(each) == fault.name && each.part.numel > fault.element) return &each;
  }
  return nullptr;
}

template <class Run>
void install(Run& run, Rank& rank, const Layout& layout) {
  const Kind kind = rank.fault.kind;
  if (kind == Kind::kForward || kind == Kind::kBackward) return install_in_module(run.module(), rank, layout.tp);
  if (!rank.is_faulty() || kind == Kind::kNone) return;
  const std::vector<par::ShardedParameter> pieces = run.named_parameters();
  const par::ShardedParameter* const piece = piece_of(pieces, rank.fault);
  REQUIRE(piece);
  rank.piece = piece->name;
  rank.whole_element = place_of(*piece, rank.fault.element);
  if (kind != Kind::kGradient) return;
  piece->parameter.master().register_hook([&rank](const ls::Tensor& gradient) {
    return rank.is_now() ? changed(gradient, rank.fault.element) : ls::Tensor();
  });
}

template <class Run>
void train_recorded(Run& run, Rank& rank, const Layout& layout, const ModelOptions& options, int d,
                    const std::string& directory) {
  install(run, rank, layout);
  if constexpr (std::is_same_v<Run, par::DistributedDataParallel>) {
    if (rank.fault.kind == Kind::kReduction) run.register_comm_hook(std::make_shared<FaultyReduction>(rank));
  }
  const par::Recorder recorder(run, directory, {.values = true});
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  Outcome outcome;
  for (rank.step = 0; rank.step < kRecordedSteps; ++rank.step) {
    train_steps(run, optimizer, layout, options, d, rank.step, rank.step + 1, outcome);
    if (rank.fault.kind != Kind::kOptimizer || rank.step != rank.fault.step || !rank.is_faulty()) continue;
    flip(piece_of(run.named_parameters(), rank.fault)->parameter.master(), rank.fault.element, 1);
  }
}

// The rank along tp, by the slices of a layer.
int tp_rank(const nn::Module& model, int local_slices) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.slice()) return parameter.slice()->index / local_slices;
  }
  return 0;
}

// Returns the changed element of the whole tensor.
std::int64_t record(int slices, const Layout& layout, const ModelOptions& options, const std::string& directory,
                    const Fault& fault = {}) {
  std::filesystem::remove_all(directory);
  std::atomic<std::int64_t> element = -1;
  on_mesh_of_threads(slices, layout, options, [&](auto& run, Model& model, int d) {
    std::int64_t own_element = -1;
    const int tp = tp_rank(model, slices / layout.tp);
    Rank rank{.number = d * layout.tp + tp, .tp = tp, .fault = fault, .whole_element = own_element};
    train_recorded(run, rank, layout, options, d, directory);
    if (own_element >= 0) element = own_element;
  });
  return element;
}

// The record of one process, which is read once for all comparisons.
diff::RunRecord record_one(int slices, const ModelOptions& options) {
  record(slices, {}, options, "one");
  return diff::read_run("one");
}

void check_equal(int slices, const ModelOptions& options, const std::vector<Layout>& layouts) {
  const diff::RunRecord one = record_one(slices, options);
  for (const Layout& layout : layouts) {
    CAPTURE(slices);
    CAPTURE(layout.describe());
    record(slices, layout, options, "other");
    for (int rank = 0; rank < layout.ranks(); ++rank)
      CHECK(std::filesystem::exists(fmt::format("other/rank{}.jsonl", rank)));
    const diff::Comparison comparison = diff::compare(one, diff::read_run("other"), {});
    if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key), ": ", comparison.first->what_differs);
    CHECK(comparison.is_equal());
    INFO(comparison.example);
    CHECK(comparison.only_a + comparison.only_b == 0);
    CHECK(comparison.steps == kRecordedSteps);
    CHECK(comparison.equal > kRecordedSteps * (kMicroBatches * (20 + 20 + 15) + 2 * 20));
  }
}

diff::What what_of(Kind kind) {
  return kind == Kind::kForward     ? diff::What::kOutput
         : kind == Kind::kBackward  ? diff::What::kInputGradient
         : kind == Kind::kGradient  ? diff::What::kMicroBatchGradient
         : kind == Kind::kReduction ? diff::What::kGradient
                                    : diff::What::kParameter;
}

// `other`: the ranks that have the tensor as well, without the change.
void check_named(const diff::RunRecord& one, int slices, const Layout& layout, const ModelOptions& options,
                 const Fault& fault, const std::vector<int>& other = {}) {
  CAPTURE(layout.describe());
  CAPTURE(fault.name);
  const std::int64_t element = record(slices, layout, options, "faulty", fault);
  const diff::Comparison comparison = diff::compare(one, diff::read_run("faulty"), {});
  REQUIRE(comparison.first);
  const diff::Difference& first = *comparison.first;
  INFO("found: ", diff::describe(first.key));
  CHECK(first.key.what == what_of(fault.kind));
  CHECK(first.key.name == (fault.seen.empty() ? fault.name : fault.seen));
  CHECK(first.key.step == fault.step);
  CHECK(first.key.micro_batch == (fault.kind >= Kind::kReduction ? -1 : fault.micro_batch));
  CHECK(first.element == element);
  CHECK(first.differing == 1);
  CHECK(first.within == (other.empty() ? "" : "faulty"));
  if (other.empty() && fault.rank >= 0) CHECK(first.b.rank == fault.rank);
  if (!other.empty()) {
    CHECK((fault.rank < other[0] ? first.ranks_a : first.ranks_b) == std::vector{fault.rank});
    CHECK((fault.rank < other[0] ? first.ranks_b : first.ranks_a) == other);
  }
  if (fault.kind != Kind::kReduction) CHECK(std::popcount(first.a.bits ^ first.b.bits) == 1);
}

}  // namespace

TEST_CASE("records of cut models are equal on all layouts of a partition") {
  const std::vector<Layout> of_two = {{2, 1}, {1, 2}, {2, 2}, {2, 2, 1}, {2, 2, 2}, {2, 2, 3}},
                            of_four = {{4, 1}, {2, 1}, {2, 2}, {4, 2, 3}};
  check_equal(2, {}, of_two);
  check_equal(4, {.fused = true, .gated = true, .dropout = 0.1}, of_four);
  check_equal(2, {.fused = true, .recompute = true, .dropout = 0.1}, {{2, 1}, {2, 2, 3}});
  check_equal(4, {.vocabulary = true, .gathers = false}, of_four);
  check_equal(4, {.vocabulary = true, .tied = true, .partial_recompute = true}, {{4, 1}, {2, 2, 2}});
}

TEST_CASE("records of models with sequence parallelism are equal on all layouts of a partition") {
  check_equal(2, {.sequence = true}, {{2, 1}, {2, 2}, {2, 2, 3}});
  check_equal(4, {.fused = true, .gated = true, .vocabulary = true, .sequence = true, .dropout = 0.1},
              {{2, 1}, {4, 1}, {4, 2, 2}});
  check_equal(4, {.vocabulary = true, .gathers = false, .recompute_style = true, .sequence = true}, {{2, 1}, {4, 1}});
}

TEST_CASE("a change of one bit of a cut model is named: tensor, element of the whole tensor and rank") {
  const ModelOptions options{.fused = true};
  const std::string mlp = "blocks.1.mlp.", attention = "blocks.0.attention.";
  const diff::RunRecord one = record_one(4, options);
  for (const Layout& layout : {Layout{2, 1}, Layout{4, 1}, Layout{2, 2}, Layout{2, 2, 3}}) {
    if (LOCKSTEP_SLOWDOWN > 1 && layout.tp == 4) continue;
    // Rank 1 has the micro-batches 0 and 1 on all layouts, and columns other than the first.
    const bool is_replicated = layout.dp > 1 && layout.stage == 0;
    std::vector<int> others;  // along tp
    for (int r = 0; r < layout.tp; ++r) {
      if (r != 1) others.push_back(r);
    }
    const auto check = [&](const Fault& fault, const std::vector<int>& other = {}) {
      check_named(one, 4, layout, options, fault, other);
    };
    check({Kind::kForward, mlp + "up", 1, 77, Cut::kColumns});
    check({Kind::kForward, attention + "qkv", 1, 103, Cut::kColumns, "", 3});
    check({Kind::kForward, "blocks.0.mlp.down", 1, 9}, others);
    check({Kind::kForward, "blocks.0", 1, 200}, others);
    check({Kind::kBackward, mlp + "inner", 1, 30, Cut::kColumns, mlp + "down"});
    check({Kind::kBackward, "blocks.0.norm2", 1, 30, Cut::kWhole, "blocks.0.mlp"}, others);
    const int owner = layout.stage == 3 ? 3 : 1;  // of shards of the second half of a block
    check({Kind::kOptimizer, mlp + "up.weight", owner, 40}, is_replicated ? std::vector{3} : std::vector<int>());
    check({Kind::kOptimizer, mlp + "down.weight", owner, 41}, is_replicated ? std::vector{3} : std::vector<int>());
    check({Kind::kOptimizer, attention + "qkv.bias", 1, 5}, is_replicated ? std::vector{3} : std::vector<int>());
    if (layout.stage == 0) check({Kind::kGradient, mlp + "down.weight", 1, 19});
    if (is_replicated) check({Kind::kReduction, mlp + "down.weight", 1, 23});
    if (is_replicated) check({Kind::kReduction, attention + "qkv.weight", 1, 23});
    if (layout.dp > 1) continue;
    check({Kind::kForward, "blocks.0.mlp.down", -1, 9});  // as by a sum over tp with other bits
    check({Kind::kBackward, "blocks.0.norm2", -1, 30, Cut::kWhole, "blocks.0.mlp"});
  }
}

TEST_CASE("a change of one bit of a model with sequence parallelism is named") {
  const ModelOptions options{.sequence = true};
  const diff::RunRecord one = record_one(4, options);
  for (const Layout& layout : {Layout{2, 1}, Layout{4, 1}, Layout{2, 2}}) {
    if (LOCKSTEP_SLOWDOWN > 1 && layout.tp == 4) continue;
    const auto check = [&](const Fault& fault) { check_named(one, 4, layout, options, fault); };
    check({Kind::kForward, "blocks.1.norm1", 1, 90, Cut::kPositions});
    check({Kind::kForward, "blocks.0.mlp.down", 1, 90, Cut::kPositions});
    check({Kind::kForward, "blocks.0.mlp.up", 1, 90, Cut::kColumns});
    check({Kind::kBackward, "blocks.0.norm2", 1, 33, Cut::kPositions, "blocks.0.mlp"});
    check({Kind::kBackward, "blocks.0.mlp.inner", 1, 33, Cut::kColumns, "blocks.0.mlp.down"});
    check({Kind::kGradient, "blocks.0.mlp.up.weight", 1, 19});
  }
}

TEST_CASE("a change of one bit of logits is named by its token, also if each rank has some tokens") {
  const ModelOptions options{.vocabulary = true, .gathers = false};
  const diff::RunRecord one = record_one(4, options);
  // Slices have 5, 5, 5 and 4 of 19 tokens. With two ranks, the element is position 2 and token 3 of rank 1's 9.
  const std::int64_t in_whole = 2 * 19 + 10 + 3;
  const Fault fault{Kind::kForward, "head", 1, 2 * 9 + 3};
  record(4, {2, 1}, options, "faulty", fault);
  const diff::Comparison comparison = diff::compare(one, diff::read_run("faulty"), {});
  REQUIRE(comparison.first);
  CHECK(diff::describe(comparison.first->key) == "the output of head in micro-batch 1 of step 1");
  CHECK(comparison.first->element == in_whole);
  CHECK(comparison.first->differing == 1);
  CHECK(comparison.first->b.rank == 1);
}
