// Trains a random case on a group's ranks and, for the same samples, by plain backward in this process alone, and
// compares gradients, losses, parameters and buffers bit for bit.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/parallel/step/random_case.h"
#include "tests/support/groups.h"

namespace random_case {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr std::int64_t kWidth = 8;
constexpr int kSteps = 3;

inline ls::Device device_of(const Case& of) { return of.place == Place::kHost ? "cpu:0" : "cpu:1"; }

// (rows, kWidth) -> (rows, kWidth). Most of its parameters are in a module of its own, so that units can be nested.
struct RandomBlock : nn::Module {
  RandomBlock(Block kind, std::size_t index) : kind(kind) {
    if (kind == Block::kConv) {
      conv = &add("inner", nn::Conv1d(2, 2, 3, {.padding = 1}));
    } else if (kind == Block::kLstm) {
      lstm = &add("inner", nn::LSTM(4, 4, {.batch_first = true}));
    } else if (kind == Block::kEmbedding) {
      embedding = &add<nn::Embedding>("inner", 5, kWidth);
    } else {
      const std::int64_t out = kind == Block::kLarge ? 600 : kWidth;
      linear = &add("inner", nn::Linear(kWidth, out, {.bias = kind != Block::kPlain}));
    }
    if (kind == Block::kNormed) norm = &add<nn::LayerNorm>("norm", kWidth);
    if (kind == Block::kBatchNorm)
      batch_norm = &add<nn::BatchNorm1d>("norm", kWidth, nn::BatchNormOptions{.all_micro_batches = index % 2 == 1});
    updates_all = batch_norm && index % 2 == 1;
    if (kind == Block::kUnused) add_parameter("unused", ls::full({3}, 0.5));
    if (kind == Block::kFrozen) linear->weight->requires_grad_(false);
    if (kind == Block::kFrozen || kind == Block::kHalfFrozen) linear->bias->requires_grad_(false);
    for (int i = 0; kind == Block::kVectors && i < 5; ++i)
      vectors.push_back(&add_parameter("vector" + std::to_string(i), ls::ones({kWidth})));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const std::int64_t rows = x.size(0);
    ls::Tensor y = x;
    if (conv) y = (*conv)(x.reshape({rows, 2, 4})).reshape({rows, kWidth});
    if (lstm) y = (*lstm)(x.reshape({rows, 2, 4})).reshape({rows, kWidth});
    if (embedding) y = x * (*embedding)(ls::remainder(ls::arange(0, rows, 1, {.device = x.device()}), 5));
    if (linear) y = (*linear)(norm ? (*norm)(x) : x).narrow(-1, 0, kWidth);
    if (batch_norm) y = (*batch_norm)(y);
    for (const nn::Parameter* vector : vectors) y = y * **vector + **vector;
    if (tied) y = y + ls::matmul(x, **tied);
    return x + ls::tanh(y);
  }

  Block kind;
  nn::Linear* linear = nullptr;
  nn::Conv1d* conv = nullptr;
  nn::LSTM* lstm = nullptr;
  nn::Embedding* embedding = nullptr;
  nn::LayerNorm* norm = nullptr;
  nn::BatchNorm1d* batch_norm = nullptr;
  bool updates_all = false;  // every micro-batch updates the buffers
  std::vector<const nn::Parameter*> vectors;
  const nn::Parameter* tied = nullptr;  // (kWidth, kWidth), also of another module
};

struct Model : nn::Module {
  explicit Model(const Case& of) : of(of) {
    for (const Block block : of.blocks) blocks.push_back(RandomBlock(block, blocks.size()));
    if (of.sharing == Sharing::kTied) block(of.chosen).tied = &block(of.chosen).add_parameter("tied", in.weight);
    if (of.sharing == Sharing::kBorrowed) block(of.chosen).tied = &square_weight();
    set_values();
    if (of.precision == Precision::kF64) to(ls::kFloat64);
    to(device_of(of));
  }
  RandomBlock& block(std::size_t i) const { return dynamic_cast<RandomBlock&>(blocks[i]); }
  // A (kWidth, kWidth) weight of another block, if there is one.
  const nn::Parameter& square_weight() const {
    for (std::size_t i = 0; i < of.blocks.size(); ++i) {
      const RandomBlock& other = block(i);
      if (i != of.chosen && other.linear && other.kind != Block::kLarge) return other.linear->weight;
    }
    return square.weight;
  }
  // Without the process's random numbers, which threads share.
  void set_values() {
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = of.number;
    for (const nn::Parameter& parameter : parameters()) parameter->copy_(numbers(parameter->shape(), {}, ++salt) * 0.4);
  }
  bool skips(int micro_batch) const {
    const int last = of.ranks * of.per_rank() - 1;
    return (of.skip == Skip::kFirstMicroBatch && micro_batch == 0) ||
           (of.skip == Skip::kLastMicroBatch && micro_batch == last);
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = square(in(x));
    for (std::size_t first = 0; first < of.blocks.size();) {
      const std::size_t count =
          of.recompute == Recompute::kSegments ? std::min<std::size_t>(3, of.blocks.size() - first) : 1;
      const auto part = [this, first, count](const ls::Tensor& x) {
        ls::Tensor y = x;
        for (std::size_t i = first; i < first + count; ++i) {
          if (i == of.chosen && skips_block) continue;
          y = blocks[i](y);
          if (i == of.chosen && of.sharing == Sharing::kTwice) y = blocks[i](y);
        }
        return y;
      };
      const bool repeats =
          of.recompute != Recompute::kNone && (of.recompute != Recompute::kSomeBlocks || first % 2 == 0);
      y = repeats ? ls::autograd::checkpoint(part, y) : part(y);
      first += count;
    }
    return out(y);
  }

  Case of;
  nn::Linear& in = add<nn::Linear>("in", kWidth, kWidth);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& square = add<nn::Linear>("square", kWidth, kWidth);
  nn::Linear& out = add<nn::Linear>("out", kWidth, 1);
  bool skips_block = false;
};

// Rows of each micro-batch of a step, over all ranks. Empty micro-batches are at the end of a rank.
inline std::vector<std::int64_t> rows_of_step(const Case& of, int step) {
  const int ranks = of.ranks, each = of.per_rank();
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool is_empty = (of.samples == Samples::kFirstEmpty && rank == 0) ||
                          (of.samples == Samples::kLastEmpty && rank == ranks - 1) ||
                          (of.samples == Samples::kMiddleEmpty && rank == 1) ||
                          (of.joins() && rank != static_cast<int>(of.number) % ranks && step > rank);
    for (int i = 0; i < each; ++i)
      rows.push_back(is_empty ? 0 : of.samples == Samples::kEven || (rank + i) % 2 == 0 ? 4 : 3);
    // A rank distributes its rows itself, larger micro-batches first.
    std::sort(rows.end() - each, rows.end(), std::greater<>());
  }
  return rows;
}

struct Data {
  ls::Tensor x, y;
};
// The samples of a micro-batch; the first element of y is the micro-batch's number.
inline Data samples_of(const Case& of, int step, int micro_batch, std::int64_t rows) {
  const ls::DType dtype = of.precision == Precision::kF64 ? ls::kFloat64 : ls::kFloat32;
  const auto salt = static_cast<std::uint32_t>(1000 * step + micro_batch);
  return {numbers({rows, kWidth}, {.dtype = dtype, .device = device_of(of)}, salt),
          ls::full({rows, 1}, micro_batch, {.dtype = dtype, .device = device_of(of)})};
}

inline ls::Tensor loss_of(Model& model, const ls::Tensor& x, const ls::Tensor& y) {
  model.skips_block = model.skips(static_cast<int>(y.select(0, 0).item<double>()));
  const ls::Tensor difference = model(x) - y * 0.1;
  return ls::mean(difference * difference);
}

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
