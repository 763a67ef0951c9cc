// Models with batch normalisation, trained in every mode.
#pragma once

#include <functional>

#include "tests/support/groups.h"

namespace batch_statistics {

namespace nn = ls::nn;
namespace par = ls::parallel;

// Images of 6 x 6 with two channels -> 3 numbers. The second layer is used twice.
template <class Norm1, class Norm2>
struct Net : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", 2, 4, 3);
  nn::Linear& hidden = add<nn::Linear>("hidden", 4, 5);
  nn::Linear& head = add<nn::Linear>("head", 5, 3);
  Norm1* images = nullptr;
  Norm2* vectors = nullptr;
  bool recompute = false;

  void fill() {
    std::uint32_t salt = 0;
    const ls::NoGradGuard no_grad;
    for (const nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto body = [this](const ls::Tensor& x) {
      const ls::Tensor y = hidden(ls::mean(ls::relu((*images)(conv(x))), {2, 3}));
      return (*vectors)(y + 0.5 * (*vectors)(y));
    };
    return head(ls::gelu_tanh(recompute ? ls::autograd::checkpoint(body, x) : body(x)));
  }
};

struct Batch {
  ls::Tensor x, y;
  Batch part(std::int64_t first, std::int64_t count) const {
    return {x.narrow(0, first, count), y.narrow(0, first, count)};
  }
};
inline Batch batch(std::int64_t samples, int step) {
  const auto salt = static_cast<std::uint32_t>(step);
  return {numbers({samples, 2, 6, 6}, {}, 100 + salt) + 0.5, numbers({samples, 3}, {}, 200 + salt)};
}

// Parameters and buffers.
using Values = std::vector<ls::Tensor>;
template <class Run>
Values values_of(Run& run) {
  Values values;
  run.gathered([&] {
    for (const auto& [name, tensor] : run.module().state_dict()) values.push_back(tensor.clone());
  });
  return values;
}
inline bool same(const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

// Three steps of which `part_of` takes this rank's samples.
template <class Run>
Values train(Run& run, std::int64_t samples, const std::function<Batch(const Batch&)>& part_of,
             bool own_backward = false) {
  ls::optim::SGD optimizer(run.parameters(), {.lr = 0.05, .momentum = 0.9});
  const nn::MSELoss criterion;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Batch own = part_of(batch(samples, step));
    if (own_backward)
      criterion(run(own.x), own.y).backward();
    else
      run.backward(own.x, own.y,
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(run.module()(x), y); });
    optimizer.step();
  }
  return values_of(run);
}
inline Batch whole(const Batch& batch) { return batch; }
// Equal parts of the ranks.
inline std::function<Batch(const Batch&)> part(int rank, int ranks) {
  return [=](const Batch& all) {
    const std::int64_t count = all.x.size(0) / ranks;
    return all.part(rank * count, count);
  };
}

inline std::vector<ls::Device> devices(int count) {
  std::vector<ls::Device> list;
  for (int i = 0; i < count; ++i) list.emplace_back("cpu:" + std::to_string(i));
  return list;
}

// body(run) with a mode over ranks: DistributedDataParallel as stage 0, or ShardedDataParallel.
template <class Body>
auto with_stage(int stage, nn::Module& module, const Group& group, int micro_batches_per_rank, const Body& body) {
  if (stage == 0) {
    par::DistributedDataParallel run(module, group, {.micro_batches_per_rank = micro_batches_per_rank});
    return body(run);
  }
  par::ShardedDataParallel run(module, group, {.stage = stage, .micro_batches_per_rank = micro_batches_per_rank});
  return body(run);
}

// --- BatchNormOptions::all_micro_batches ----------------------------------------------------------------------------

struct AllNet : Net<nn::BatchNorm2d, nn::BatchNorm1d> {
  explicit AllNet(std::optional<double> momentum, bool all = true) {
    const nn::BatchNormOptions options{.momentum = momentum, .all_micro_batches = all};
    images = &add<nn::BatchNorm2d>("images", 4, options);
    vectors = &add<nn::BatchNorm1d>("vectors", 5, options);
    fill();
  }
};

inline Values accumulated(std::optional<double> momentum, int micro_batches, std::int64_t samples = 24) {
  AllNet model(momentum);
  par::GradientAccumulation run(model, {.micro_batches = micro_batches});
  return train(run, samples, whole);
}

// Every mode over ranks that divides `micro_batches`.
inline void check_all_micro_batches(const std::string& backend, std::optional<double> momentum, int micro_batches,
                                    int ranks) {
  const Values want = accumulated(momentum, micro_batches);
  with_group(backend, ranks,
             [&](const Group& group) {
               for (int stage = 0; stage <= 3; ++stage) {
                 CAPTURE(stage);
                 AllNet model(momentum);
                 const Values got = with_stage(stage, model, group, micro_batches / ranks,
                                               [&](auto& run) { return train(run, 24, part(group->rank(), ranks)); });
                 CHECK(same(got, want));
               }
             },
             {.reduction = par::Reduction::kCanonical});
}

// --- SyncBatchNorm --------------------------------------------------------------------------------------------------

// The whole batch in one process, with BatchNorm; or with SyncBatchNorm after `convert`.
struct SyncNet : Net<nn::BatchNorm2d, nn::BatchNorm1d> {
  explicit SyncNet(bool recomputes = false) {
    images = &add<nn::BatchNorm2d>("images", 4);
    vectors = &add<nn::BatchNorm1d>("vectors", 5, nn::BatchNormOptions{.momentum = std::nullopt});
    fill();
    recompute = recomputes;
  }
  SyncNet& convert(const Group& group) {
    CHECK(par::convert_sync_batchnorm(*this, group) == 2);
    return *this;
  }
};

inline Values on_replicas(int replicas, bool recomputes = false, bool own_backward = false) {
  SyncNet model(recomputes);
  model.convert(nullptr);
  par::DataParallel run(model, devices(replicas));
  return train(run, 24, whole, own_backward);
}

// Every mode over ranks.
inline void check_ranks(const Group& group, const Values& want, bool recomputes = false) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool own_backward : {false, true}) {
      CAPTURE(stage);
      SyncNet model(recomputes);
      const Values got = with_stage(stage, model.convert(group), group, 1, [&](auto& run) {
        return train(run, 24, part(group->rank(), group->size()), own_backward);
      });
      CHECK(same(got, want));
    }
  }
}

// Every mode over ranks gives the bits of DataParallel, which are near to those of BatchNorm on the whole batch.
inline void check_sync(const std::string& backend, int ranks, bool recomputes = false) {
  const Values want = on_replicas(ranks);
  SyncNet alone;
  par::GradientAccumulation one(alone);
  const Values near = train(one, 24, whole);
  for (std::size_t i = 0; i < want.size(); ++i)
    check_close(want[i], near[i], "value " + std::to_string(i), {1e-5, 1e-6});
  with_group(backend, ranks, [&](const Group& group) { check_ranks(group, want, recomputes); },
             {.reduction = par::Reduction::kCanonical});
}

}  // namespace batch_statistics
