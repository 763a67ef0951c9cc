// all_reduce message by message: the result of each algorithm, its traffic, and the events for an observer.
#include "lockstep/parallel/simulate/simulate.h"

#include <map>
#include <mutex>

#include "tests/parallel/comm/collectives.h"

namespace {

namespace par = ls::parallel;
using par::Algorithm;

constexpr Algorithm kAll[] = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling,
                              Algorithm::kDoubling};

class Recorder final : public par::HopObserver {
 public:
  void on_hop(const par::HopEvent& event) override {
    const std::lock_guard lock(mutex);
    sent[event.hop.from] += event.hop.end - event.hop.begin;
    steps = std::max(steps, event.step + 1);
    ++hops;
  }
  std::mutex mutex;
  std::map<int, std::int64_t> sent;
  int steps = 0, hops = 0;
};

ls::Tensor own_numbers(int rank, std::int64_t count, ls::DType dtype = ls::kFloat32) {
  return ls::sin(ls::arange(0, count, 1, {.dtype = ls::kFloat64}) * (1.0 + rank)).to(dtype);
}

par::InitOptions sim_options(const par::SimOptions& options) { return {.backend = "sim", .backend_options = options}; }

// Every rank's result of one all_reduce.
std::vector<ls::Tensor> reduce(int size, const par::InitOptions& options, const std::function<ls::Tensor(int)>& given,
                               par::ReduceOp op = par::ReduceOp::kSum) {
  std::vector<ls::Tensor> results(static_cast<std::size_t>(size));
  with_threads(
      options.backend, size,
      [&](const Group& group) {
        const ls::Tensor t = given(group->rank());
        group->all_reduce(t, op)->wait();
        results[static_cast<std::size_t>(group->rank())] = t;
      },
      options);
  return results;
}

int ceil_log2(int n) {
  int levels = 0;
  while ((1 << levels) < n) ++levels;
  return levels;
}

}  // namespace

TEST_CASE("hops: every algorithm's sums equal the direct ones, for any number of ranks and elements") {
  for (const Algorithm algorithm : kAll) {
    for (int size = 1; size <= 9; ++size) {
      const auto recorder = std::make_shared<Recorder>();
      with_threads(
          "sim", size,
          [&](const Group& group) {
            for (const std::int64_t rows : {0, 1, 2, 5, 7, 64, 333}) {
              for (const par::ReduceOp op : {par::ReduceOp::kSum, par::ReduceOp::kMin, par::ReduceOp::kMax}) {
                for (const ls::DType dtype : {ls::kFloat32, ls::kInt64, ls::kBFloat16}) {
                  const ls::Tensor t = given_tensor(group->rank(), {rows, 3}, dtype, /*strided=*/rows % 2 == 1);
                  group->all_reduce(t, op)->wait();
                  expect_same(t, combined(size, {rows, 3}, dtype, op), par::name(algorithm));
                }
              }
            }
          },
          sim_options({.algorithm = algorithm, .observer = recorder}));
    }
  }
}

TEST_CASE("hops: averages are scaled once, and all ranks have the same bits") {
  for (const Algorithm algorithm : kAll) {
    for (int size = 2; size <= 9; ++size) {
      CAPTURE(size);
      for (const std::int64_t count : {1, 3, 1001}) {
        const auto results = reduce(
            size, sim_options({.algorithm = algorithm}), [&](int r) { return own_numbers(r, count); },
            par::ReduceOp::kAvg);
        ls::Tensor mean = own_numbers(0, count, ls::kFloat64);
        for (int r = 1; r < size; ++r) mean = mean + own_numbers(r, count, ls::kFloat64);
        mean = mean / static_cast<double>(size);
        for (const ls::Tensor& result : results) {
          expect_same(result, results[0], par::name(algorithm));
          CHECK(ls::max(ls::abs(result.to(ls::kFloat64) - mean)).item<double>() < 1e-6);
        }
      }
    }
  }
}

TEST_CASE("hops: direct, and tree, and both doublings of a power of two, add in canonical order; the ring does not") {
  const auto given = [](int r) { return own_numbers(r, 4099); };
  for (int size = 2; size <= 9; ++size) {
    CAPTURE(size);
    const ls::Tensor want = reduce(size, {.backend = "local"}, given)[0];
    const auto have = [&](Algorithm a) {
      return reduce(size, sim_options({.algorithm = a, .observer = std::make_shared<Recorder>()}), given)[0];
    };
    expect_same(have(Algorithm::kDirect), want, "direct");
    expect_same(have(Algorithm::kTree), want, "tree");
    if ((size & (size - 1)) == 0) {
      expect_same(have(Algorithm::kHalvingDoubling), want, "halving_doubling");
      expect_same(have(Algorithm::kDoubling), want, "doubling");
    }
    if (size > 2) CHECK_FALSE(same_bits(have(Algorithm::kRing), want));
  }
}

TEST_CASE("hops: reduce_scatter and all_gather give the results of the other backends, in the bytes of closed forms") {
  for (const Algorithm algorithm : kAll) {
    for (int size = 2; size <= 9; ++size) {
      for (const std::int64_t part : {0, 1, 7, 64}) {
        CAPTURE(par::name(algorithm));
        CAPTURE(size);
        CAPTURE(part);
        const bool has_plan = par::HopPlan::exists(algorithm, par::Collective::kAllGather);
        CHECK(has_plan == (algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing));
        const auto scattered = std::make_shared<Recorder>(), gathered = std::make_shared<Recorder>();
        const auto check_recorded = [&](Recorder& recorder, par::Collective collective) {
          if (!has_plan) {
            CHECK(recorder.hops == 0);
            return;
          }
          const par::HopPlan plan(algorithm, size, part * size, collective);
          CHECK(plan.reduce_steps() == (collective == par::Collective::kReduceScatter ? plan.steps() : 0));
          CHECK(plan.steps() == (algorithm == Algorithm::kDirect ? 1 : size - 1));
          CHECK(recorder.steps == (part > 0 ? plan.steps() : 0));
          for (int r = 0; r < size; ++r) {
            CHECK(recorder.sent[r] == part * (size - 1));
            CHECK(plan.sent_by(r) == part * (size - 1));
          }
          CHECK(plan.ideal_sent() == static_cast<double>(part * (size - 1)));
        };
        for (const bool gathers : {false, true}) {
          with_threads(
              "sim", size,
              [&](const Group& group) {
                const ls::Tensor in = given_tensor(group->rank(), {size, part}, ls::kInt64, /*strided=*/true);
                const std::int64_t before = group->traffic().bytes();
                if (gathers) {
                  const ls::Tensor out = ls::zeros({size, part}, {.dtype = ls::kInt64});
                  group->all_gather(out, in.select(0, group->rank()))->wait();
                  for (int r = 0; r < size; ++r) {
                    const ls::Tensor want = given_tensor(r, {size, part}, ls::kInt64, /*strided=*/false);
                    expect_same(out.select(0, r), want.select(0, r), "all_gather");
                  }
                } else {
                  const ls::Tensor out = ls::zeros({part}, {.dtype = ls::kInt64});
                  group->reduce_scatter(out, in)->wait();
                  const ls::Tensor want = combined(size, {size, part}, ls::kInt64, par::ReduceOp::kSum);
                  expect_same(out, want.select(0, group->rank()), "reduce_scatter");
                }
                CHECK(group->traffic().bytes() - before == 8 * part * (size - 1));
              },
              sim_options({.algorithm = algorithm, .observer = gathers ? gathered : scattered}));
        }
        check_recorded(*scattered, par::Collective::kReduceScatter);
        check_recorded(*gathered, par::Collective::kAllGather);
      }
    }
  }
}

TEST_CASE("hops: a reduce_scatter by direct messages adds in canonical order and scales once, as local does") {
  const auto reduced = [](const par::InitOptions& options, int size) {
    std::vector<ls::Tensor> results(static_cast<std::size_t>(size));
    with_threads(
        options.backend, size,
        [&](const Group& group) {
          const ls::Tensor out = ls::zeros({1001});
          group->reduce_scatter(out, own_numbers(group->rank(), 1001 * size), par::ReduceOp::kAvg)->wait();
          results[static_cast<std::size_t>(group->rank())] = out;
        },
        options);
    return results;
  };
  for (const int size : {2, 3, 5, 8}) {
    const auto want = reduced({.backend = "local"}, size), have = reduced(sim_options({}), size);
    for (std::size_t r = 0; r < want.size(); ++r) expect_same(have[r], want[r], "reduce_scatter");
  }
  CHECK_THROWS_AS(par::HopPlan(Algorithm::kTree, 4, 8, par::Collective::kReduceScatter), ls::InvalidArgument);
}

TEST_CASE("hops: bytes and steps follow the closed forms, and the traffic counters agree") {
  for (const Algorithm algorithm : kAll) {
    for (int size = 2; size <= 9; ++size) {
      for (const std::int64_t count : {0, 1, 5, 12, 2520, 1001}) {  // 2520 is divisible by 1 to 9
        CAPTURE(par::name(algorithm));
        CAPTURE(size);
        CAPTURE(count);
        const auto recorder = std::make_shared<Recorder>();
        std::vector<std::int64_t> counted(static_cast<std::size_t>(size));
        with_threads(
            "sim", size,
            [&](const Group& group) {
              group->all_reduce(ls::ones({count}))->wait();
              counted[static_cast<std::size_t>(group->rank())] = group->traffic().bytes();
            },
            sim_options({.algorithm = algorithm, .observer = recorder}));
        const par::HopPlan plan(algorithm, size, count);
        std::int64_t all = 0, most = 0;
        for (int r = 0; r < size; ++r) {
          CHECK(recorder->sent[r] == plan.sent_by(r));
          CHECK(counted[static_cast<std::size_t>(r)] == 4 * plan.sent_by(r));
          all += recorder->sent[r];
          most = std::max(most, recorder->sent[r]);
        }
        if (count == 2520) CHECK(static_cast<double>(most) == plan.ideal_sent());
        const bool is_power = (size & (size - 1)) == 0;
        if (algorithm == Algorithm::kDoubling && is_power) CHECK(all == size * ceil_log2(size) * count);
        if (algorithm != Algorithm::kDoubling && (algorithm != Algorithm::kHalvingDoubling || is_power))
          CHECK(all == 2 * (size - 1) * count);
        if (count < size) continue;
        const int log2 = ceil_log2(size);
        const int steps = algorithm == Algorithm::kDirect                         ? 2
                          : algorithm == Algorithm::kRing                         ? 2 * (size - 1)
                          : algorithm == Algorithm::kDoubling                     ? (is_power ? log2 : log2 - 1 + 2)
                          : !is_power && algorithm == Algorithm::kHalvingDoubling ? 2 * (log2 - 1) + 2
                                                                                  : 2 * log2;
        CHECK(plan.steps() == steps);
        CHECK(recorder->steps == steps);
      }
    }
  }
}

TEST_CASE("hops: several operations in flight, dropped ones, and others between them stay in order") {
  for (const Algorithm algorithm : kAll) {
    with_threads(
        "sim", 3,
        [&](const Group& group) {
          std::vector<ls::Tensor> tensors;
          std::vector<std::shared_ptr<par::Work>> works;
          for (int i = 0; i < 40; ++i) {
            tensors.push_back(ls::full({7}, static_cast<double>(i + group->rank())));
            works.push_back(group->all_reduce(tensors.back()));
          }
          const ls::Tensor b = ls::full({3}, static_cast<double>(group->rank()));
          group->broadcast(b, 2)->wait();
          CHECK(b.to_vector<float>()[0] == 2);
          works[39]->wait();
          while (!works[20]->is_completed()) continue;
          works.clear();
          const ls::Tensor memory = group->empty({5});
          memory.fill_(1);
          group->all_reduce(memory);  // dropped
          group->barrier();
          CHECK(memory.to_vector<float>()[4] == 3);
          for (int i = 0; i < 40; ++i) CHECK(tensors[static_cast<std::size_t>(i)].to_vector<float>()[6] == 3 * i + 3);
        },
        sim_options({.algorithm = algorithm, .observer = std::make_shared<Recorder>()}));
  }
}

TEST_CASE("hops: random operations of all kinds, waited for at random, give the right results") {
  for (const Algorithm algorithm : kAll) {
    for (const int size : {2, 3, 5}) {
      with_threads(
          "sim", size, [](const Group& group) { check_random_collectives(group, 200); },
          sim_options({.algorithm = algorithm, .observer = std::make_shared<Recorder>()}));
    }
  }
}

TEST_CASE("hops: DistributedDataParallel trains over any algorithm, and over tree to the bits of local") {
  const auto train = [](const par::InitOptions& options) {
    std::vector<ls::Tensor> weights(3);
    with_threads(
        options.backend, 3,
        [&](const Group& group) {
          ls::nn::Linear model(5, 3);
          {
            const ls::NoGradGuard no_grad;
            model.weight.master().copy_(own_numbers(9, 15).reshape({3, 5}));
            model.bias.master().zero_();
          }
          par::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-5, .check_every = 1});
          ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});
          for (int step = 0; step < 5; ++step) {
            optimizer.zero_grad();
            ls::mean(ddp(own_numbers(group->rank() + step, 20).reshape({4, 5}))).backward();
            optimizer.step();
          }
          weights[static_cast<std::size_t>(group->rank())] = model.weight.master().detach().clone();
        },
        options);
    expect_same(weights[1], weights[0], "rank 1");
    expect_same(weights[2], weights[0], "rank 2");
    return weights[0];
  };
  const ls::Tensor want = train({.backend = "local"});
  train(sim_options({.algorithm = Algorithm::kRing}));
  train(sim_options({.algorithm = Algorithm::kHalvingDoubling}));
  expect_same(train(sim_options({.algorithm = Algorithm::kTree})), want, "tree");
}

TEST_CASE("hops: ranks that disagree, and a rank that leaves, are errors on all others") {
  with_threads(
      "sim", 3,
      [](const Group& group) {
        const ls::Tensor t = ls::zeros({group->rank() == 2 ? 12 : 10});
        const std::string error = error_of<ls::CommError>([&] { group->all_reduce(t)->wait(); });
        CHECK_MESSAGE(contains(error, "ranks disagree"), error);
        CHECK_MESSAGE(contains(error, "all_reduce of 12 f32 (sum)"), error);
        CHECK(contains(error_of<ls::CommError>([&] { group->barrier(); }), "failed before"));
      },
      sim_options({.algorithm = Algorithm::kRing}));
  with_threads(
      "sim", 3,
      [](const Group& group) {
        if (group->rank() == 1) return;
        const std::string error = error_of<ls::CommError>([&] { group->all_reduce(ls::ones({9}))->wait(); });
        CHECK_MESSAGE(contains(error, "rank 1 has left the group"), error);
      },
      sim_options({.algorithm = Algorithm::kTree}));
}

TEST_CASE("sim: options that do not fit are refused") {
  const auto refused = [](int size, const par::InitOptions& options) {
    const auto store = std::make_shared<par::InProcessStore>();
    std::vector<std::string> errors(static_cast<std::size_t>(size));
    run_threads(size, [&](int rank) {
      par::InitOptions own = options;
      own.rank = rank;
      own.world_size = size;
      own.store = store;
      errors[static_cast<std::size_t>(rank)] = error_of<ls::InvalidArgument>([&] { par::init_process_group(own); });
    });
    return errors[0];
  };
  const par::BackendOptions ring = par::SimOptions{.algorithm = Algorithm::kRing};
  for (const char* backend : {"shm", "local", "gloo"})
    CHECK(contains(refused(1, {.backend = backend, .backend_options = ring}),
                   std::string(".backend_options are for the backend 'sim', and .backend is '") + backend));
  CHECK(contains(refused(1, {.backend = "sim", .backend_options = par::NcclOptions()}), "for the backend 'nccl'"));
  CHECK(contains(refused(2, {.backend = "sim", .reduction = par::Reduction::kCanonical, .backend_options = ring}),
                 "does not add in canonical order"));
  CHECK(contains(refused(1, {.backend = "sim", .reduction = par::Reduction::kArrival}), "in order of arrival"));
}

TEST_CASE("sim: ranks with other options than the others are told") {
  const auto error_with = [](const par::SimOptions& of_rank_1) {
    const auto store = std::make_shared<par::InProcessStore>();
    std::string error;
    run_threads(2, [&](int rank) {
      const par::SimOptions own = rank == 1 ? of_rank_1 : par::SimOptions{.algorithm = Algorithm::kRing};
      const std::string text = error_of<ls::CommError>([&] {
        par::init_process_group(
            {.backend = "sim", .world_size = 2, .rank = rank, .store = store, .backend_options = own});
      });
      if (rank == 0) error = text;
    });
    return error;
  };
  const std::string other_algorithm = error_with({.algorithm = Algorithm::kTree});
  CHECK_MESSAGE(contains(other_algorithm, "rank 0 has SimOptions with algorithm ring and no simulation") !=
                    contains(other_algorithm, "rank 0 with algorithm ring and no simulation"),
                other_algorithm);
  CHECK_MESSAGE(contains(other_algorithm, "algorithm tree and no simulation"), other_algorithm);
  const std::string simulated = error_with(
      {.algorithm = Algorithm::kRing, .simulation = std::make_shared<par::Simulation>(par::Link{.bandwidth = 1e9})});
  CHECK_MESSAGE(contains(simulated, "algorithm ring and no simulation"), simulated);
  CHECK_MESSAGE(contains(simulated, "algorithm ring and a simulation"), simulated);
}
