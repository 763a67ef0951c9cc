// A rank is killed or stopped at some row of a pipeline's schedule, and every other rank gets an error that names it, and
// the row at which the rank itself was. Ranks are processes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/parallel/model_parallel/faults.h"

namespace pipeline_faults {

namespace par = ls::parallel;
namespace nn = ls::nn;
using model_faults::Board;

constexpr int kMicroBatches = 4;

// Before or after a forward or a backward: next to these rows are those of the messages.
enum class Moment { kBeforeForward, kAfterForward, kBeforeBackward, kAfterBackward };

struct Fault {
  int signal;  // SIGKILL or SIGSTOP
  int ranks, victim, micro_batch;
  Moment moment;
  int step = 1;             // in step 0 there are no outboxes
  std::int64_t width = 16;  // of activations

  std::string describe() const {
    return fmt::format("{} of rank {} of {}, micro-batch {}, moment {}, step {}, width {}",
                       signal == SIGSTOP ? "stop" : "end", victim, ranks, micro_batch, static_cast<int>(moment), step,
                       width);
  }
};

// The one module of a stage. It calls `strike` at a moment of a micro-batch.
struct FaultyStage : nn::Module {
  explicit FaultyStage(std::int64_t width)
      : up(add<nn::Linear>("up", width, 4)), down(add<nn::Linear>("down", 4, width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto is_at = [m = micro_batch++, this](Moment moment) { return strike && m == at && moment == when; };
    if (is_at(Moment::kBeforeForward)) strike();
    const ls::Tensor h = up(x), y = down(h);
    const auto strikes_in_backward = [this](const ls::Tensor& of) {
      of.register_hook([this](const ls::Tensor&) { return strike(), ls::Tensor(); });
    };
    if (is_at(Moment::kBeforeBackward)) strikes_in_backward(y);
    if (is_at(Moment::kAfterBackward)) strikes_in_backward(x.requires_grad() ? x : h);
    if (is_at(Moment::kAfterForward)) strike();
    return y;
  }
  nn::Linear &up, &down;
  mutable int micro_batch = 0;  // of the next forward
  int at = 0;
  Moment when = Moment::kBeforeForward;
  std::function<void()> strike;
};

// The rank must say where it was: at a row, or after the last one.
inline void check_place(const std::string& error, int rank) {
  const std::regex row(
      fmt::format("micro-batch \\d+ in stage {0} \\(rank {0}, row \\d+ of the schedule: {0}[A-Z_]+\\d+\\): ", rank)),
      end(fmt::format("the end of the schedule \\(rank {}\\): ", rank)), losses("for \"losses\"");
  CHECK_MESSAGE((std::regex_search(error, row) || std::regex_search(error, end) || std::regex_search(error, losses)),
                error);
}

inline void run_rank(const Fault& fault, const Group& group, Board& board) {
  const par::DeviceMesh mesh(group, {{"pp", fault.ranks}});
  nn::Sequential model;
  for (int r = 0; r < fault.ranks; ++r) model.push_back(FaultyStage(fault.width));
  par::Pipeline run(model, mesh["pp"], {.micro_batches_per_rank = kMicroBatches});
  auto& own = dynamic_cast<FaultyStage&>(model[static_cast<std::size_t>(group->rank())]);
  own.at = fault.micro_batch, own.when = fault.moment;
  const ls::Tensor x = ls::ones({kMicroBatches, fault.width});
  std::string error;
  try {
    for (int step = 0; step <= fault.step; ++step) {
      if (step == fault.step && group->rank() == fault.victim)
        own.strike = [&board, signal = fault.signal] { board.strike(signal); };
      own.micro_batch = 0;
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
    }
  } catch (const ls::CommError& thrown) {
    error = thrown.what();
  }
  check_place(error, group->rank());
  model_faults::check_report(fault.signal, fault.victim, board, error, {group->backend().c_str(), fault.ranks});
}

inline void check_faults(const char* backend, int ranks, const std::vector<Fault>& faults) {
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t first = 0; first < faults.size(); first += kAtOnce) {
    const auto begin = faults.begin() + static_cast<std::ptrdiff_t>(first);
    const auto count = static_cast<std::ptrdiff_t>(std::min(kAtOnce, faults.size() - first));
    model_faults::check_faults(std::vector(begin, begin + count), run_rank, {backend, ranks});
  }
}

constexpr Moment kMoments[] = {Moment::kBeforeForward, Moment::kAfterForward, Moment::kBeforeBackward,
                               Moment::kAfterBackward};

// The places are all rows of all ranks; not `at_all`: those of one micro-batch per rank.
inline std::vector<Fault> all_ends(int ranks, bool at_all) {
  std::vector<Fault> faults;
  for (int victim = 0; victim < ranks; ++victim) {
    for (int m = 0; m < kMicroBatches; ++m) {
      if (!at_all && m != victim % kMicroBatches) continue;
      for (const Moment moment : kMoments) faults.push_back({SIGKILL, ranks, victim, m, moment});
    }
  }
  return faults;
}

}  // namespace pipeline_faults
