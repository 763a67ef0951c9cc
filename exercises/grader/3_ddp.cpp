// Exercise 3: gradients bitwise identical to those of one process that runs all micro-batches, by one all-reduce for each
// parameter.
#include <iomanip>

#include "harness.h"

namespace grader {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kSamples = 6;  // of a rank in a step

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
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 12, variant().hidden);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", variant().hidden, 16);
  ls::nn::Linear& fc3 = add<ls::nn::Linear>("fc3", 16, 4);
  Model() { set_parameters(*this); }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc3(ls::relu(fc2(ls::relu(fc1(x))))); }
};

// The samples of all ranks in a step, one rank's after the other's.
ls::Tensor batch(int step, int ranks, std::int64_t columns, double shift) {
  const double count = static_cast<double>(ranks * kSamples * columns);
  return ls::cos(ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * (0.37 + shift) + step + variant().phase)
      .reshape({ranks * kSamples, columns});
}

ls::Tensor loss_of(const Model& model, const ls::Tensor& x, const ls::Tensor& y) {
  const ls::Tensor error = model(x) - y;
  return ls::mean(error * error);
}

using Gradients = std::vector<ls::Tensor>;  // in the order of parameters()

Gradients gradients_of(const Model& model) {
  Gradients all;
  for (const ls::nn::Parameter& parameter : model.parameters())
    all.push_back(parameter->grad().defined() ? parameter->grad().clone() : ls::Tensor());
  return all;
}

// The gradients of each step of one process that runs all micro-batches.
std::vector<Gradients> train_alone(int micro_batches) {
  Model model;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  par::GradientAccumulation run(model, {.micro_batches = micro_batches});
  std::vector<Gradients> steps;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    run.backward(batch(step, micro_batches, 12, 0), batch(step, micro_batches, 4, 0.2),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(model, x, y); });
    steps.push_back(gradients_of(model));
    optimizer.step();
  }
  return steps;
}

// Backward of a rank on its own samples.
void backward_of_rank(const Model& model, const Group& group, int step) {
  const std::int64_t begin = group->rank() * kSamples;
  const auto own = [&](const ls::Tensor& all) { return all.slice(0, begin, begin + kSamples, 1); };
  loss_of(model, own(batch(step, group->size(), 12, 0)), own(batch(step, group->size(), 4, 0.2))).backward();
}

// How far `have` is from `want`, where their bits differ.
std::string distance(const ls::Tensor& have, const ls::Tensor& want) {
  constexpr double kLastBits = 1e-5, kSameRatio = 1e-4;
  const double length = want.norm().item<double>(), ratio = ls::sum(have * want).item<double>() / (length * length);
  const double apart = (have - want).norm().item<double>() / length;
  if (apart < kLastBits)
    return "differs from the expected in the last bits: the order of additions or a rounding is another";
  std::ostringstream stream;
  stream << std::fixed << std::setprecision(2);
  if ((have - want * ratio).norm().item<double>() / length < kSameRatio)
    stream << "is " << ratio << " times the expected";
  else
    stream << "differs from the expected by " << 100 * apart << " % of its norm";
  return stream.str();
}

std::string check_bits(const std::vector<int>& sizes) {
  for (const int size : sizes) {
    const std::vector<Gradients> want = train_alone(size);
    run_ranks(size, [&](const Group& group) {
      Model model;
      exercises::average_gradients_in_backward(group, model);
      ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        backward_of_rank(model, group, step);
        const auto names = model.named_parameters();
        for (std::size_t i = 0; i < names.size(); ++i) {
          const ls::Tensor have = names[i].second->grad(), &expected = want[static_cast<std::size_t>(step)][i];
          const auto where = [&] {
            return text(size, " ranks, step ", step + 1, ", rank ", group->rank(), ": the gradient of ",
                        names[i].first);
          };
          require(have.defined(), where(), " is undefined");
          if (!begins_with(have, expected)) throw Missing(where() + ' ' + distance(have, expected));
        }
        optimizer.step();
      }
    });
  }
  return "bitwise identical to one process with as many micro-batches";
}

// The bytes that a rank sends in one step, after `prepare` has set up the averaging.
Sent count_step(int ranks, const std::function<void(const Group&, Model&)>& prepare) {
  Links links;
  run_ranks(ranks, [&](const Group& group) {
    Model model;
    prepare(group, model);
    backward_of_rank(model, group, 0);
    add_links(links, group);
  });
  return sent_by(links, 0);
}

// The messages of a rank in a step of the library's DistributedDataParallel.
std::int64_t count_bucketed(int ranks) {
  Links links;
  run_ranks(ranks, [&](const Group& group) {
    Model model;
    par::DistributedDataParallel ddp(model, group);
    backward_of_rank(model, group, 0);
    add_step(links, group->traffic());
  });
  return sent_by(links, 0).messages;
}

std::string check_messages() {
  constexpr int kRanks = 4;
  const Sent have = count_step(
      kRanks, [](const Group& group, Model& model) { exercises::average_gradients_in_backward(group, model); });
  const Sent want = count_step(kRanks, [](const Group& group, Model& model) {
    for (const ls::nn::Parameter& parameter : model.parameters())
      group->all_reduce(ls::zeros(parameter->shape()))->wait();
  });
  require(have.bytes == want.bytes && have.messages == want.messages, kRanks, " ranks: a rank sends ", have.bytes,
          " bytes in ", have.messages, " messages in a step; one all_reduce for each parameter makes ", want.bytes,
          " in ", want.messages);
  return text(have.messages, " messages of a rank in a step; DistributedDataParallel sends ", count_bucketed(kRanks));
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("an MLP 12 -> ", variant().hidden, " -> 16 -> 4, ", kSamples, " samples on each rank"));
  return {{"2 and 4 ranks: bits",
           [] {
             return check_bits({2, 4});
           }},
          {"3 ranks: bits", [] { return check_bits({3}); }},
          {"bytes and messages", check_messages}};
}

}  // namespace grader
