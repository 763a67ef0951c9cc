// Exercise 3: the bits of one process that runs all micro-batches, and one all-reduce for each parameter.
#include "harness.h"

namespace grader {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 6;  // a rank and step

struct Model : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 12, 20);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 20, 16);
  ls::nn::Linear& fc3 = add<ls::nn::Linear>("fc3", 16, 4);
  Model() { set_parameters(*this); }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc3(ls::relu(fc2(ls::relu(fc1(x))))); }
};

// The rows of all ranks in a step, one rank's after the other's.
ls::Tensor batch(int step, int ranks, std::int64_t columns, double seed) {
  const double count = static_cast<double>(ranks * kRows * columns);
  return ls::cos(ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * (0.37 + seed) + step)
      .reshape({ranks * kRows, columns});
}

ls::Tensor loss_of(const Model& model, const ls::Tensor& x, const ls::Tensor& y) {
  const ls::Tensor error = model(x) - y;
  return ls::mean(error * error);
}

std::uint64_t train_alone(int micro_batches) {
  Model model;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  par::GradientAccumulation run(model, {.micro_batches = micro_batches});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    run.backward(batch(step, micro_batches, 12, 0), batch(step, micro_batches, 4, 0.2),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(model, x, y); });
    optimizer.step();
  }
  return ls::nn::parameter_hash(model);
}

// One step of a rank, on its own rows.
void step_of_rank(const Model& model, ls::optim::Optimizer& optimizer, const Group& group, int step) {
  const std::int64_t begin = group->rank() * kRows;
  const auto own = [&](const ls::Tensor& all) { return all.slice(0, begin, begin + kRows, 1); };
  optimizer.zero_grad();
  loss_of(model, own(batch(step, group->size(), 12, 0)), own(batch(step, group->size(), 4, 0.2))).backward();
  optimizer.step();
}

std::string check_bits(const std::vector<int>& sizes) {
  for (const int size : sizes) {
    const std::uint64_t want = train_alone(size);
    run_ranks(size, [&](const Group& group) {
      Model model;
      exercises::average_gradients_in_backward(group, model);
      ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
      for (int step = 0; step < kSteps; ++step) step_of_rank(model, optimizer, group, step);
      require(ls::nn::parameter_hash(model) == want, size, " ranks, ", kSteps, " steps: rank ", group->rank(),
              " does not have the bits of one process with ", size, " micro-batches");
    });
  }
  return "the bits of one process";
}

// What a rank sends in one step, by `prepare`'s way of averaging.
Sent count_step(int ranks, const std::function<void(const Group&, Model&)>& prepare) {
  Links links;
  run_ranks(ranks, [&](const Group& group) {
    Model model;
    prepare(group, model);
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05});
    step_of_rank(model, optimizer, group, 0);
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
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05});
    step_of_rank(model, optimizer, group, 0);
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
          " bytes in ", have.messages, " messages a step; one all_reduce a parameter makes ", want.bytes, " in ",
          want.messages);
  return text(have.messages, " messages a rank and step; DistributedDataParallel sends ", count_bucketed(kRanks));
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  return {{"2 and 4 ranks: bits",
           [] {
             return check_bits({2, 4});
           }},
          {"3 ranks: bits", [] { return check_bits({3}); }},
          {"bytes and messages", check_messages}};
}

}  // namespace grader
