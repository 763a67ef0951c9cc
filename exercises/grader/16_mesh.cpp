// Exercise 16: memory, bytes and time of meshes, calculated on paper. Memory and bytes are those of real steps of a GPT.
#include <algorithm>
#include <mutex>

#include "harness.h"

namespace grader {
namespace {

constexpr int kRanks = 4, kMicroBatches = 8, kHeads = 4;
constexpr double kTolerance = 0.01, kTie = 0.03;

struct Variant {
  std::int64_t width = 64, layers = 6, context = 64, vocabulary = 512;
  int sequences = 2;        // of a micro-batch
  double computing_ms = 8;  // of a rank in a step
};

// No variant needs padding, and all have stages of equal numbers of modules.
Variant variant_of(std::uint64_t seed) {
  if (seed == 0) return {};
  Dice dice(seed);
  Variant v;
  v.width = 64 + 64 * dice.roll(2);
  v.layers = 6 + 4 * dice.roll(2);
  v.context = 32 + 32 * dice.roll(2);
  v.vocabulary = 256 + 64 * dice.roll(9);
  v.sequences = 1 + dice.roll(3);
  v.computing_ms = (dice.roll(2) == 0 ? 1 : 16) * (v.width > 64 ? 3 : 1);
  return v;
}

struct Attention : ls::nn::Module {
  std::int64_t head;
  ls::nn::Linear &qkv, &proj;
  explicit Attention(const Variant& v)
      : head(v.width / kHeads), qkv(add<ls::nn::Linear>("qkv", v.width, 3 * v.width)),
        proj(add<ls::nn::Linear>("proj", v.width, v.width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto heads = [&](const ls::Tensor& t) { return t.reshape({t.size(0), t.size(1), -1, head}).transpose(1, 2); };
    const auto parts = ls::chunk(qkv(x), 3, -1);
    return proj(ls::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {.is_causal = true})
                    .transpose(1, 2)
                    .flatten(2));
  }
};

struct Block : ls::nn::Module {
  ls::nn::LayerNorm& norm1;
  Attention& attention;
  ls::nn::LayerNorm& norm2;
  ls::nn::Linear &up, &down;
  explicit Block(const Variant& v)
      : norm1(add<ls::nn::LayerNorm>("norm1", ls::Shape{v.width})), attention(add<Attention>("attention", v)),
        norm2(add<ls::nn::LayerNorm>("norm2", ls::Shape{v.width})), up(add<ls::nn::Linear>("up", v.width, 4 * v.width)),
        down(add<ls::nn::Linear>("down", 4 * v.width, v.width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = x + attention(norm1(x));
    return y + down(ls::gelu(up(norm2(y))));
  }
};

struct Embed : ls::nn::Module {
  ls::nn::Embedding &tokens, &positions;
  explicit Embed(const Variant& v)
      : tokens(add<ls::nn::Embedding>("tokens", v.vocabulary, v.width)),
        positions(add<ls::nn::Embedding>("positions", v.context, v.width)) {}
  ls::Tensor forward(const ls::Tensor& ids) const override { return tokens(ids) + positions(ls::arange(ids.size(1))); }
};

struct Head : ls::nn::Module {
  ls::nn::LayerNorm& norm;
  ls::nn::Linear& logits;
  explicit Head(const Variant& v)
      : norm(add<ls::nn::LayerNorm>("norm", ls::Shape{v.width})),
        logits(add<ls::nn::Linear>("logits", v.width, v.vocabulary, ls::nn::LinearOptions{.bias = false})) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return logits(norm(x)); }
};

struct Gpt : ls::nn::Module {
  Embed& embed;
  ls::nn::ModuleList& blocks;
  Head& head;
  explicit Gpt(const Variant& v)
      : embed(add<Embed>("embed", v)), blocks(add<ls::nn::ModuleList>("blocks")), head(add<Head>("head", v)) {
    for (std::int64_t i = 0; i < v.layers; ++i) blocks.push_back(Block(v));
    set_parameters(*this);
    head.logits.weight = embed.tokens.weight;
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = embed(ids);
    for (const ls::nn::Module& block : blocks) x = block(x);
    return head(x);
  }
};

// Numbers of the rank with the largest ones.
struct Measured {
  std::int64_t memory = 0;  // parameters, gradients, Adam's state, unit buffers
  double sent = 0;          // activations, gradients and parameters in a step
};

// A step on a mesh of one axis.
Measured run_step(const Variant& v, const std::string& axis) {
  Measured most;
  std::mutex mutex;
  run_ranks(kRanks, [&](const Group& group) {
    const par::DeviceMesh mesh(group, {{axis, kRanks}});
    Gpt gpt(v);
    const bool has_stages = axis == "pp";
    par::Parallel run(
        gpt, mesh,
        {.partition = {.micro_batches = kMicroBatches, .tensor_slices = 0},
         .plan = {{"embed.tokens", par::VocabParallel{}},
                  {"blocks.*.attention.qkv", par::ColwiseParallel{.parts = 3}},
                  {"blocks.*.attention.proj", par::RowwiseParallel{}},
                  {"blocks.*.up", par::ColwiseParallel{}},
                  {"blocks.*.down", par::RowwiseParallel{}},
                  {"head.logits", par::VocabParallel{.gather_output = false}}},
         .chain = has_stages ? std::vector<std::string>{"embed", "blocks.*", "head"} : std::vector<std::string>(),
         .stage = 3,
         .units = {"blocks.*"}});
    const par::VocabCrossEntropyLoss criterion(gpt, "head.logits");
    const std::int64_t samples = run.micro_batches() * v.sequences;
    const ls::Tensor ids = (ls::arange(samples * v.context) % v.vocabulary).reshape({samples, v.context});
    run.backward(ids, ids, [&](const ls::Tensor& x, const ls::Tensor& y) {
      return criterion(run.module()(x).flatten(0, 1), y.flatten());
    });
    double sent = 0;
    for (const par::LinkTraffic& link : group->traffic().links()) {
      const bool is_counted = link.phase == par::Phase::kActivations || link.phase == par::Phase::kGradients ||
                              link.phase == par::Phase::kActivationGradients;
      if (is_counted) sent += static_cast<double>(link.bytes);
    }
    const std::scoped_lock lock(mutex);
    most.memory = std::max(most.memory, run.training_plan().memory_bytes());
    most.sent = std::max(most.sent, sent);
  });
  return most;
}

double all_reduce_ms(const par::Link& link, double bytes) {
  return 2e3 * link.seconds((kRanks - 1.0) / kRanks * bytes);
}

// The rules of the README.
struct Times {
  double dp, tp, pp;
};
Times times_of(const Variant& v, const par::Link& link) {
  const auto h = static_cast<double>(v.width), layers = static_cast<double>(v.layers),
             tokens = static_cast<double>(v.vocabulary);
  const double activation = 4.0 * v.sequences * static_cast<double>(v.context) * h,
               parameters = layers * (12 * h * h + 13 * h) + (tokens + static_cast<double>(v.context) + 2) * h;
  return {.dp = v.computing_ms + all_reduce_ms(link, 4 * parameters),
          .tp = v.computing_ms + kMicroBatches * (4 * layers + 2) * all_reduce_ms(link, activation),
          .pp = v.computing_ms * (kMicroBatches + kRanks - 1) / kMicroBatches +
                1e3 * (2 * (kRanks - 1) * link.seconds(activation) + 2 * link.seconds(4 * tokens * h))};
}

// The fastest of the meshes. The rules are no measurements, so variants have no ties.
std::string fastest(std::vector<std::pair<double, std::string>> meshes) {
  std::sort(meshes.begin(), meshes.end());
  if (meshes[1].first < (1 + kTie) * meshes[0].first)
    throw ls::Error(text("meshes ", meshes[0].second, " and ", meshes[1].second, " take ", meshes[0].first, " and ",
                         meshes[1].first, " ms"));
  return meshes[0].second;
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string&) {
  const auto answers = std::make_shared<Answers>(file);
  const Variant v = variant_of(seed_of(answers.get()));
  print_task(text(v.layers, " layers, width ", v.width, ", ", v.context, " positions, ", v.vocabulary, " tokens; ",
                  v.sequences, " sequences in a micro-batch; ", v.computing_ms, " ms of computing"));
  const Measured dp = run_step(v, "dp"), fsdp = run_step(v, "fsdp"), tp = run_step(v, "tp"), pp = run_step(v, "pp");
  const auto limit = static_cast<std::int64_t>(0.75 * static_cast<double>(dp.memory));
  if (tp.memory > limit || pp.memory > limit) throw ls::Error("tp or pp needs more than three quarters of dp's memory");

  std::vector<Check> all;
  const auto add = [&](const std::string& key, double want, double tolerance, const std::string& unit) {
    all.push_back({key, [=] { return require_near(answers->number(key), want, tolerance, unit); }});
  };
  const auto add_word = [&](const std::string& key, const std::string& want) {
    all.push_back({key, [=] {
                     const std::string word = answers->word(key);
                     require(word == "dp" || word == "tp" || word == "pp", "\"", word, "\", expected dp, tp or pp");
                     require(word == want, word, " is not the fastest that fits");
                     return word;
                   }});
  };
  add("memory_of_dp", static_cast<double>(dp.memory), 0, " bytes");
  add("memory_of_fsdp", static_cast<double>(fsdp.memory), 0, " bytes");
  add("memory_of_tp", static_cast<double>(tp.memory), 0, " bytes");
  add("memory_of_pp", static_cast<double>(pp.memory), 0, " bytes");
  add("sent_by_dp", dp.sent, kTolerance, " bytes");
  add("sent_by_tp", tp.sent, kTolerance, " bytes");
  add("sent_by_pp", pp.sent, kTolerance, " bytes");
  const Times slow = times_of(v, par::find_link("10GbE")), fast = times_of(v, par::find_link("NVLink"));
  add("ms_of_dp", slow.dp, kTolerance, " ms");
  add("ms_of_tp", slow.tp, kTolerance, " ms");
  add("ms_of_pp", slow.pp, kTolerance, " ms");
  add_word("first_choice", fastest({{slow.dp, "dp"}, {slow.tp, "tp"}, {slow.pp, "pp"}}));
  add_word("first_choice_on_small_devices", fastest({{fast.tp, "tp"}, {fast.pp, "pp"}}));
  return all;
}

}  // namespace grader
