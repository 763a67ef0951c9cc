// Exercise 0: what was predicted, beside the books of a real step.
#include <array>

#include "harness.h"

namespace grader {
namespace {

constexpr std::int64_t kBatch = 32;
constexpr double kTolerance = 0.01;  // loss, and what else travels with a bucket

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 784, 128);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 128, 10);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

template <class Mode>
void step(Mode& mode, const Mlp& mlp, std::int64_t rows) {
  const ls::Tensor x = ls::randn({rows, 784}), y = ls::randint(0, 10, {rows});
  const ls::nn::CrossEntropyLoss criterion;
  mode.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(mlp(x), y); });
}

Links run_dp(int devices) {
  Mlp mlp;
  std::vector<ls::Device> all;
  for (int d = 0; d < devices; ++d) all.emplace_back("cpu:" + std::to_string(d));
  par::DataParallel dp(mlp, all);
  step(dp, mlp, kBatch);
  Links links;
  add_step(links, dp.traffic());
  return links;
}

Links run_ddp(int ranks) {
  Links links;
  run_ranks(ranks, [&](const Group& group) {
    Mlp mlp;
    par::DistributedDataParallel ddp(mlp, group);
    step(ddp, mlp, kBatch / ranks);
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
  Links dp2 = run_dp(2), dp4 = run_dp(4), ddp2 = run_ddp(2), ddp4 = run_ddp(4);
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
