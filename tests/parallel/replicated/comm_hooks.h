// Models and checks for communication hooks, for every backend.
#pragma once

#include <vector>

#include "tests/support/groups.h"

using Shapes = std::vector<ls::Shape>;

// A module whose gradients are the tensors passed to loss(): loss = sum(w * x).
struct Given : ls::nn::Module {
  explicit Given(const Shapes& shapes, ls::DType dtype = ls::kFloat32) {
    for (const ls::Shape& shape : shapes)
      add_parameter("w" + std::to_string(parameters().size()), ls::zeros(shape, {.dtype = dtype}));
  }
  ls::Tensor loss(const std::vector<ls::Tensor>& gradients) const {
    ls::Tensor sum;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const ls::Tensor part = ls::sum(*parameters()[i] * gradients[i]);
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  }
};

// Runs one step with the gradients `own` on this rank and returns the gradients after it.
inline std::vector<ls::Tensor> averaged(const Given& model, const std::vector<ls::Tensor>& own) {
  for (const ls::nn::Parameter& p : model.parameters()) p->set_grad(ls::Tensor());
  model.loss(own).backward();
  std::vector<ls::Tensor> grads;
  for (const ls::nn::Parameter& p : model.parameters())
    grads.push_back(p->grad().defined() ? p->grad().clone() : ls::Tensor());
  return grads;
}

inline ls::Tensor gradient_of(int rank, const ls::Shape& shape, std::uint32_t salt = 0) {
  return numbers(shape, {}, 1000 * (1 + static_cast<std::uint32_t>(rank)) + salt);
}

// The mean over the ranks in canonical order (up to 4 ranks): each gradient is rounded to `dtype`, the sum is taken in
// f32.
inline ls::Tensor mean_by_hand(const std::vector<ls::Tensor>& gradients, ls::DType dtype) {
  std::vector<ls::Tensor> sums;
  for (const ls::Tensor& each : gradients) sums.push_back(each.to(dtype).to(ls::kFloat32));
  while (sums.size() > 1) {
    std::vector<ls::Tensor> next;
    for (std::size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 == 1) next.push_back(sums.back());
    sums = next;
  }
  return (sums[0] * (1.0 / static_cast<double>(gradients.size()))).to(dtype).to(ls::kFloat32);
}

inline void check_same_on_all(const Group& group, const ls::Tensor& own) {
  const ls::Tensor first = own.clone();
  group->broadcast(first, 0)->wait();
  CHECK(same_bits(first, own));
}

inline double error_of_mean(const ls::Tensor& have, const ls::Tensor& want) {
  return (ls::norm(have - want) / ls::norm(want)).item<double>();
}

// Checks that the cast hooks equal rounding by hand, bit for bit.
inline void check_casts(const Group& group) {
  using ls::parallel::DistributedDataParallel;
  const Shapes shapes = {{5, 7}, {3}};
  for (const bool f16 : {true, false}) {
    Given model(shapes);
    DistributedDataParallel ddp(model, group);
    ddp.register_comm_hook(f16 ? ls::parallel::fp16_compress_hook() : ls::parallel::bf16_compress_hook());
    for (std::uint32_t step = 0; step < 2; ++step) {
      std::vector<ls::Tensor> own;
      for (std::size_t i = 0; i < shapes.size(); ++i)
        own.push_back(gradient_of(group->rank(), shapes[i], step + 7 * static_cast<std::uint32_t>(i)));
      const std::vector<ls::Tensor> have = averaged(model, own);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        std::vector<ls::Tensor> all;
        for (int r = 0; r < group->size(); ++r)
          all.push_back(gradient_of(r, shapes[i], step + 7 * static_cast<std::uint32_t>(i)));
        CHECK(same_bits(have[i], mean_by_hand(all, f16 ? ls::kFloat16 : ls::kBFloat16)));
      }
    }
  }
}

// Checks PowerSGD on matrices of at most its rank: the result is exact up to rounding (in f32 the error is larger
// where factors are nearly parallel), and its bits are the same on all ranks.
inline void check_power_sgd(const Group& group, std::int64_t rank, ls::DType dtype) {
  Given model(Shapes{{20, 4, 5}, {6}, {16, 24}, {3, 2}}, dtype);
  ls::parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 0.002});
  ddp.register_comm_hook(
      std::make_shared<ls::parallel::PowerSgdHook>(ls::parallel::PowerSgdOptions{.rank = rank, .start_iteration = 0}));
  const double tolerance = dtype == ls::kFloat64 ? 1e-9 : rank == 1 ? 1e-5 : 1e-3;
  for (std::uint32_t step = 0; step < 3; ++step) {
    std::vector<ls::Tensor> means, own;
    for (int r = 0; r < group->size(); ++r) {
      // The ranks' matrices share the right factor, so the rank of their mean is that of the right factor.
      const auto product = [&](std::int64_t n, std::int64_t m) {
        return ls::matmul(gradient_of(r, {n, rank}, step).to(dtype), numbers({rank, m}, {.dtype = dtype}, 5 + step));
      };
      const std::vector<ls::Tensor> each = {product(20, 20).view({20, 4, 5}), gradient_of(r, {6}, step).to(dtype),
                                            product(16, 24), gradient_of(r, {3, 2}, step).to(dtype)};
      for (std::size_t i = 0; i < each.size(); ++i) {
        const ls::Tensor part = each[i] / group->size();
        if (r == 0) means.push_back(part);
        if (r > 0) means[i] = means[i] + part;
      }
      if (r == group->rank()) own = each;
    }
    const std::vector<ls::Tensor> have = averaged(model, own);
    for (std::size_t i = 0; i < have.size(); ++i) {
      CHECK(error_of_mean(have[i], means[i]) < tolerance);
      check_same_on_all(group, have[i]);
    }
  }
}
