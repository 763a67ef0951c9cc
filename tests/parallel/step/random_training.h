// Trains a random case on a group's ranks and, for the same samples, by plain backward in this process alone, and
// compares gradients, losses, parameters and buffers bit for bit.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/parallel/step/random_model.h"

namespace random_case {

class Optimizer {
 public:
  Optimizer(const Case& of, const std::vector<nn::Parameter>& parameters) {
    if (of.update == Update::kMomentum)
      optimizer_ = std::make_unique<ls::optim::SGD>(parameters, ls::optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    else
      optimizer_ = std::make_unique<ls::optim::AdamW>(parameters, ls::optim::AdamWOptions{.lr = 0.01});
  }
  void zero_grad() { optimizer_->zero_grad(); }
  void step() { optimizer_->step(); }
  ls::optim::Optimizer* get() { return optimizer_.get(); }

 private:
  std::unique_ptr<ls::optim::Optimizer> optimizer_;
};

struct StepResult {
  std::vector<ls::Tensor> gradients;  // by parameter; undefined without one
  ls::Tensor loss;
  double norm = 0;
};
struct Result {
  std::vector<StepResult> steps;
  std::vector<ls::Tensor> values;  // parameters, then buffers
};

inline ls::Tensor copy_of(const ls::Tensor& t) { return t.defined() ? t.detach().clone() : t; }

// Pairs, then pairs of pairs; an odd last one, and one whose partner is undefined, passes up.
inline ls::Tensor canonical_sum(std::vector<ls::Tensor> terms) {
  while (terms.size() > 1) {
    std::vector<ls::Tensor> sums;
    for (std::size_t i = 0; i < terms.size(); i += 2) {
      const ls::Tensor& a = terms[i];
      const ls::Tensor b = i + 1 < terms.size() ? terms[i + 1] : ls::Tensor();
      sums.push_back(!a.defined() ? b : !b.defined() ? a : a + b);
    }
    terms = std::move(sums);
  }
  return terms[0];
}

// Trains in this process alone.
class Alone {
 public:
  explicit Alone(const Case& of) : of_(of), model_(of), optimizer_(of, model_.parameters()) {}

  Result run() {
    Result result;
    for (int step = 0; step < kSteps; ++step) result.steps.push_back(run_step(step));
    for (const nn::Parameter& parameter : model_.parameters()) result.values.push_back(copy_of(*parameter));
    for (const nn::Buffer& buffer : model_.buffers()) result.values.push_back(copy_of(*buffer));
    return result;
  }

 private:
  StepResult run_step(int step) {
    const ls::NoGradGuard no_grad;
    const std::vector<std::int64_t> rows = rows_of_step(of_, step);
    const std::vector<nn::Parameter> parameters = model_.parameters();
    std::vector<std::vector<ls::Tensor>> terms(parameters.size());
    std::vector<ls::Tensor> losses, buffers, kept;
    for (const nn::Buffer& buffer : model_.buffers()) buffers.push_back(copy_of(*buffer));
    std::vector<std::array<ls::Tensor, 3>> updated = updated_buffers();
    for (std::array<ls::Tensor, 3>& each : updated) each = {copy_of(each[0]), copy_of(each[1]), copy_of(each[2])};
    std::int64_t samples = 0;
    int running = 0;
    const bool is_weighted = of_.weighting == Weighting::kSamples;
    for (int s = 0; s < static_cast<int>(rows.size()); ++s) {
      const std::int64_t count = rows[static_cast<std::size_t>(s)], weight = is_weighted ? count : 1;
      for (std::vector<ls::Tensor>& of_parameter : terms) of_parameter.emplace_back();
      losses.emplace_back();
      if (count == 0) continue;
      ++running;
      samples += count;
      set_buffers(buffers);
      for (const std::array<ls::Tensor, 3>& each : updated_buffers()) {
        for (const ls::Tensor& buffer : each) buffer.zero_();
      }
      model_.zero_grad();
      losses.back() = backward(step, s, count, weight);
      for (std::size_t p = 0; p < parameters.size(); ++p) terms[p].back() = copy_of(parameters[p]->grad());
      if (kept.empty() && (s < of_.per_rank() || of_.joins())) kept = buffers_now();
      update(updated);
    }
    set_buffers(kept.empty() ? buffers : kept);
    set_updated(updated);
    const auto all = static_cast<double>(rows.size());
    const double first = is_weighted ? 1.0 / static_cast<double>(samples) : 1 / all;
    const double second = is_weighted || of_.samples == Samples::kJoinDivided ? 1 : all / running;
    const auto mean = [&](const std::vector<ls::Tensor>& of_all, double by) {
      ls::Tensor sum = copy_of(canonical_sum(of_all));
      if (sum.defined()) sum.mul_(first);
      if (sum.defined() && by != 1) sum.mul_(by);
      return sum;
    };
    StepResult result;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      result.gradients.push_back(mean(terms[p], second));
      parameters[p]->set_grad(copy_of(result.gradients.back()));
    }
    result.loss = mean(losses, is_weighted ? 1 : all / running);
    if (of_.update == Update::kClippedAdam) result.norm = nn::clip_grad_norm_(parameters, 0.1);
    optimizer_.step();
    return result;
  }
  ls::Tensor backward(int step, int micro_batch, std::int64_t rows, std::int64_t weight) {
    const ls::EnableGradGuard with_grad;
    const Data samples = samples_of(of_, step, micro_batch, rows);
    ls::Tensor loss = loss_of(model_, samples.x, samples.y);
    if (weight != 1) loss = loss * static_cast<double>(weight);
    loss.backward();
    return copy_of(loss);
  }
  std::vector<ls::Tensor> buffers_now() const {
    std::vector<ls::Tensor> values;
    for (const nn::Buffer& buffer : model_.buffers()) values.push_back(copy_of(*buffer));
    return values;
  }
  // Running mean, running variance and number of forwards of the layers that every micro-batch updates.
  std::vector<std::array<ls::Tensor, 3>> updated_buffers() const {
    std::vector<std::array<ls::Tensor, 3>> found;
    for (std::size_t i = 0; i < of_.blocks.size(); ++i) {
      if (const RandomBlock& block = model_.block(i); block.updates_all)
        found.push_back(
            {*block.batch_norm->running_mean, *block.batch_norm->running_var, *block.batch_norm->num_batches_tracked});
    }
    return found;
  }
  // Adds the updates of a micro-batch, which began with buffers of zeros.
  void update(std::vector<std::array<ls::Tensor, 3>>& updated) const {
    const std::vector<std::array<ls::Tensor, 3>> now = updated_buffers();
    for (std::size_t l = 0; l < now.size(); ++l) {
      double kept = 1;
      for (std::int64_t i = now[l][2].item<std::int64_t>(); i > 0; --i) kept *= 1 - 0.1;
      for (const std::size_t b : {0U, 1U})
        updated[l][b].copy_(updated[l][b].to(ls::kFloat64) * kept + now[l][b].to(ls::kFloat64));
      updated[l][2].add_(now[l][2]);
    }
  }
  void set_updated(const std::vector<std::array<ls::Tensor, 3>>& updated) {
    const std::vector<std::array<ls::Tensor, 3>> now = updated_buffers();
    for (std::size_t l = 0; l < now.size(); ++l) {
      for (const std::size_t b : {0U, 1U, 2U}) now[l][b].copy_(updated[l][b]);
    }
  }
  void set_buffers(const std::vector<ls::Tensor>& values) {
    std::size_t at = 0;
    for (const nn::Buffer& buffer : model_.buffers()) buffer->copy_(values[at++]);
  }

  Case of_;
  Model model_;
  Optimizer optimizer_;
};

// The same on the ranks of a group. Returns the first difference from `want`, or an empty text.
class Together {
 public:
  Together(const Case& of, const Group& group, const Result& want) : of_(of), group_(group), want_(want), model_(of) {
    const ls::Tensor number = ls::full({1}, static_cast<double>(getpid()), {.dtype = ls::kInt64});
    group->broadcast(number)->wait();
    number_of_rank_0_ = number.item<std::int64_t>();
  }

  std::string run() {
    if (!of_.is_sharded()) {
      par::DistributedDataParallel run(
          model_, group_,
          {.bucket_cap_mb = 0.001,
           .micro_batches_per_rank = of_.per_rank(),
           .weighting = of_.weighting == Weighting::kSamples ? par::Weighting::kSamples : par::Weighting::kEqual});
      std::vector<par::ShardedParameter> whole;
      for (const auto& [name, parameter] : model_.named_parameters())
        whole.push_back({.name = name,
                         .parameter = parameter,
                         .shape = parameter->shape(),
                         .part = ls::TensorPart::whole(parameter->shape())});
      return train(run, whole, [&] { return nn::clip_grad_norm_(run.parameters(), 0.1); });
    }
    const int stage = of_.mode == Mode::kStage1 ? 1 : of_.mode == Mode::kStage2 ? 2 : 3;
    const std::vector<std::string> patterns[] = {{}, {"blocks.*", "blocks.*.inner"}, {"blocks.*.inner"}, {"blocks"}};
    par::ShardedDataParallel run(
        model_, group_,
        {.stage = stage,
         .units = patterns[static_cast<std::size_t>(of_.units)],
         .micro_batches_per_rank = of_.per_rank(),
         .reshard_after_forward = of_.mode != Mode::kStage3Resident,
         .offload_optimizer = of_.place == Place::kOffloaded,
         .weighting = of_.weighting == Weighting::kSamples ? par::Weighting::kSamples : par::Weighting::kEqual});
    return train(run, run.named_parameters(), [&] { return run.clip_grad_norm_(0.1); });
  }

 private:
  template <class Run, class Clip>
  std::string train(Run& run, const std::vector<par::ShardedParameter>& pieces, const Clip& clip) {
    Optimizer optimizer(of_, run.parameters());
    const auto take_step = [&](int step) {
      optimizer.zero_grad();
      const ls::Tensor loss = backward(run, step);
      if (loss.defined()) compare(step, "the loss", loss.to(want(step).loss.dtype()), want(step).loss);
      for (std::size_t p = 0; p < pieces.size(); ++p) compare_piece(step, pieces[p], want(step).gradients[p]);
      if (of_.update == Update::kClippedAdam && clip() != want(step).norm) note(step, "the norm");
      optimizer.step();
    };
    const auto read_all = [&](const auto& body) {
      if constexpr (std::is_same_v<Run, par::ShardedDataParallel>)
        run.gathered(body);
      else
        body();
    };
    if (of_.joins()) {
      run.join(
          [&] {
            for (int step = 0; step < kSteps && own_rows(step) > 0; ++step) take_step(step);
          },
          {.divide_by_initial_world_size = of_.samples == Samples::kJoinDivided, .shadow_step = [&] {
             if (of_.update == Update::kClippedAdam) clip();
             optimizer.step();
           }});
    } else {
      for (int step = 0; step < kSteps; ++step) {
        if (of_.between == Between::kGathered) read_all([&] { static_cast<void>(nn::parameter_hash(model_)); });
        if (of_.between == Between::kSaved && step == 1) {  // the step that is undone changes nothing
          par::save_checkpoint(file(), {.model = &run, .optimizer = optimizer.get()});
          take_step(step);
          par::load_checkpoint(file(), {.model = &run, .optimizer = optimizer.get()});
          if (group_->rank() == 0) std::remove(file().c_str());
        }
        take_step(step);
      }
    }
    read_all([&] {
      std::size_t at = 0;
      for (const nn::Parameter& parameter : model_.parameters())
        compare(kSteps, "a parameter", *parameter, want_.values[at++]);
      for (const nn::Buffer& buffer : model_.buffers()) compare(kSteps, "a buffer", *buffer, want_.values[at++]);
    });
    return difference_;
  }

  // In memory, since a busy disk can take longer than a timeout. The same on all ranks.
  std::string file() const {
    return "/dev/shm/lockstep_case_" + std::to_string(of_.number) + "_" + std::to_string(number_of_rank_0_) +
           ".safetensors";
  }
  const StepResult& want(int step) const { return want_.steps[static_cast<std::size_t>(step)]; }
  std::int64_t own_rows(int step) const {
    const std::vector<std::int64_t> rows = rows_of_step(of_, step);
    std::int64_t sum = 0;
    for (int i = 0; i < of_.per_rank(); ++i) sum += rows[static_cast<std::size_t>(group_->rank() * of_.per_rank() + i)];
    return sum;
  }

  // Returns the loss that the step returns; undefined with operator().
  template <class Run>
  ls::Tensor backward(Run& run, int step) {
    const std::vector<std::int64_t> rows = rows_of_step(of_, step);
    std::vector<ls::Tensor> x, y;
    for (int i = 0; i < of_.per_rank(); ++i) {
      const int s = group_->rank() * of_.per_rank() + i;
      const Data samples = samples_of(of_, step, s, rows[static_cast<std::size_t>(s)]);
      x.push_back(samples.x);
      y.push_back(samples.y);
    }
    const ls::Tensor all_x = ls::cat(x), all_y = ls::cat(y);
    if (of_.call == Call::kBackward)
      return run.backward(all_x, all_y,
                          [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(model_, x, y); });
    model_.skips_block = model_.skips(group_->rank());
    const ls::Tensor out = run(all_x), difference = out - all_y * 0.1;
    ls::mean(difference * difference).backward();
    return {};
  }

  void note(int step, const std::string& what) {
    if (difference_.empty())
      difference_ = "rank " + std::to_string(group_->rank()) + ", step " + std::to_string(step) + ": " + what;
  }
  void compare(int step, const std::string& what, const ls::Tensor& have, const ls::Tensor& expected) {
    if (!same_bits(have, expected)) note(step, what);
  }
  void compare_piece(int step, const par::ShardedParameter& piece, const ls::Tensor& whole) {
    const ls::Tensor& own = piece.parameter->grad();
    const std::int64_t count = piece.parameter->numel();
    if (!whole.defined() && own.defined()) note(step, piece.name + " has a gradient");
    if (!whole.defined() || count == 0) return;
    if (!own.defined()) return note(step, piece.name + " has no gradient");
    compare(step, "the gradient of " + piece.name, own.to(whole.device()).reshape({-1}),
            whole.reshape({-1}).narrow(0, piece.first, count));
  }

  Case of_;
  Group group_;
  const Result& want_;
  Model model_;
  std::int64_t number_of_rank_0_ = 0;  // of its process
  std::string difference_;
};

// Checks cases [first, first + count) on a group, or those that scripts/random_models.sh asks for.
inline void check_cases(const Group& group, std::uint32_t first, std::uint32_t count) {
  if (const char* const text = std::getenv("LOCKSTEP_TEST_FIRST")) first = static_cast<std::uint32_t>(std::stoul(text));
  if (const char* const text = std::getenv("LOCKSTEP_TEST_CASES")) count = static_cast<std::uint32_t>(std::stoul(text));
  count = std::max<std::uint32_t>(1, count / LOCKSTEP_SLOWDOWN);
  for (std::uint32_t number = first; number < first + count; ++number) {
    const Case of = draw(number, group->size());
    std::string difference;
    try {
      difference = Together(of, group, Alone(of).run()).run();
    } catch (const ls::Error& error) {
      throw ls::Error(of.describe() + ": " + error.what());
    }
    CHECK_MESSAGE(difference.empty(), of.describe() << ": " << difference);
  }
}

}  // namespace random_case
