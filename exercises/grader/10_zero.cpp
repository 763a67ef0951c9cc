// Exercise 10: parameters bitwise identical to those of one process, the bytes of a step, and the memory that ranks keep.
#include <algorithm>
#include <span>

#include "harness.h"

namespace grader {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kSamples = 6;  // of a rank in a step
constexpr double kRate = 0.01;

struct Variant {
  std::int64_t hidden = 20;  // width of the first hidden layer
  double phase = 0;          // of the data
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  return {.hidden = 10 + dice.roll(40), .phase = 0.01 * dice.roll(300)};
}

struct Model : ls::nn::Module {
  ls::nn::Linear &fc1, &fc2;
  explicit Model(std::int64_t hidden = variant().hidden)
      : fc1(add<ls::nn::Linear>("fc1", 12, hidden)), fc2(add<ls::nn::Linear>("fc2", hidden, 5)) {
    set_parameters(*this);
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::tanh(fc1(x))); }
  std::int64_t elements() const {
    std::int64_t count = 0;
    for (const ls::nn::Parameter& parameter : parameters()) count += parameter->numel();
    return count;
  }
};

// The samples of all ranks in a step, one rank's after the other's.
ls::Tensor batch(int step, int ranks, std::int64_t columns) {
  const double count = static_cast<double>(ranks * kSamples * columns);
  return ls::cos(ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * 0.37 + step + variant().phase)
      .reshape({ranks * kSamples, columns});
}

ls::Tensor loss_of(const Model& model, const ls::Tensor& x, const ls::Tensor& y) {
  const ls::Tensor error = model(x) - y;
  return ls::mean(error * error);
}

using Values = std::vector<ls::Tensor>;  // in the order of parameters()

Values values_of(const Model& model) {
  Values all;
  for (const ls::nn::Parameter& parameter : model.parameters()) all.push_back(parameter->detach().clone());
  return all;
}

// The parameters after each step of one process that runs all micro-batches.
std::vector<Values> train_alone(int micro_batches) {
  Model model;
  ls::optim::Adam optimizer(model.parameters(), {.lr = kRate});
  par::GradientAccumulation run(model, {.micro_batches = micro_batches});
  std::vector<Values> steps;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    run.backward(batch(step, micro_batches, 12), batch(step, micro_batches, 5),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(model, x, y); });
    optimizer.step();
    steps.push_back(values_of(model));
  }
  return steps;
}

// Backward of a rank on its own samples.
void backward_of_rank(Model& model, const Group& group, int step) {
  model.zero_grad();
  const std::int64_t begin = group->rank() * kSamples;
  loss_of(model, batch(step, group->size(), 12).slice(0, begin, begin + kSamples),
          batch(step, group->size(), 5).slice(0, begin, begin + kSamples))
      .backward();
}

bool bitwise_equal(const ls::Tensor& a, const ls::Tensor& b) {
  return std::ranges::equal(std::as_bytes(a.span<float>()), std::as_bytes(b.span<float>()));
}

std::string check_bits(const std::vector<int>& sizes) {
  for (const int size : sizes) {
    const std::vector<Values> want = train_alone(size);
    run_ranks(size, [&](const Group& group) {
      Model model;
      const auto optimizer = exercises::make_sharded_adam(group, model, kRate);
      for (int step = 0; step < kSteps; ++step) {
        backward_of_rank(model, group, step);
        optimizer->step();
        const Values have = values_of(model);
        for (std::size_t i = 0; i < have.size(); ++i)
          require(bitwise_equal(have[i], want[static_cast<std::size_t>(step)][i]), size, " ranks, step ", step + 1,
                  ", rank ", group->rank(), ": the parameter ", model.named_parameters()[i].first,
                  " differs from that of one process");
      }
    });
  }
  return "bitwise identical to Adam in one process";
}

std::string check_bytes() {
  constexpr int kRanks = 4;
  Links links;
  run_ranks(kRanks, [&](const Group& group) {
    Model model;
    const auto optimizer = exercises::make_sharded_adam(group, model, kRate);
    backward_of_rank(model, group, 0);
    group->traffic().begin_step();
    optimizer->step();
    add_step(links, group->traffic());
  });
  const std::int64_t bytes = 4 * Model().elements(), least = 2 * (kRanks - 1) * bytes / kRanks;
  const std::int64_t most = least + 2 * (kRanks - 1) * 64;
  const Sent have = sent_by(links, 0);
  require(have.bytes >= least && have.bytes <= most, kRanks, " ranks: a rank sends ", have.bytes,
          " bytes in a step, expected ", least, " to ", most, ": a reduce-scatter and an all-gather");
  return text(have.bytes, " bytes of a rank in a step, for ", bytes, " bytes of parameters");
}

std::string check_memory() {
  constexpr int kRanks = 8;
  std::int64_t kept = 0, parameters = 0;
  run_ranks(kRanks, [&](const Group& group) {
    Model model(400);  // so large that small allocations do not matter
    group->barrier();
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    group->barrier();
    const auto optimizer = exercises::make_sharded_adam(group, model, kRate);
    backward_of_rank(model, group, 0);
    optimizer->step();
    model.zero_grad();
    group->barrier();
    if (group->rank() == 0) {
      kept = (ls::allocator_stats().allocated_bytes - before) / kRanks;  // of all ranks, which are threads
      parameters = 4 * model.elements();
    }
    group->barrier();
  });
  require(2 * kept <= 3 * parameters, kRanks, " ranks: after a step a rank keeps ", kept, " bytes, expected ",
          3 * parameters / 2, " at most; the parameters have ", parameters);
  return text(kept, " bytes kept by a rank, for ", parameters, " bytes of parameters");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("an MLP 12 -> ", variant().hidden, " -> 5, ", kSamples, " samples on each rank"));
  return {{"2 and 4 ranks: bits",
           [] {
             return check_bits({2, 4});
           }},
          {"3 ranks: bits", [] { return check_bits({3}); }},
          {"bytes of a step", check_bytes},
          {"memory", check_memory}};
}

}  // namespace grader
