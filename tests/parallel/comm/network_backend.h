// The collective suite of the backends over networks, gloo and ucc, and the errors of the others when a rank is lost.
#pragma once

#include <sched.h>
#include <signal.h>

#include "tests/parallel/comm/collectives.h"
#include "tests/parallel/comm/listed_store.h"
#include "tests/parallel/comm/parts.h"
#include "tests/parallel/comm/point_to_point.h"
#include "tests/parallel/replicated/comm_hooks.h"
#include "tests/parallel/replicated/overlap.h"
#include "tests/parallel/step/join.h"
#include "tests/support/chaos.h"

inline void check_every_collective(const std::string& backend) {
  for (int n = 1; n <= 5; ++n) {
    with_group(backend, n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) {
        check_collectives(group, 1, dtype, false);
        check_collectives(group, 29, dtype, true);
      }
      for (const std::int64_t rows : {2500, 3500, 20000}) check_collectives(group, rows, ls::kFloat32, false);
    });
  }
}

inline void check_collectives_of_parts(const std::string& backend) {
  for (const int n : {2, 3, 4}) {
    with_group(backend, n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) check_parts(group, 37, dtype);
      check_parts(group, 70'001, ls::kFloat32);  // too large to follow the headers
      check_rounding(group);
      check_traffic_of_parts(group);
    });
  }
  with_group(backend, 2, check_other_name);
}

inline void check_random(const std::string& backend) {
  for (const int size : {2, 3})
    with_group(backend, size,
               [](const Group& group) { check_random_collectives(group, random_collectives(10'000) / 2); });
}

inline void check_ranks_as_threads(const std::string& backend) {
  with_threads(backend, 3, [](const Group& group) {
    for (const std::int64_t rows : {29, 20000}) check_collectives(group, rows, ls::kFloat32, rows == 29);
    check_random_collectives(group, random_collectives(3000));
  });
}

inline void check_bits_of_shm(const std::string& backend) {
  with_group(backend, 3, [&](const Group& outer) {
    ls::parallel::InitOptions options{.init_method = "env://", .world_size = 3, .rank = outer->rank()};
    const auto sums = [&](const std::string& name, ls::parallel::Reduction reduction) {
      options.backend = name;
      options.reduction = reduction;
      options.group_name = name;
      const Group group = ls::parallel::init_process_group(options);
      std::vector<ls::Tensor> results;
      for (const std::int64_t count : {7, 5000, 700'001}) {
        const ls::Tensor t = ls::sin(ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * (1.0 + group->rank()));
        group->all_reduce(t, ls::parallel::ReduceOp::kAvg)->wait();
        results.push_back(t);
      }
      group->barrier();
      return results;
    };
    const auto want = sums("shm", ls::parallel::Reduction::kNative);
    for (const auto reduction : {ls::parallel::Reduction::kNative, ls::parallel::Reduction::kCanonical}) {
      const auto have = sums(backend, reduction);
      for (std::size_t i = 0; i < want.size(); ++i) expect_same(have[i], want[i], "all_reduce");
    }
  });
}

inline void check_uneven_and_split(const std::string& backend) {
  with_group(backend, 3, [](const Group& group) {
    check_uneven_and_products(group);
    check_bools(group);
    const int rank = group->rank();
    const Group part = group->split(rank == 1 ? -1 : 0, -rank);
    CHECK((part == nullptr) == (rank == 1));
    if (!part) return;
    const ls::Tensor order = ls::zeros({2});
    part->all_gather(order, ls::full({1}, 1.0 * rank))->wait();
    CHECK(order[0].item<double>() == 2);
    CHECK(order[1].item<double>() == 0);
  });
}

inline void check_messages_between_ranks(const std::string& backend) {
  for (const int size : {3, 4}) with_group(backend, size, check_point_to_point);
  with_group(backend, 3, check_other_tag);
}

inline void check_join_and_hooks(const std::string& backend) {
  with_group(backend, 3, [](const Group& group) {
    check_uneven(group, {.batches = {0, 3, 2}});
    check_uneven(group, {.batches = {3, 1, 0}, .by_initial = false, .hook = ls::parallel::allreduce_hook});
    check_casts(group);
    check_power_sgd(group, 2, ls::kFloat32);
  });
}

inline void check_disagreements(const std::string& backend) {
  const auto check = [&](const std::function<void(const Group&)>& call, const std::string& one,
                         const std::string& other) {
    with_group(backend, 2, [&](const Group& group) {
      const std::string error = error_of<ls::CommError>([&] { call(group); });
      CHECK_MESSAGE(contains(error, "disagree"), error);
      const bool both = contains(error, one) && contains(error, other);
      CHECK_MESSAGE((both || contains(error, "another rank reports")), error);
      CHECK(contains(error_of<ls::CommError>([&] { group->barrier(); }), "failed before"));
    });
  };
  check([](const Group& g) { g->all_reduce(ls::zeros({g->rank() == 0 ? 5 : 100'000}))->wait(); }, "all_reduce of 5 f32",
        "all_reduce of 100000 f32");
  check([](const Group& g) { g->rank() == 0 ? g->barrier() : g->broadcast(ls::zeros({3}), 1)->wait(); }, "barrier",
        "broadcast of 3 f32 with root 1");
  check(
      [](const Group& g) {
        g->all_reduce(ls::zeros(g->rank() == 0 ? ls::Shape{2, 3} : ls::Shape{6}))->wait();
      },
      "all_reduce of 6 f32", "another shape");
  check(
      [](const Group& g) {
        g->rank() == 0 ? g->send(ls::zeros({3}), 1, 7)->wait() : g->recv(ls::zeros({4}), 0, 7)->wait();
        g->barrier();
      },
      "send of 3 f32", "send of 4 f32");
}

inline void check_kill_during_large_sums(const std::string& backend) {
  const auto ended = ranks_of(
      3,
      [](const Group& group) {
        const ls::Tensor t = ls::ones({10'000'000});
        const std::string error = error_of<ls::CommError>([&] {
          for (int i = 0; i < 1000; ++i) {
            const auto work = group->all_reduce(t);
            if (group->rank() == 1 && i == 3) raise(SIGKILL);
            work->wait();
          }
        });
        CHECK_MESSAGE(contains(error, "rank 1 is gone"), error);
      },
      std::chrono::seconds(20), backend);
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].signal == SIGKILL);
  CHECK_MESSAGE(ended[2].ok(), ended[2].to_string());
}

inline void check_no_interface(const std::string& backend) {
  check_processes(1, [&](int) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return;  // not allowed here. In the new network lo is down
    const std::string name = fresh_group();
    const auto ended = run_processes(2, [&](int rank) {
      set_master(name);
      ls::parallel::init_process_group({.backend = backend, .world_size = 2, .rank = rank, .group_name = name});
    });
    for (const ExitStatus& each : ended) {
      CHECK_MESSAGE(contains(each.error, " finds no network interface with the address 127.0.0.1, that of lo: "),
                    each.error);
      CHECK_MESSAGE(contains(each.error, "init_process_group: " + backend + ": rank "), each.error);
    }
  });
}

inline void check_stopped_ranks(const std::string& backend) {
  const auto ended = ranks_of(
      3,
      [&](const Group& group) {
        const ls::Tensor pids = ls::zeros({3}, {.dtype = ls::kInt64});
        group->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        if (group->rank() != 0) raise(SIGSTOP);
        const std::string error = error_of<ls::CommTimeout>([&] { group->barrier(); });
        CHECK_MESSAGE(contains(error, "rank 1 has not arrived, rank 2 has not arrived"), error);
        for (const int r : {1, 2}) kill(static_cast<pid_t>(pids[r].item<std::int64_t>()), SIGKILL);
      },
      std::chrono::milliseconds(2000), backend);
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].signal == SIGKILL);
}

inline void check_dead_before_live(const std::string& backend) {
  const auto ended = ranks_of(
      3,
      [](const Group& group) {
        const ls::Tensor pids = ls::zeros({3}, {.dtype = ls::kInt64});
        group->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        if (group->rank() == 0) raise(SIGSTOP);
        if (group->rank() == 2) raise(SIGKILL);
        const std::string error = error_of<ls::CommError>([&] { group->barrier(); });
        CHECK_MESSAGE(contains(error, "rank 2 is gone"), error);
        kill(static_cast<pid_t>(pids[0].item<std::int64_t>()), SIGKILL);
      },
      std::chrono::seconds(20), backend);
  CHECK(ended[0].signal == SIGKILL);
  CHECK_MESSAGE(ended[1].ok(), ended[1].to_string());
  CHECK(ended[2].signal == SIGKILL);
}
