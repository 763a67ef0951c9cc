// Steps that an exception ends, in every mode. On one rank: the others get an error that names rank and exception,
// while that rank does nothing more. On all ranks at the same point: the next step works. At different points: an
// error on all ranks.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/groups.h"

namespace failing_rank {

namespace par = ls::parallel;

struct Net : ls::nn::Module {
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  int fails_backward_at = -1;  // a block
  explicit Net(std::int64_t width) {
    for (int i = 0; i < 3; ++i) blocks.push_back(ls::nn::Linear(width, width));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    int at = 0;
    for (ls::nn::Module& block : blocks) {
      y = ls::tanh(block(y));
      if (at++ == fails_backward_at)
        y.register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::IoError("the disk is full"); });
    }
    return y;
  }
};

enum class Where { kLoss, kBackward, kUsersBackward, kUsersLoss, kJoin };

constexpr std::int64_t kWidths[] = {4, 200};  // small operations, whose data follows the header, and larger ones

// Takes one step, which fails if `fails`: in backward at a block, or before it reaches the model.
template <class Run>
void step(Run& run, Net& net, std::int64_t width, Where where, bool fails, int block = 1) {
  const ls::Tensor x = ls::full({2, width}, fails ? 3.0 : 1.0);
  for (const ls::nn::Parameter& parameter : run.parameters()) parameter->set_grad(ls::Tensor());
  net.fails_backward_at = fails && (where == Where::kBackward || where == Where::kUsersBackward) ? block : -1;
  if (where == Where::kUsersLoss) {
    const ls::Tensor loss = ls::mean(run(x));
    if (fails) loss.register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::IoError("the disk is full"); });
    return loss.backward();
  }
  if (where == Where::kUsersBackward) return ls::mean(run(x)).backward();
  run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) {
    if (fails && where != Where::kBackward) throw ls::IoError("the disk is full");
    return ls::mean(net(x));
  });
}

// Undefined for a piece that is empty.
template <class Run>
std::vector<ls::Tensor> gradients_of(Run& run) {
  std::vector<ls::Tensor> gradients;
  for (const ls::nn::Parameter& parameter : run.parameters())
    gradients.push_back(parameter->grad().defined() ? parameter->grad().clone() : ls::Tensor());
  return gradients;
}

// error_of without its limit of the length: these errors contain those of other ranks.
template <class F>
std::string comm_error_of(F function) {
  try {
    function();
  } catch (const ls::CommError& error) {
    return error.what();
  }
  return "";
}

template <class Run>
void check_gradients(Run& run, const std::vector<ls::Tensor>& expected) {
  const std::vector<ls::Tensor> gradients = gradients_of(run);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK((!expected[i].defined() || same_bits(gradients[i], expected[i])));
}

// One step that works, and one that fails on this rank if `fails`.
template <class Run>
void train(Run& run, Net& net, std::int64_t width, Where where, bool fails, int block = 1) {
  const auto take_steps = [&] {
    step(run, net, width, where, false);
    step(run, net, width, where, fails, block);
  };
  if (where == Where::kJoin)
    run.join(take_steps, {.shadow_step = [] {}});
  else
    take_steps();
}

using MakeGroup = std::function<Group()>;

// The last rank fails; `others` is another group of the same ranks.
template <class Run, class Options>
void check_last_fails(const Group& group, const Group& others, const Options& options, Where where,
                      std::int64_t width) {
  INFO("the last rank fails");
  const int last = others->size() - 1;
  Net net(width);
  Run run(net, group, options);
  if (others->rank() == last) {
    CHECK(contains(error_of<ls::IoError>([&] { train(run, net, width, where, true); }), "the disk is full"));
    others->barrier();  // the others have their error without another call of this rank
    const std::string again = comm_error_of([&] { step(run, net, width, Where::kLoss, false); });
    CHECK_MESSAGE((contains(again, "the disk is full") || contains(again, "has left the group")), again);
    return;
  }
  const std::string error = comm_error_of([&] { train(run, net, width, where, false); });
  CHECK_MESSAGE(contains(error, "rank " + std::to_string(last) + " has failed"), error);
  CHECK_MESSAGE(contains(error, "the disk is full"), error);
  if constexpr (std::is_same_v<Run, par::ShardedDataParallel>) {
    if (options.stage == 1 && where == Where::kBackward)  // the others wait for the sums alone
      CHECK_MESSAGE(contains(error, "gradients of step 2"), error);
  }
  others->barrier();
}

// All ranks fail, the last one later than the others. A step without failures has the gradients `expected`.
template <class Run>
void check_last_fails_later(Run& run, Net& net, const Group& group, Where where, std::int64_t width,
                            const std::vector<ls::Tensor>& expected) {
  INFO("all ranks fail, the last one later than the others");
  const std::string error = comm_error_of([&] {
    try {
      train(run, net, width, where, true, group->rank() == group->size() - 1 ? 0 : 1);
    } catch (const ls::IoError&) {
    }
    step(run, net, width, where, false);
  });
  // ShardedDataParallel may not have started the reduction of the block between the two.
  if constexpr (std::is_same_v<Run, par::DistributedDataParallel>) CHECK(!error.empty());
  if (error.empty()) return check_gradients(run, expected);
  CHECK_MESSAGE(contains(error, "has failed"), error);
  CHECK_MESSAGE(contains(error, "the disk is full"), error);
}

// All ranks fail: at the same point, after which the next step works, and then at different points.
template <class Run, class Options>
void check_all_fail(const Group& group, const Group& others, const Options& options, Where where, std::int64_t width) {
  INFO("all ranks fail at the same point");
  Net net(width);
  Run run(net, group, options);
  step(run, net, width, where, false);
  const std::vector<ls::Tensor> expected = gradients_of(run);
  for (int again = 0; again < 3; ++again) {
    CHECK(contains(error_of<ls::IoError>([&] { train(run, net, width, where, true); }), "the disk is full"));
    step(run, net, width, where, false);
    check_gradients(run, expected);
  }
  if (where != Where::kLoss && where != Where::kUsersLoss)
    check_last_fails_later(run, net, group, where, width, expected);
  others->barrier();
}

// Groups that fail are made by `make`.
template <class Run, class Options>
void check(const MakeGroup& make, const Group& others, const Options& options, Where where, std::int64_t width) {
  const int rank = others->rank();
  CAPTURE(rank);
  check_last_fails<Run>(make(), others, options, where, width);
  if (where != Where::kJoin) check_all_fail<Run>(make(), others, options, where, width);
}

inline void check_all(const MakeGroup& make, const Group& others) {
  for (const std::int64_t width : kWidths) {
    for (const Where where : {Where::kLoss, Where::kBackward, Where::kUsersBackward, Where::kUsersLoss, Where::kJoin}) {
      CAPTURE(width);
      CAPTURE(static_cast<int>(where));
      // A bucket for each parameter, so that some are in flight when backward fails.
      check<par::DistributedDataParallel>(make, others, par::DistributedDataParallelOptions{.bucket_cap_mb = 1e-6},
                                          where, width);
      for (int stage = 1; stage <= 3; ++stage) {
        CAPTURE(stage);
        check<par::ShardedDataParallel>(
            make, others, par::ShardedDataParallelOptions{.stage = stage, .units = {"blocks.*"}}, where, width);
      }
    }
  }
}

inline void check_all(const Group& group) {
  check_all([&] { return group->duplicate(); }, group);
}

}  // namespace failing_rank
