// lockstep-explain plan: the bytes and the memory of each mesh, against real steps of a GPT. Ranks are threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/groups.h"
#include "tools/explain_plan.h"

namespace par = ls::parallel;
namespace nn = ls::nn;
using par::Phase;

namespace {

constexpr int kRanks = 8;
constexpr double kHeader = 200,
                 kSummary = 1000;  // bytes of a message's header; most of a step's summary, not in the plan
constexpr plan::Gpt kGpt{.layers = 6, .width = 32, .heads = 4, .context = 32, .vocabulary = 48};

struct Attention : nn::Module {
  Attention()
      : qkv(add<nn::Linear>("qkv", kGpt.width, 3 * kGpt.width)), proj(add<nn::Linear>("proj", kGpt.width, kGpt.width)) {
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto heads = [&](const ls::Tensor& t) {
      return t.reshape({t.size(0), t.size(1), -1, kGpt.width / kGpt.heads}).transpose(1, 2);
    };
    const auto parts = ls::chunk(qkv(x), 3, -1);
    const ls::Tensor y =
        ls::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {.is_causal = true});
    return proj(y.transpose(1, 2).flatten(2));
  }
  nn::Linear &qkv, &proj;
};

struct Block : nn::Module {
  Block()
      : norm1(add<nn::LayerNorm>("norm1", ls::Shape{kGpt.width})), attention(add<Attention>("attention")),
        norm2(add<nn::LayerNorm>("norm2", ls::Shape{kGpt.width})),
        up(add<nn::Linear>("up", kGpt.width, 4 * kGpt.width)),
        down(add<nn::Linear>("down", 4 * kGpt.width, kGpt.width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = x + attention(norm1(x));
    return y + down(ls::gelu(up(norm2(y))));
  }
  nn::LayerNorm& norm1;
  Attention& attention;
  nn::LayerNorm& norm2;
  nn::Linear &up, &down;
};

struct Embed : nn::Module {
  Embed()
      : tokens(add<nn::Embedding>("tokens", kGpt.vocabulary, kGpt.width)),
        positions(add<nn::Embedding>("positions", kGpt.context, kGpt.width)) {}
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return tokens(in[0]) + positions(in[1]);
  }
  nn::Embedding &tokens, &positions;
};

struct Head : nn::Module {
  Head()
      : norm(add<nn::LayerNorm>("norm", ls::Shape{kGpt.width})),
        logits(add<nn::Linear>("logits", kGpt.width, kGpt.vocabulary, nn::LinearOptions{.bias = false})) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return logits(norm(x)); }
  nn::LayerNorm& norm;
  nn::Linear& logits;
};

// GPT-2 in small.
struct Model : nn::Module {
  Model() : embed(add<Embed>("embed")), blocks(add<nn::ModuleList>("blocks")), head(add<Head>("head")) {
    head.logits.weight = embed.tokens.weight;
    for (std::int64_t i = 0; i < kGpt.layers; ++i) blocks.push_back(Block());
  }
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    ls::Tensor x = embed(in);
    for (nn::Module& block : blocks) x = block(x);
    return head(x);
  }
  Embed& embed;
  nn::ModuleList& blocks;
  Head& head;
};

// Paths of the modules with which stages begin.
std::vector<std::string> begins_of(const plan::Job& job, const plan::Mesh& mesh) {
  const std::vector<std::size_t> begins = plan::estimate(job, mesh).begins;
  std::vector<std::string> paths;
  for (std::size_t s = 1; s + 1 < begins.size(); ++s)
    paths.push_back(begins[s] == static_cast<std::size_t>(kGpt.layers) + 1 ? "head"
                                                                           : "blocks." + std::to_string(begins[s] - 1));
  return paths;
}

// One rank's bytes.
struct Measured {
  plan::SentBytes sent;
  std::int64_t training = 0;  // parameters, gradients, optimizer states and units
};

double bytes_in(const Group& group, const std::vector<Phase>& phases) {
  std::int64_t bytes = 0;
  for (const par::LinkTraffic& link : group->traffic().step_links())
    bytes += std::ranges::find(phases, link.phase) != phases.end() ? link.bytes : 0;
  return static_cast<double>(bytes);
}

Measured run_rank(const Group& group, const plan::Job& job, const plan::Mesh& layout) {
  std::vector<par::MeshAxis> axes = {
      {"pp", layout.pp}, {"dp", layout.dp}, {"fsdp", layout.fsdp}, {"cp", layout.cp}, {"tp", layout.tp}};
  std::erase_if(axes, [](const par::MeshAxis& axis) { return axis.size == 1; });
  const par::DeviceMesh mesh(group, axes);
  const auto along = [&](const std::string& axis, const std::vector<Phase>& phases) {
    const bool has_axis = std::ranges::find(axes, axis, &par::MeshAxis::name) != axes.end();
    return has_axis ? bytes_in(mesh[axis].group(), phases) : 0;
  };
  Model model;
  par::Parallel run(
      model, mesh,
      {.partition = {.micro_batches = job.micro_batches, .tensor_slices = 0, .sequence_blocks = layout.cp},
       .plan = {{"embed.tokens", par::VocabParallel{}},
                {"blocks.*.attention.qkv",
                 par::ColwiseParallel{.parts = 3, .multiple_of = static_cast<int>(kGpt.width / kGpt.heads)}},
                {"blocks.*.attention.proj", par::RowwiseParallel{}},
                {"blocks.*.up", par::ColwiseParallel{}},
                {"blocks.*.down", par::RowwiseParallel{}},
                {"head.logits", par::VocabParallel{.gather_output = false}}},
       .chain = layout.pp > 1 ? std::vector<std::string>{"embed", "blocks.*", "head"} : std::vector<std::string>(),
       .split_before = layout.pp > 1 ? begins_of(job, layout) : std::vector<std::string>(),
       .schedule = layout.schedule,
       .chunks_per_rank = layout.chunks,
       .stage = std::max(1, layout.stage),
       .units = {"blocks.*"}});
  const par::VocabCrossEntropyLoss criterion(model, "head.logits");
  const std::int64_t samples = run.micro_batches() * job.sequences;
  const ls::Tensor ids = (ls::arange(samples * kGpt.context) % 48).reshape({samples, kGpt.context});
  const auto mine = run.split_sequence({ids, ls::arange(kGpt.context).expand(ids.shape()), ids});
  for (int step = 0; step < 2; ++step)
    run.backward({mine[0], mine[1]}, mine[2], [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
      return criterion(run.module()(x).flatten(0, 1), y.flatten());
    });
  Measured measured;
  measured.training = run.training_plan().memory_bytes();
  measured.sent.tensor = along("tp", {Phase::kActivations, Phase::kActivationGradients});
  measured.sent.context = along("cp", {Phase::kKeysValues, Phase::kActivationGradients});
  measured.sent.pipeline = along("pp", {Phase::kActivations, Phase::kActivationGradients, Phase::kGradients});
  if (layout.gradient_ranks() > 1) measured.sent.data = bytes_in(run.group(), {Phase::kGradients, Phase::kParameters});
  return measured;
}

}  // namespace

TEST_CASE(
    "plan: what ranks send along each axis, and what training keeps in memory, is what a real step of every mesh has") {
  PlanQuestion question;
  question.model = kGpt;
  question.micro_batches = 8;
  question.sequences = 2;
  question.ranks = kRanks;
  const SeenPlan seen = plan_of(question);
  CHECK(seen.feasible.size() > 20);
  std::size_t number = 0;
  for (const PlannedMesh& each : seen.feasible) {
    for (const plan::Mesh& mesh : modes_of(seen.job, each.mesh)) {
      if (++number % (LOCKSTEP_SLOWDOWN > 1 ? 7 : 1) != 0) continue;
      const std::string name = mesh.axes() + " " + mesh.mode();
      CAPTURE(name);
      std::mutex mutex;
      Measured busiest;
      std::vector<std::int64_t> training;
      with_threads("local", kRanks, [&](const Group& group) {
        const Measured own = run_rank(group, seen.job, mesh);
        const std::scoped_lock lock(mutex);
        if (own.sent.total() > busiest.sent.total()) busiest = own;
        training.push_back(own.training);
      });
      const plan::Estimate e = plan::estimate(seen.job, mesh);
      CHECK(e.sent.tensor == busiest.sent.tensor);
      CHECK(e.sent.context == busiest.sent.context);
      CHECK(e.sent.pipeline >= busiest.sent.pipeline);
      CHECK(std::fmod(e.sent.pipeline - busiest.sent.pipeline, kHeader) == 0);
      CHECK(e.sent.data <= busiest.sent.data);
      CHECK(e.sent.data >= busiest.sent.data - kSummary);
      CHECK(std::ranges::find(training, e.memory - e.activations) != training.end());
    }
  }
}

TEST_CASE("plan: the activations of a micro-batch are those that a forward leaves in memory, within 10 %") {
  PlanQuestion question;
  question.model = kGpt;
  for (const std::int64_t sequences : {2, 8}) {
    question.sequences = sequences;
    std::int64_t planned = 0;
    for (const plan::ChainModule& each : plan::chain_of(job_of(question), {})) planned += each.activations;
    const Model model;
    const ls::Tensor ids = (ls::arange(sequences * kGpt.context) % 48).reshape({sequences, kGpt.context});
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    const ls::Tensor logits = model({ids, ls::arange(kGpt.context).expand(ids.shape())});
    const ls::Tensor loss = nn::cross_entropy(logits.flatten(0, 1), ids.flatten());
    const auto kept = static_cast<double>(ls::allocator_stats().allocated_bytes - before);
    CHECK(static_cast<double>(planned) == doctest::Approx(kept).epsilon(0.1));
  }
}
