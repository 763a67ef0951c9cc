// The backend sim: the data of local, and clocks that follow the model.
#include "lockstep/parallel/simulate/simulate.h"

#include <barrier>
#include <cmath>
#include <fstream>

#include "tests/parallel/comm/collectives.h"

namespace {

namespace par = ls::parallel;
using par::Algorithm;

constexpr Algorithm kAll[] = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling};
constexpr par::Link kLink{.latency = 1e-5, .bandwidth = 1e9};

void with_sim(int size, const std::function<void(const Group&, par::Simulation&)>& fn, Algorithm algorithm) {
  const auto store = std::make_shared<par::InProcessStore>();
  run_threads(size, [&](int rank) {
    const auto simulation = std::make_shared<par::Simulation>(kLink);
    const Group group =
        par::init_process_group({.backend = "sim",
                                 .timeout = std::chrono::seconds(30),
                                 .world_size = size,
                                 .rank = rank,
                                 .store = store,
                                 .backend_options = par::SimOptions{.algorithm = algorithm, .simulation = simulation}});
    fn(group, *simulation);
  });
}

// Sets all ranks' clocks to the same time, since a barrier leaves them about a latency apart, and returns it.
double align(par::Simulation& simulation) {
  simulation.wait_until(std::floor(simulation.seconds()) + 1);
  return simulation.seconds();
}

bool is_near(double have, double want) { return std::abs(have - want) <= 1e-9 * std::max(std::abs(want), 1e-9); }

int ceil_log2(int n) {
  int levels = 0;
  while ((1 << levels) < n) ++levels;
  return levels;
}

// The time from the literature for P bytes over n ranks that start together, where n is a power of two that divides P.
double closed_form(Algorithm algorithm, int n, double bytes, const par::Link& link = kLink) {
  const double share = bytes / n, per_byte = 1 / link.bandwidth;
  switch (algorithm) {
    case Algorithm::kDirect:
      return n == 1 ? 0 : 2 * (link.latency + (n - 1) * share * per_byte);
    case Algorithm::kRing:
      return 2 * (n - 1) * (link.latency + share * per_byte);
    case Algorithm::kTree:
      return 2 * ceil_log2(n) * (link.latency + bytes * per_byte);
    default:
      return 2 * ceil_log2(n) * link.latency + 2 * (n - 1) * share * per_byte;
  }
}

}  // namespace

TEST_CASE("sim: collectives give the right results, and all_reduce the same bits with and without a network") {
  for (const Algorithm algorithm : kAll) {
    for (const int size : {2, 3, 4}) {
      with_sim(
          size, [](const Group& group, par::Simulation&) { check_collectives(group, 5, ls::kFloat32, true); },
          algorithm);
      const auto own = [](int rank) { return ls::sin(ls::arange(0, 1001, 1, {.dtype = ls::kFloat32}) * (1.0 + rank)); };
      std::vector<ls::Tensor> want(static_cast<std::size_t>(size));
      with_threads("sim", size,
                   [&](const Group& group) {
                     want[static_cast<std::size_t>(group->rank())] = own(group->rank());
                     group->all_reduce(want[static_cast<std::size_t>(group->rank())])->wait();
                   },
                   {.backend_options = par::SimOptions{.algorithm = algorithm}});
      with_sim(
          size,
          [&](const Group& group, par::Simulation&) {
            const ls::Tensor t = own(group->rank());
            group->all_reduce(t)->wait();
            expect_same(t, want[static_cast<std::size_t>(group->rank())], par::name(algorithm));
          },
          algorithm);
    }
  }
}

TEST_CASE("sim: an all_reduce takes the time of its closed form, on every rank that finishes last") {
  for (const Algorithm algorithm : kAll) {
    for (const int size : {1, 2, 4, 8}) {
      with_sim(
          size,
          [&](const Group& group, par::Simulation& simulation) {
            const double before = align(simulation);
            group->all_reduce(ls::ones({80'000}))->wait();
            CAPTURE(par::name(algorithm));
            CAPTURE(size);
            // In a tree the rank with the highest number finishes last.
            if (algorithm != Algorithm::kTree || group->rank() == size - 1)
              CHECK(is_near(simulation.seconds() - before, closed_form(algorithm, size, 320'000)));
          },
          algorithm);
    }
  }
}

TEST_CASE("sim: other collectives take the time of their trees, rings and ports") {
  const double alpha = kLink.latency, part = 4e5 / kLink.bandwidth;
  with_sim(
      4,
      [&](const Group& group, par::Simulation& simulation) {
        const ls::Tensor t = ls::ones({100'000}), all = ls::ones({400'000});
        const auto time = [&](const std::function<void()>& body) {
          const double before = align(simulation);
          body();
          return simulation.seconds() - before;
        };
        CHECK(is_near(time([&] { group->all_gather(all, t)->wait(); }), 3 * (alpha + part)));
        CHECK(is_near(time([&] { group->reduce_scatter(t, all)->wait(); }), 3 * (alpha + part)));
        CHECK(is_near(time([&] { group->all_to_all(all, ls::ones({400'000}))->wait(); }), alpha + 3 * part));
        const double barrier = time([&] { group->barrier(); });
        if (group->rank() == 3) CHECK(is_near(barrier, 4 * alpha));
        const double broadcast = time([&] { group->broadcast(t, 0)->wait(); });
        if (group->rank() == 3) CHECK(is_near(broadcast, 2 * (alpha + part)));
        const double reduce = time([&] { group->reduce(t, 0)->wait(); });
        if (group->rank() == 0) CHECK(is_near(reduce, 2 * (alpha + part)));
        std::vector<ls::Tensor> outs;
        for (int r = 0; r < 4 && group->rank() == 0; ++r) outs.push_back(ls::ones({100'000}));
        const double gather = time([&] { group->gather(outs, t, 0)->wait(); });
        if (group->rank() == 0) CHECK(is_near(gather, alpha + 3 * part));  // one after another through its port
      },
      Algorithm::kRing);
}

TEST_CASE("sim: a message arrives one link time after its sender sent it") {
  with_sim(
      2,
      [&](const Group& group, par::Simulation& simulation) {
        const double before = align(simulation);
        const ls::Tensor t = ls::full({1000}, 1.0 + group->rank());
        if (group->rank() == 0) {
          simulation.compute(0.25);
          group->send(t, 1, 7)->wait();
          CHECK(is_near(simulation.seconds() - before, 0.25));
        } else {
          group->recv(t, 0, 7)->wait();
          CHECK(t.to_vector<float>()[999] == 1);
          CHECK(is_near(simulation.seconds() - before, 0.25 + kLink.seconds(4000)));
        }
      },
      Algorithm::kDirect);
}

// The simulated seconds for which each rank waits in each step. Rank 1 computes for 1 ms longer than the others.
std::vector<std::vector<double>> waits_of_steps() {
  constexpr int kRanks = 4, kSteps = 4;
  std::vector<std::vector<double>> waits(kRanks);
  std::barrier begin(kRanks);
  with_sim(
      kRanks,
      [&](const Group& group, par::Simulation& simulation) {
        ls::manual_seed(0);
        ls::nn::Sequential net(ls::nn::Linear(16, 24), ls::nn::ReLU(), ls::nn::Linear(24, 1));
        par::DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1e-6});  // a bucket for each parameter
        for (int s = 0; s < kSteps; ++s) {
          begin.arrive_and_wait();
          const double before = simulation.seconds(), computed = group->rank() == 1 ? 3e-3 : 2e-3;
          simulation.compute(computed);
          net.zero_grad();
          ls::mean(ddp(ls::ones({8, 16}))).backward();
          waits[static_cast<std::size_t>(group->rank())].push_back(simulation.seconds() - before - computed);
        }
      },
      Algorithm::kRing);
  return waits;
}

TEST_CASE("sim: the waits of DistributedDataParallel are in the step that waits, and the same in every run") {
  const auto first = waits_of_steps();
  for (std::size_t r = 0; r < first.size(); ++r) {
    for (std::size_t s = 1; s < first[r].size(); ++s) CHECK((first[r][s] > 0.9e-3) == (r != 1));
  }
  for (int run = 0; run < 20; ++run) CHECK(waits_of_steps() == first);
}

TEST_CASE("sim: asking whether an operation is completed does not advance the clock, and wait does") {
  with_sim(
      2,
      [](const Group& group, par::Simulation& simulation) {
        const ls::Tensor strided = ls::ones({64, 2}).slice(1, 0, 1, 1), t = ls::ones({64});
        const auto check = [&](const auto& start) {
          const double before = align(simulation);
          const std::shared_ptr<par::Work> work = start();
          while (!work->is_completed()) continue;
          CHECK(simulation.seconds() == before);
          work->wait();
          const double after = simulation.seconds();
          CHECK(after > before);
          work->wait();
          CHECK(simulation.seconds() == after);
        };
        check([&] { return group->all_reduce(t); });
        check([&] { return group->all_reduce(strided); });
        check([&] { return group->broadcast(t, 0); });
        for (const ls::Tensor& each : {t, strided}) {
          if (group->rank() == 1) {
            check([&] { return group->recv(each, 0); });
          } else {
            align(simulation);
            group->send(each, 1)->wait();
          }
        }
      },
      Algorithm::kRing);
}

TEST_CASE("sim: a slower rank delays the others, and computation hides communication in flight") {
  with_sim(
      2,
      [&](const Group& group, par::Simulation& simulation) {
        const double before = align(simulation), one = closed_form(Algorithm::kRing, 2, 400'000);
        if (group->rank() == 1) simulation.compute(0.5);
        group->all_reduce(ls::ones({100'000}))->wait();
        // Rank 0's first part arrives before rank 1 starts, so rank 1 sends its second one a latency earlier.
        CHECK(is_near(simulation.seconds() - before, 0.5 + one - (group->rank() == 0 ? kLink.latency : 0)));
        const double again = align(simulation);
        const ls::Tensor a = ls::ones({100'000}), b = ls::ones({100'000});
        const auto first = group->all_reduce(a), second = group->all_reduce(b);
        simulation.compute(1.5 * one);
        first->wait();
        CHECK(is_near(simulation.seconds() - again, 1.5 * one));
        second->wait();  // started when the first one was done
        CHECK(is_near(simulation.seconds() - again, 2 * one));
      },
      Algorithm::kRing);
}

TEST_CASE("scaling: DP and DDP take the time of their closed forms, for 1 to 1024 ranks") {
  for (const double bytes : {4096.0 * 1024, 65536.0 * 1024}) {
    const par::StepProfile profile{.forward = 2e-3, .buckets = {{bytes, 4e-3}}, .optimizer = 1e-3};
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling}) {
      for (int n = 1; n <= 1024; n *= 2) {
        CAPTURE(n);
        const par::StepPrediction step = par::predict_step(profile, {.link = kLink, .algorithm = algorithm}, n);
        const double dp = n == 1 ? 0 : 4 * kLink.latency + 2 * (n - 1) * bytes / kLink.bandwidth;
        CHECK(is_near(step.dp, 7e-3 + dp));
        CHECK(is_near(step.ddp, 7e-3 + closed_form(algorithm, n, bytes)));
        CHECK(step.dp_device_bytes == 2 * (n - 1) * bytes);
        if (algorithm == Algorithm::kRing) CHECK(step.ddp_rank_bytes == 2 * (n - 1) * bytes / n);
      }
    }
  }
}

TEST_CASE("scaling: the predicted crossover to DDP is where the closed forms cross") {
  // With few bytes latency dominates: a ring has 2 (n-1) latencies, DP four.
  for (const double bytes : {1024.0, 8192.0, 16384.0, 1e6}) {
    const par::StepProfile profile{.buckets = {{bytes, 0}}};
    for (int n = 2; n <= 1024; n *= 2) {
      const par::StepPrediction step = par::predict_step(profile, {.link = kLink}, n);
      const double dp = 4 * kLink.latency + 2 * (n - 1) * bytes / kLink.bandwidth;
      const double ddp = closed_form(Algorithm::kRing, n, bytes);
      CAPTURE(n);
      CAPTURE(bytes);
      CHECK((step.ddp < step.dp) == (ddp < dp));
    }
  }
}

TEST_CASE("scaling: buckets are reduced during backward, one after another") {
  const par::Link link{.latency = 0, .bandwidth = 1e9};
  const double each = 1e6, one = closed_form(Algorithm::kRing, 2, each, link);  // 1 ms
  const auto ddp = [&](std::vector<par::StepProfile::Bucket> buckets, bool overlap) {
    return par::predict_step({.forward = 5e-3, .buckets = std::move(buckets)}, {.link = link, .overlap = overlap}, 2)
        .ddp;
  };
  CHECK(is_near(one, 1e-3));
  CHECK(is_near(ddp({{each, 4e-3}, {each, 4e-3}}, true), 13e-3 + one));  // only the last one is not hidden
  CHECK(is_near(ddp({{each, 4e-3}, {each, 4e-3}}, false), 13e-3 + 2 * one));
  CHECK(is_near(ddp({{4 * each, 1e-3}, {each, 2e-3}}, true), 6e-3 + 5 * one));  // the second bucket waits for the first
  const par::StepPrediction alone =
      par::predict_step({.forward = 1, .buckets = {{8, 2}}, .optimizer = 3}, {.link = link}, 1);
  CHECK(alone.dp == 6);
  CHECK(alone.ddp == 6);
  const par::StepPrediction cut =
      par::predict_step({.forward = 4, .buckets = {{0, 4}}}, {.link = link, .fixed_batch = true}, 4);
  CHECK(cut.ddp == 2);
}

TEST_CASE("simulation: links are read by name or from a file, and invalid ones are refused with what is expected") {
  CHECK(par::find_link("10GbE").bandwidth == 1.25e9);
  const std::string unknown = error_of<ls::InvalidArgument>([] { par::find_link("10gbe"); });
  CHECK_MESSAGE(contains(unknown, "expected one of NVLink, PCIe4, 100GbE, 10GbE"), unknown);
  const auto with_file = [](const std::string& text) {
    std::ofstream("link.json") << text;
    return par::find_link("link.json");
  };
  const par::Link own = with_file(R"({"latency_us": 12, "gigabytes_per_second": 1.1})");
  CHECK(is_near(own.latency, 12e-6));
  CHECK(is_near(own.bandwidth, 1.1e9));
  for (const std::string bad :
       {"", "[]", "{", R"({"latency_us": 12})", R"({"latency_us": "12", "gigabytes_per_second": 1})",
        R"({"latency_us": -1, "gigabytes_per_second": 1})", R"({"latency_us": 1, "gigabytes_per_second": 0})",
        R"({"latency_us": 1e300, "gigabytes_per_second": 1})",
        R"({"latency_us": 1, "gigabytes_per_second": 1e-300})"}) {
    const std::string error = error_of<ls::IoError>([&] { with_file(bad); });
    CHECK_MESSAGE(contains(error, "link.json: "), error);
    CHECK_MESSAGE(contains(error, "xpected"), error);
  }
  CHECK(contains(error_of<ls::IoError>([&] { with_file(std::string(70'000, ' ')); }), "at most 65536 are read"));
  CHECK(contains(error_of<ls::IoError>([&] { with_file(std::string(65'000, '[')); }), "no number \"latency_us\""));
  CHECK(contains(error_of<ls::IoError>([] { par::find_link("./none.json"); }), "cannot open"));
  CHECK(contains(error_of<ls::IoError>([] { par::find_link("./"); }), "not a regular file"));
  CHECK(contains(error_of<ls::InvalidArgument>([] { par::Simulation({.latency = -1, .bandwidth = 1}); }),
                 "latency from 0"));
  CHECK(contains(error_of<ls::InvalidArgument>([] { par::Simulation(kLink).compute(-1); }), "expected 0 or more"));
  CHECK(contains(error_of<ls::InvalidArgument>([] { par::predict_step({}, {.link = kLink}, 2); }), "no buckets"));
}
