// Parameters in f16 and bf16: their gradients are added up in f32, over micro-batches and ranks, and rounded once.
#include "tests/support/groups.h"

namespace {

using ls::parallel::DistributedDataParallel;
using ls::parallel::DistributedDataParallelOptions;
using ls::parallel::GradientAccumulation;
using ls::parallel::GradientAccumulationOptions;

// loss = mean(x w): the gradient of a micro-batch is the mean of its rows, in the parameter's format.
struct Weights : ls::nn::Module {
  explicit Weights(ls::DType dtype) : w(add_parameter("w", ls::full({3}, 1, {.dtype = dtype}))) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::mean(ls::sum(x * w->to(ls::kFloat32), {1})); }
  ls::nn::Parameter& w;
};

const auto kLoss = [](const Weights& model) {
  return [&model](const ls::Tensor& x, const ls::Tensor&) { return model(x); };
};

// One row per micro-batch. In f16, column 0 stays at 2048 when the rows are added in sequence, and column 1 also when
// two rounded pairs are added (2049 + 1); column 2 is exact.
const std::vector<double> kRows[] = {{2048, 2048, 4}, {1, 1, 5}, {1, 1, 6}, {1, 0, 7}};

ls::Tensor rows(std::int64_t first, std::int64_t count) {
  const ls::Tensor x = ls::zeros({count, 3});
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t c = 0; c < 3; ++c) x[r][c].fill_(kRows[(first + r) % 4][static_cast<std::size_t>(c)]);
  }
  return x;
}

// The mean over `micro_batches` rows, computed exactly and rounded once.
ls::Tensor rounded_mean(int micro_batches, ls::DType dtype, double plus = 0) {
  std::vector<double> mean;
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0;
    for (int s = 0; s < micro_batches; ++s) sum += kRows[s][c];
    mean.push_back(sum / micro_batches + plus);
  }
  return ls::tensor(mean, {.dtype = ls::kFloat64}).to(dtype);
}

}  // namespace

TEST_CASE("gradients in f16 and bf16 are added up in f32 over micro-batches and ranks, and rounded once") {
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
    for (const int micro_batches : {1, 2, 4}) {
      CAPTURE(ls::name(dtype));
      CAPTURE(micro_batches);
      const ls::Tensor want = rounded_mean(micro_batches, dtype);
      Weights model(dtype);
      GradientAccumulation(model, GradientAccumulationOptions{.micro_batches = micro_batches})
          .backward(rows(0, micro_batches), rows(0, micro_batches), kLoss(model));
      CHECK(same_bits(model.w->grad(), want));
      std::vector<ls::Device> devices;
      for (int s = 0; s < micro_batches; ++s) devices.emplace_back("cpu:" + std::to_string(s));
      model.zero_grad();
      ls::parallel::DataParallel(model, devices).backward(rows(0, micro_batches), rows(0, micro_batches), kLoss(model));
      CHECK(same_bits(model.w->grad(), want));
      for (int ranks = 1; ranks <= std::min(micro_batches, 4); ranks *= 2) {
        CAPTURE(ranks);
        with_group("local", ranks, [&](const Group& group) {
          Weights own(dtype);
          const int each = micro_batches / ranks;
          DistributedDataParallel ddp(own, group, {.micro_batches_per_rank = each});
          for (int step = 0; step < 2; ++step) {
            own.zero_grad();
            const ls::Tensor x = rows(group->rank() * each, each);
            const ls::Tensor loss = ddp.backward(x, x, kLoss(own));
            CHECK(same_bits(own.w->grad(), want));
            CHECK(loss.item<double>() ==
                  doctest::Approx(ls::mean(ls::sum(rows(0, micro_batches), {1})).item<double>()));
          }
          CHECK(ddp.stats().copies == 4);  // into the bucket and out of it, twice
        });
      }
    }
  }
}

TEST_CASE("a batch with fewer rows than devices is scaled before it is rounded, and a replica may lack a gradient") {
  const ls::Tensor x = ls::tensor({{2048.0, 0.0, 0.0}, {1.0, 0.0, 0.0}, {0.0, 0.0, 3.0}});
  Weights model(ls::kFloat16);
  ls::parallel::DataParallel(model, {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}).backward(x, x, kLoss(model));
  CHECK(same_bits(model.w->grad(), ls::tensor({683.0, 0.0, 1.0}, {.dtype = ls::kFloat16})));  // 2049 / 4 has no f16

  const ls::nn::Parameter spare = model.add_parameter("spare", ls::full({1}, 1, {.dtype = ls::kFloat16}));
  ls::parallel::DataParallel with_spare(model, {"cpu:0", "cpu:1", "cpu:2"});
  with_spare.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) {
    const ls::Tensor loss = model(x);
    return x[0][0].item<float>() == 1 ? loss : loss + ls::sum(spare->to(ls::kFloat32));  // without the middle replica
  });
  CHECK(spare->grad().item<float>() == doctest::Approx(2.0 / 3).epsilon(1e-3));
}

TEST_CASE("a separate backward reduces f16 gradients in f32, too, and a rank's unused parameters count as zero") {
  with_group("local", 2, [](const Group& group) {
    Weights model(ls::kFloat16);
    DistributedDataParallel ddp(model, group);
    ddp(rows(group->rank(), 1)).backward();
    CHECK(same_bits(model.w->grad(), rounded_mean(2, ls::kFloat16)));
    model.zero_grad();
    const ls::Tensor x = rows(0, 1 - group->rank());  // rank 1 has no rows
    ddp.backward(x, x, kLoss(model));
    CHECK(same_bits(model.w->grad(), rounded_mean(1, ls::kFloat16)));
  });
}

TEST_CASE("numbers of rows and losses are exact next to f16 gradients") {
  with_group("local", 2, [](const Group& group) {
    Weights model(ls::kFloat16);
    DistributedDataParallel ddp(model, group, {.weighting = ls::parallel::Weighting::kSamples});
    // 3001 and 100 rows: in f16 3101 is 3100, and a loss of 4097 is 4096.
    const std::int64_t count = group->rank() == 0 ? 3001 : 100;
    const ls::Tensor x = ls::full({count, 3}, group->rank() == 0 ? 0.0 : 31.01);
    const ls::Tensor loss = ddp.backward(x, x, kLoss(model));
    CHECK(loss.item<double>() == doctest::Approx(3.0).epsilon(1e-5));
    CHECK(model.w->grad().to(ls::kFloat64)[0].item<double>() == doctest::Approx(1.0).epsilon(1e-3));

    DistributedDataParallel equal(model, group);
    model.zero_grad();
    const ls::Tensor big = ls::full({1, 3}, 4097.0 / 3);
    CHECK(equal.backward(big, big, kLoss(model)).item<double>() == doctest::Approx(4097).epsilon(1e-6));
  });
}

TEST_CASE("accumulated gradients join f16 sums before rounding, or are added as autograd adds") {
  with_group("local", 2, [](const Group& group) {
    const int rank = group->rank();
    Weights model(ls::kFloat16);
    DistributedDataParallel ddp(model, group, {.micro_batches_per_rank = 2});
    const auto step = [&](double value) {
      const ls::Tensor x = ls::full({2, 3}, value);
      ddp.backward(x, x, kLoss(model));
    };
    {
      const auto guard = ddp.no_sync();
      step(2048);
    }
    step(rank == 0 ? 1 : 2);  // 2048 + 1.5, from ranks' sums of 2049 and 2050: 2049 is not representable in f16
    CHECK(model.w->grad().to(ls::kFloat32).max().item<float>() == 2050);
    step(4);  // without zero_grad: the mean accumulates
    CHECK(model.w->grad().to(ls::kFloat32).max().item<float>() == 2054);
  });
}

TEST_CASE("a model may be converted to f16 and back between steps") {
  with_group("local", 2, [](const Group& group) {
    Weights model(ls::kFloat32);
    DistributedDataParallel ddp(model, group);
    for (const ls::DType dtype : {ls::kFloat32, ls::kFloat16, ls::kBFloat16, ls::kFloat32}) {
      model.to(dtype);
      model.zero_grad();
      const ls::Tensor x = rows(group->rank(), 1);
      ddp.backward(x, x, kLoss(model));
      CHECK(same_bits(model.w->grad(), rounded_mean(2, dtype)));
    }
  });
}
