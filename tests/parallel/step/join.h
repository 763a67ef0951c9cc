// Training with different numbers of batches on each rank, compared with the same steps computed by one process.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/groups.h"

// y = x w + b, and a buffer that counts forwards.
struct Counting : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 3, 5);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 5, 2);
  ls::nn::Buffer& seen = add_buffer("seen", ls::zeros({1}));
  explicit Counting(std::uint32_t salt = 1) {
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    {
      const ls::NoGradGuard no_grad;
      seen->add_(ls::ones({1}));
    }
    return fc2(ls::relu(fc1(x)));
  }
};

struct UnevenRun {
  std::vector<int> batches = {};  // by rank
  bool by_initial = true;         // divide_by_initial_world_size
  bool verb = true;               // backward(x, y, loss_fn), else loss.backward()
  ls::parallel::DistributedDataParallelOptions ddp = {};
  std::shared_ptr<ls::parallel::CommHook> (*hook)() = nullptr;
};

inline constexpr double kUnevenRate = 0.05;

// Batch k of a rank: 2 or 4 rows, so that two micro-batches have the same number.
struct UnevenBatch {
  UnevenBatch(int rank, int k)
      : x(numbers({rows(rank, k), 3}, {}, static_cast<std::uint32_t>(100 * rank + k + 7))),
        y(numbers({rows(rank, k), 2}, {}, static_cast<std::uint32_t>(100 * rank + k + 57))) {}
  static std::int64_t rows(int rank, int k) { return 2 + 2 * ((rank + k) % 2); }
  ls::Tensor x, y;
};

inline std::vector<ls::Tensor> copies_of(const ls::nn::Module& module) {
  std::vector<ls::Tensor> copies;
  for (const ls::nn::Parameter& p : module.parameters()) copies.push_back(p->detach().clone());
  return copies;
}

// Runs the same steps in one process: in step k the ranks that have a batch k take part. Returns the parameters, and
// the mean loss of each step in `losses`.
inline std::vector<ls::Tensor> uneven_reference(const UnevenRun& run, std::vector<double>& losses) {
  Counting model;
  ls::optim::SGD optimizer(model.parameters(), {.lr = kUnevenRate});
  const int ranks = static_cast<int>(run.batches.size()), steps = *std::ranges::max_element(run.batches);
  const bool weighted = run.ddp.weighting == ls::parallel::Weighting::kSamples;
  for (int k = 0; k < steps; ++k) {
    optimizer.zero_grad();
    double weights = 0, active = 0, loss_sum = 0;
    for (int r = 0; r < ranks; ++r) {
      if (k >= run.batches[static_cast<std::size_t>(r)]) continue;
      const UnevenBatch batch(r, k);
      const double weight = weighted ? static_cast<double>(UnevenBatch::rows(r, k)) : 1;
      const ls::Tensor loss = ls::nn::MSELoss()(model(batch.x), batch.y) * weight;
      loss.backward();
      weights += weight;
      loss_sum += loss.item<double>();
      ++active;
    }
    const double divisor = weighted ? weights : run.by_initial ? ranks : active;
    for (const ls::nn::Parameter& p : model.parameters()) p->set_grad(p->grad() / divisor);
    losses.push_back(loss_sum / weights);
    optimizer.step();
  }
  return copies_of(model);
}

// Trains with join on a rank of `group`, and compares with the reference, on all ranks.
inline void check_uneven(const Group& group, const UnevenRun& run) {
  std::vector<double> losses;
  const std::vector<ls::Tensor> want = uneven_reference(run, losses);
  Counting model(group->rank() == 0 ? 1 : 99);
  ls::parallel::DistributedDataParallel ddp(model, group, run.ddp);
  if (run.hook) ddp.register_comm_hook(run.hook());
  ls::optim::SGD optimizer(model.parameters(), {.lr = kUnevenRate});
  const int own = run.batches[static_cast<std::size_t>(group->rank())], most = *std::ranges::max_element(run.batches);
  ddp.join(
      [&] {
        for (int k = 0; k < own; ++k) {
          const UnevenBatch batch(group->rank(), k);
          optimizer.zero_grad();
          if (run.verb) {
            const ls::Tensor loss = ddp.backward(batch.x, batch.y, [&](const ls::Tensor& x, const ls::Tensor& y) {
              return ls::nn::MSELoss()(model(x), y);
            });
            CHECK(loss.item<double>() == doctest::Approx(losses[static_cast<std::size_t>(k)]).epsilon(1e-4));
          } else {
            ls::nn::MSELoss()(ddp(batch.x), batch.y).backward();
          }
          optimizer.step();
        }
      },
      {.divide_by_initial_world_size = run.by_initial});
  CHECK(ddp.stats().steps == most);
  CHECK(model.seen->item<double>() == most);  // one forward per step, on the rank whose buffers count
  const auto named = model.named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    CHECK(!named[i].second->grad().defined());
    check_close(*named[i].second, want[i], named[i].first, {1e-4, 1e-5});
  }
  const ls::Tensor hashes = ls::zeros({group->size()}, {.dtype = ls::kInt64});
  const auto hash = static_cast<std::int64_t>(ls::nn::parameter_hash(model));
  group->all_gather(hashes, ls::tensor(std::vector<std::int64_t>{hash}))->wait();
  for (const std::int64_t each : hashes.to_vector<std::int64_t>()) CHECK(each == hash);
}
