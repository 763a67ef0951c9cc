// Exercise 11: memory and traffic of each ZeRO stage, calculated on paper, against the plan of a ShardedDataParallel. A real
// step must send the bytes of the plan.
#include "harness.h"

namespace grader {
namespace {

struct Variant {
  int width = 96, layers = 6, classes = 10;
  int ranks = 4;
};

// In all variants parts of the model need padding.
Variant variant_of(std::uint64_t seed) {
  if (seed == 0) return {};
  Dice dice(seed);
  return {.width = 72 + 8 * dice.roll(8),
          .layers = 4 + dice.roll(6),
          .classes = 5 + dice.roll(10),
          .ranks = 2 << dice.roll(3)};
}

struct Net : ls::nn::Module {
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  ls::nn::Linear& head;
  explicit Net(const Variant& v) : head(add<ls::nn::Linear>("head", v.width, v.classes)) {
    for (int i = 0; i < v.layers; ++i) blocks.push_back(ls::nn::Linear(v.width, v.width));
    set_parameters(*this);
  }
  ls::Tensor forward(const ls::Tensor& input) const override {
    ls::Tensor x = input;
    for (const ls::nn::Module& block : blocks) x = ls::relu(block(x));
    return head(x);
  }
};

// The plan of rank 0. Throws unless a step of rank 0 sends the bytes of the plan.
par::ShardedPlan plan_of(const Variant& v, int stage, int micro_batches) {
  par::ShardedPlan plan;
  Links links;
  run_ranks(v.ranks, [&](const Group& group) {
    Net net(v);
    par::ShardedDataParallel run(net, group, {.stage = stage, .micro_batches_per_rank = micro_batches});
    run.backward(ls::ones({micro_batches, v.width}), ls::ones({micro_batches, v.classes}),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(net(x), y); });
    add_step(links, group->traffic());
    if (group->rank() == 0) plan = run.plan();
  });
  const std::int64_t sent = sent_by(links, 0).bytes;
  if (sent != plan.bytes_per_step)
    throw ls::Error(text("a step of stage ", stage, " sends ", sent, " bytes, planned are ", plan.bytes_per_step));
  return plan;
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string&) {
  const auto answers = std::make_shared<Answers>(file);
  const Variant v = variant_of(seed_of(answers.get()));
  print_task(text(v.layers, " layers ", v.width, " -> ", v.width, ", a head ", v.width, " -> ", v.classes, ", ",
                  v.ranks, " ranks"));
  std::vector<Check> all;
  const auto add = [&](const std::string& key, std::int64_t bytes) {
    const auto want = static_cast<double>(bytes);
    all.push_back({key, [answers, key, want] { return require_near(answers->number(key), want, 0, " bytes"); }});
  };
  const par::ShardedPlan stages[] = {plan_of(v, 1, 1), plan_of(v, 2, 1), plan_of(v, 3, 1)};
  add("padded_parameters", stages[0].parameter_bytes);
  for (int stage = 1; stage <= 3; ++stage) add(text("memory_of_stage_", stage), stages[stage - 1].memory_bytes());
  add("sent_by_stage_1", stages[0].gather_bytes + stages[0].reduce_bytes);
  add("sent_by_stage_3", stages[2].gather_bytes + stages[2].reduce_bytes);
  add("memory_of_stage_3_with_4_micro_batches", plan_of(v, 3, 4).memory_bytes());
  return all;
}

}  // namespace grader
