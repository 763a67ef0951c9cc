// Exercise 0: the predicted bytes against the traffic counters of a real step.
#include <array>

#include "harness.h"

namespace grader {
namespace {

constexpr double kTolerance = 0.01;  // the loss, and the metadata of a bucket

struct Variant {
  int inputs = 784, hidden = 128, classes = 10, batch = 32;
};

Variant variant_of(std::uint64_t seed) {
  if (seed == 0) return {};
  Dice dice(seed);
  return {.inputs = 8 * (50 + dice.roll(60)),
          .hidden = 8 * (10 + dice.roll(20)),
          .classes = 5 + dice.roll(20),
          .batch = 8 * (2 + dice.roll(7))};
}

struct Mlp : ls::nn::Module {
  ls::nn::Linear &fc1, &fc2;
  explicit Mlp(const Variant& v)
      : fc1(add<ls::nn::Linear>("fc1", v.inputs, v.hidden)), fc2(add<ls::nn::Linear>("fc2", v.hidden, v.classes)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

template <class Mode>
void step(Mode& mode, const Mlp& mlp, const Variant& v, int samples) {
  const ls::Tensor x = ls::randn({samples, v.inputs}), y = ls::randint(0, v.classes, {samples});
  const ls::nn::CrossEntropyLoss criterion;
  mode.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(mlp(x), y); });
}

Links run_dp(const Variant& v, int devices) {
  Mlp mlp(v);
  std::vector<ls::Device> all;
  for (int d = 0; d < devices; ++d) all.emplace_back("cpu:" + std::to_string(d));
  par::DataParallel dp(mlp, all);
  step(dp, mlp, v, v.batch);
  Links links;
  add_step(links, dp.traffic());
  return links;
}

Links run_ddp(const Variant& v, int ranks) {
  Links links;
  run_ranks(ranks, [&](const Group& group) {
    Mlp mlp(v);
    par::DistributedDataParallel ddp(mlp, group);
    step(ddp, mlp, v, v.batch / ranks);
    add_step(links, group->traffic());
  });
  return links;
}

std::int64_t through(const Links& links, int end) {
  std::int64_t bytes = 0;
  for (const auto& [ends, sent] : links) bytes += ends.first == end || ends.second == end ? sent.bytes : 0;
  return bytes;
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string&) {
  const auto answers = std::make_shared<Answers>(file);
  const Variant v = variant_of(seed_of(answers.get()));
  print_task(text("an MLP ", v.inputs, " -> ", v.hidden, " -> ", v.classes, ", a batch of ", v.batch, " samples"));
  Links dp2 = run_dp(v, 2), dp4 = run_dp(v, 4), ddp2 = run_ddp(v, 2), ddp4 = run_ddp(v, 4);
  const std::array<std::pair<std::string, std::int64_t>, 7> counted = {{
      {"dp_2_from_device_0_to_1", dp2[{0, 1}].bytes},
      {"dp_2_from_device_1_to_0", dp2[{1, 0}].bytes},
      {"dp_4_from_device_0_to_1", dp4[{0, 1}].bytes},
      {"dp_4_through_device_0", through(dp4, 0)},
      {"ddp_2_from_rank_0_to_1", ddp2[{0, 1}].bytes},
      {"ddp_4_from_rank_0_to_1", ddp4[{0, 1}].bytes},
      {"ddp_4_sent_by_rank_0", sent_by(ddp4, 0).bytes},
  }};
  std::vector<Check> all;
  for (const auto& [key, bytes] : counted)
    all.push_back({key, [answers, key = key, bytes = bytes] {
                     return require_near(answers->number(key), static_cast<double>(bytes), kTolerance, " bytes");
                   }});
  return all;
}

}  // namespace grader
