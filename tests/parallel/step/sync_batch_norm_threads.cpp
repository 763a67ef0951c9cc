// SyncBatchNorm where micro-batches and ranks are threads.
#include "tests/parallel/delayed/late_backend.h"
#include "tests/parallel/step/batch_statistics.h"

using namespace batch_statistics;

namespace {

// Rows of each rank: different numbers, and none.
const std::vector<std::vector<std::int64_t>> kRows = {{4, 4}, {5, 2}, {3, 1, 2}, {0, 6}, {2, 0, 3, 1}, {1, 1}};

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  std::int64_t sum = 0;
  for (const std::int64_t each : rows) sum += each;
  return sum;
}

// One layer, whose loss is sum(y weights): values, gradients and running statistics of the whole batch.
void check_layer(const std::vector<std::int64_t>& rows, ls::DType dtype, const nn::BatchNormOptions& options) {
  const auto ranks = static_cast<int>(rows.size());
  const std::int64_t all = sum_of(rows);
  const ls::Tensor x = numbers({all, 3, 5}, {.dtype = dtype}, 5) * 2 + 1,
                   weights = numbers(x.shape(), {.dtype = dtype}, 6);
  const auto run = [&](nn::BatchNorm& layer, const ls::Tensor& own, const ls::Tensor& of_own) {
    layer.to(dtype);
    if (options.affine) layer.weight.master().detach().copy_(numbers({3}, {}, 7));
    const ls::Tensor leaf = own.clone().requires_grad_();
    const ls::Tensor y = layer(leaf);
    ls::sum(y * of_own).backward();
    return std::pair{y.detach(), leaf.grad()};
  };
  nn::BatchNorm1d plain(3, options);
  const auto [want_y, want_grad] = run(plain, x, weights);
  const Tolerance near = dtype == ls::kFloat32 ? Tolerance{1e-6, 1e-6} : Tolerance{1e-13, 1e-13},
                  sums = dtype == ls::kFloat32 ? Tolerance{1e-6, 5e-6} : Tolerance{1e-13, 1e-12};
  const ls::Tensor y_of_all = want_y, grad_of_all = want_grad;
  with_group("local", ranks, [&](const Group& group) {
    std::int64_t first = 0;
    for (int r = 0; r < group->rank(); ++r) first += rows[static_cast<std::size_t>(r)];
    const std::int64_t count = rows[static_cast<std::size_t>(group->rank())];
    par::SyncBatchNorm layer(3, group, options);
    const auto got = run(layer, x.narrow(0, first, count), weights.narrow(0, first, count));
    check_close(got.first, y_of_all.narrow(0, first, count), "y", near);
    check_close(got.second, grad_of_all.narrow(0, first, count), "the gradient of x", sums);
    for (std::size_t p = 0; p < layer.parameters().size(); ++p) {
      const ls::Tensor sum = layer.parameters()[p]->grad().clone();
      group->all_reduce(sum)->wait();
      check_close(sum, plain.parameters()[p]->grad(), "a gradient", sums);
    }
    for (const auto& [name, buffer] : layer.named_buffers())
      check_close(*buffer, plain.state_dict().at(name), name, near);
  });
}

// The error of rank `r` in a step that runs `body(model, group)`, and a model that all ranks have converted.
template <class Body>
std::vector<std::string> errors(int ranks, const Body& body,
                                std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  std::vector<std::string> found(static_cast<std::size_t>(ranks));
  with_threads("local", ranks,
               [&](const Group& group) {
                 SyncNet model;
                 model.convert(group);
                 found[static_cast<std::size_t>(group->rank())] = error_of<ls::Error>([&] { body(model, group); });
               },
               {.timeout = timeout});
  return found;
}
ls::Tensor loss_of(const SyncNet& model, const ls::Tensor& x) { return ls::mean(model(x)); }

}  // namespace

TEST_CASE("SyncBatchNorm gives values, gradients and statistics of the whole batch") {
  for (const std::vector<std::int64_t>& rows : kRows) {
    for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
      CAPTURE(rows.size());
      check_layer(rows, dtype, {});
      check_layer(rows, dtype, {.momentum = std::nullopt, .affine = false});
      check_layer(rows, dtype, {.eps = 0.1, .track_running_stats = false});
    }
  }
}

TEST_CASE("SyncBatchNorm: DataParallel, DDP and every stage have the same bits, near to those of one batch") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    check_sync("local", ranks);
  }
}

TEST_CASE("SyncBatchNorm with recomputation has the same bits") {
  CHECK(same(on_replicas(3, /*recomputes=*/true), on_replicas(3)));
  CHECK(same(on_replicas(3, /*recomputes=*/true, /*own_backward=*/true), on_replicas(3, false, true)));
  check_sync("local", 2, /*recomputes=*/true);
}

TEST_CASE("SyncBatchNorm with unequal micro-batches weighted by samples trains as one batch") {
  SyncNet alone, replicated;
  par::GradientAccumulation one(alone);
  const Values want = train(one, 11, whole);
  par::DataParallel run(replicated.convert(nullptr), devices(4), {.weighting = par::Weighting::kSamples});
  const Values got = train(run, 11, whole);
  for (std::size_t i = 0; i < want.size(); ++i)
    check_close(got[i], want[i], "value " + std::to_string(i), {1e-5, 1e-6});
  with_group("local", 4, [&](const Group& group) {
    SyncNet model;
    par::DistributedDataParallel ddp(model.convert(group), group, {.weighting = par::Weighting::kSamples});
    const std::int64_t first = group->rank() * 3;
    CHECK(same(train(ddp, 11, [&](const Batch& all) { return all.part(first, std::min<std::int64_t>(3, 11 - first)); }),
               got));
  });
}

TEST_CASE("SyncBatchNorm in eval mode does not communicate") {
  with_group("local", 2, [](const Group& group) {
    SyncNet model;
    model.convert(group);
    model.eval();
    SyncNet plain;
    plain.eval();
    if (group->rank() == 0) CHECK(same_bits(model(batch(4, 0).x).detach(), plain(batch(4, 0).x).detach()));
  });
}

TEST_CASE("convert_sync_batchnorm converts each layer once, in place") {
  SyncNet model;
  const nn::BatchNorm* const layer = model.images;
  const std::vector<std::string> names = [&] {
    std::vector<std::string> found;
    for (const auto& [name, tensor] : model.state_dict()) found.push_back(name);
    return found;
  }();
  CHECK(par::convert_sync_batchnorm(model, nullptr) == 2);
  CHECK(par::convert_sync_batchnorm(model, nullptr) == 0);
  CHECK(model.images == layer);
  std::size_t at = 0;
  for (const auto& [name, tensor] : model.state_dict()) CHECK(name == names[at++]);
  nn::Linear linear(2, 2);
  CHECK(par::convert_sync_batchnorm(linear, nullptr) == 0);
  nn::Sequential moved(nn::Linear(3, 4), par::SyncBatchNorm(4, nullptr));
  CHECK(moved(numbers({5, 3})).shape() == ls::Shape{5, 4});
  CHECK(moved[1].type_name() == "SyncBatchNorm");
}

TEST_CASE("SyncBatchNorm: micro-batches one after another are an error that says what to do") {
  SyncNet model;
  model.convert(nullptr);
  const Batch all = batch(8, 0);
  const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor&) { return loss_of(model, x); };
  par::GradientAccumulation run(model, {.micro_batches = 2});
  CHECK(error_of([&] { run.backward(all.x, all.y, loss_fn); }) ==
        "images: SyncBatchNorm: 2 micro-batches run one after another here and cannot share statistics\nUse one "
        "micro-batch per rank or replica, or BatchNorm with .all_micro_batches");
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::string& error : errors(2, [&](SyncNet&net, const Group&group) {
           with_stage(stage, net, group, 2, [&](auto& mode) {
             mode.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor&) { return loss_of(net, x); });
             return 0;
           });
         }))
      CHECK(contains(error, "2 micro-batches run one after another"));
  }
}

TEST_CASE("SyncBatchNorm in a stage of a Pipeline with several micro-batches is an error on all ranks") {
  with_threads("local", 2, [](const Group& group) {
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 2));
    par::convert_sync_batchnorm(net, nullptr);
    par::Pipeline run(net, par::DeviceMesh(group, {{"pp", 2}}),
                      {.chain = {"0", "1", "2"}, .micro_batches_per_rank = 2});
    const auto step = [&] {
      run.backward(numbers({8, 3}), numbers({8, 2}),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(net(x), y); });
    };
    if (group->rank() == 0)
      CHECK(contains(error_of(step), "2 micro-batches run one after another"));
    else
      CHECK_THROWS_AS(step(), ls::CommError);
  });
}

TEST_CASE("SyncBatchNorm: the mode's group and the layer's must have the same ranks") {
  for (const std::string& error : errors(2, [](SyncNet&net, const Group&) { par::GradientAccumulation run(net); }))
    CHECK(
        contains(error, "GradientAccumulation: the group of a SyncBatchNorm has the ranks [0, 1], and the mode's []"));
  for (const std::string& error : errors(2, [](SyncNet&net, const Group&) { par::DataParallel run(net, devices(2)); }))
    CHECK(contains(error, "DataParallel: the group of a SyncBatchNorm has the ranks [0, 1]"));
  with_group("local", 2, [](const Group& group) {
    SyncNet net;
    net.convert(nullptr);
    CHECK(contains(error_of([&] { par::DistributedDataParallel run(net, group); }),
                   "has the ranks [], and the mode's [0, 1]"));
  });
}

TEST_CASE("SyncBatchNorm: a rank without samples, join, one value, second derivatives") {
  const auto few = [](SyncNet& net, const Group& group) {
    par::DistributedDataParallel run(net, group);
    const Batch own = batch(4, 0).part(0, group->rank() == 0 ? 4 : 0);
    run.backward(own.x, own.y, [&](const ls::Tensor& x, const ls::Tensor&) { return loss_of(net, x); });
  };
  const std::vector<std::string> no_samples = errors(2, few);
  CHECK(contains(no_samples[0], "rank 1"));
  CHECK(contains(no_samples[1], "DistributedDataParallel: rank 1 has no samples in this step"));
  for (const std::string& error : errors(2, [](SyncNet&net, const Group&group) {
         par::DistributedDataParallel run(net, group);
         run.join([] {});
       }))
    CHECK(contains(error, "join of a model with SyncBatchNorm"));
  const par::SyncBatchNorm layer(2, nullptr);
  CHECK(contains(error_of([&] { layer(numbers({1, 2})); }), "a variance needs more than one value"));
  CHECK(contains(error_of([&] { layer(numbers({4, 3})); }), "expected (n, 2, ...)"));
  CHECK(layer(numbers({0, 2})).shape() == ls::Shape{0, 2});
  const ls::Tensor x = numbers({4, 2}).requires_grad_();
  CHECK(contains(error_of([&] { ls::autograd::grad(ls::sum(ls::square(layer(x))), x, {.create_graph = true}); }),
                 "second derivatives are not supported"));
}

TEST_CASE("SyncBatchNorm: a rank or replica that fails is named, and no other waits for it") {
  const std::vector<std::string> failed = errors(3, [](SyncNet& net, const Group& group) {
    par::DistributedDataParallel run(net, group);
    const Batch own = batch(4, 0);
    run.backward(own.x, own.y, [&](const ls::Tensor& x, const ls::Tensor&) -> ls::Tensor {
      if (group->rank() == 1) throw ls::IoError("the disk is full");
      return loss_of(net, x);
    });
  });
  CHECK(failed[1] == "the disk is full");
  for (const int rank : {0, 2}) CHECK(contains(failed[static_cast<std::size_t>(rank)], "the disk is full"));

  SyncNet net;
  net.convert(nullptr);
  par::DataParallel run(net, devices(3));
  const Batch all = batch(6, 0);
  const auto step = [&](bool fails) {
    run.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor&) -> ls::Tensor {
      if (fails && x.device() == ls::Device("cpu:1")) throw ls::IoError("the disk is full");
      return loss_of(net, x);
    });
  };
  CHECK(error_of<ls::Error>([&] { step(true); }) == "DataParallel: replica 1 on cpu:1: the disk is full");
  CHECK_NOTHROW(step(false));
  CHECK(contains(error_of<ls::Error>([&] {
                   run.backward(all.x, all.y, [&](const ls::Tensor& x, const ls::Tensor&) {
                     return x.device() == ls::Device("cpu:1") ? ls::mean(net.conv(x)) : loss_of(net, x);
                   });
                 }),
                 "waits for replica 1, which has ended"));
}

TEST_CASE("SyncBatchNorm: a rank in another mode is an error of all within the timeout") {
  with_threads("local", 2,
               [](const Group& group) {
                 SyncNet net;
                 net.convert(group);
                 if (group->rank() == 1) net.eval();
                 par::DistributedDataParallel run(net, group);
                 const Batch own = batch(4, 0);
                 CHECK_THROWS_AS(run.backward(own.x, own.y,
                                              [&](const ls::Tensor& x, const ls::Tensor&) { return loss_of(net, x); }),
                                 ls::CommError);
               },
               {.timeout = std::chrono::milliseconds(500)});
}

TEST_CASE("SyncBatchNorm has the same bits where messages are late" * doctest::skip(!late_backend())) {
  for (const int ranks : {2, 3, 4}) {
    const Values want = on_replicas(ranks);
    with_threads(late_backend(), ranks, [&](const Group& group) { check_ranks(group, want); },
                 {.reduction = par::Reduction::kCanonical});
  }
}
