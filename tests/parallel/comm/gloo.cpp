// The collective suite on the gloo backend, and the errors of the others when a rank is lost.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>

#include "tests/parallel/comm/collectives.h"
#include "tests/parallel/comm/listed_store.h"
#include "tests/parallel/comm/parts.h"
#include "tests/parallel/comm/point_to_point.h"
#include "tests/parallel/replicated/comm_hooks.h"
#include "tests/parallel/replicated/overlap.h"
#include "tests/parallel/step/join.h"
#include "tests/support/chaos.h"

namespace {

// Bytes that this process has sent over its TCP connections, as counted by the kernel.
std::int64_t bytes_of_connections() {
  std::int64_t sum = 0;
  for (int fd = 3; fd < 256; ++fd) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
      sum += static_cast<std::int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return sum;
}

}  // namespace

TEST_CASE("gloo: every collective, dtype and stride, 1 to 5 ranks") {
  for (int n = 1; n <= 5; ++n) {
    with_group("gloo", n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) {
        check_collectives(group, 1, dtype, false);
        check_collectives(group, 29, dtype, true);
      }
      for (const std::int64_t rows : {2500, 3500, 20000}) check_collectives(group, rows, ls::kFloat32, false);
    });
  }
}

TEST_CASE("gloo: collectives of parts in place, apart and scaled") {
  for (const int n : {2, 3, 4}) {
    with_group("gloo", n, [](const Group& group) {
      for (const ls::DType dtype : kAllDTypes) check_parts(group, 37, dtype);
      check_parts(group, 70'001, ls::kFloat32);  // too large to follow the headers
      check_rounding(group);
      check_traffic_of_parts(group);
    });
  }
  with_group("gloo", 2, check_other_name);
}

TEST_CASE("gloo: ranks report the buckets that were done before the last gradient was ready") {
  with_group("gloo", 2, overlap_test::check_overlap);
}

TEST_CASE("gloo: tensors of several pieces") { with_group("gloo", 3, check_pieces); }

TEST_CASE("gloo: random collectives of random sizes, waited for at random, give the right numbers") {
  for (const int size : {2, 3})
    with_group("gloo", size,
               [](const Group& group) { check_random_collectives(group, random_collectives(10'000) / 2); });
}

TEST_CASE("gloo: ranks may be threads of one process") {
  with_threads("gloo", 3, [](const Group& group) {
    for (const std::int64_t rows : {29, 20000}) check_collectives(group, rows, ls::kFloat32, rows == 29);
    check_random_collectives(group, random_collectives(3000));
  });
}

TEST_CASE("gloo: a large sum sends 2 (n-1) / n of its bytes, counted where they leave the process") {
  for (const int size : {2, 3, 5}) {
    with_group("gloo", size, [](const Group& group) {
      for (const std::int64_t count : {240'000, 1'500'007}) {
        const ls::Tensor t = ls::ones({count}), all = ls::zeros({group->size()}, {.dtype = ls::kInt64});
        group->all_reduce(ls::ones({count}))->wait();  // grows the socket buffers
        // A peer in the second barrier has received everything that was sent to it before the first one.
        const auto settle = [&] { group->barrier(), group->barrier(); };
        settle();
        group->traffic().clear();
        const std::int64_t before = bytes_of_connections();
        group->all_reduce(t)->wait();
        settle();
        const std::int64_t sent = bytes_of_connections() - before, booked = group->traffic().bytes_from(group->rank());
        const int n = group->size();
        // The counters record tensors alone; headers, and gloo's own messages, are a few hundred bytes per piece.
        CHECK_MESSAGE(sent >= 2 * (n - 1) * count * 4 / n - 64 * n, sent << " bytes, " << booked << " are recorded");
        CHECK_MESSAGE(sent <= 2 * (n - 1) * count * 4 / n + 64 * n + 1500 * (n - 1) + booked / 500,
                      sent << " bytes, " << booked << " are recorded");
        group->all_gather(all, ls::full({1}, static_cast<double>(booked), {.dtype = ls::kInt64}))->wait();
        CHECK(all.sum().item<std::int64_t>() == 2 * (n - 1) * count * 4);
      }
    });
  }
}

TEST_CASE("gloo: sums have the bits of shm, in either reduction order and size") {
  with_group("gloo", 3, [](const Group& outer) {
    ls::parallel::InitOptions options{.init_method = "env://", .world_size = 3, .rank = outer->rank()};
    const auto sums = [&](const std::string& backend, ls::parallel::Reduction reduction) {
      options.backend = backend;
      options.reduction = reduction;
      options.group_name = backend;
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
      const auto have = sums("gloo", reduction);
      for (std::size_t i = 0; i < want.size(); ++i) expect_same(have[i], want[i], "all_reduce");
    }
  });
}

TEST_CASE("gloo: uneven all_to_all, products, bools, and groups of a split") {
  with_group("gloo", 3, [](const Group& group) {
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

TEST_CASE("gloo: a stopped rank is named even by a rank that waits for it only through another rank") {
  check_stopped_rank("gloo");
}

TEST_CASE("gloo: a stopped rank is named even by ranks that wait for it in another group, or for such a rank") {
  check_stopped_rank_of_other_group("gloo");
}

TEST_CASE("gloo: messages between some ranks do not disturb the collectives of all ranks") {
  for (const int size : {3, 4}) with_group("gloo", size, check_point_to_point);
  with_group("gloo", 3, check_other_tag);
}

TEST_CASE("gloo: join and communication hooks") {
  with_group("gloo", 3, [](const Group& group) {
    check_uneven(group, {.batches = {0, 3, 2}});
    check_uneven(group, {.batches = {3, 1, 0}, .by_initial = false, .hook = ls::parallel::allreduce_hook});
    check_casts(group);
    check_power_sgd(group, 2, ls::kFloat32);
  });
}

TEST_CASE("gloo: ranks that disagree get an error that names both calls") {
  const auto check = [](const std::function<void(const Group&)>& call, const std::string& one,
                        const std::string& other) {
    with_group("gloo", 2, [&](const Group& group) {
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

TEST_CASE("gloo: a rank that is killed is named by the others, and the failed step leaves their parameters unchanged") {
  for (const int size : {2, 3}) check_killed_rank(size, size - 1, 5, "gloo");
}

TEST_CASE("gloo: a rank that is killed during large sums is named by all others") {
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
      std::chrono::seconds(20), "gloo");
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].signal == SIGKILL);
  CHECK_MESSAGE(ended[2].ok(), ended[2].to_string());
}

TEST_CASE("gloo: without a network interface that is up, all ranks say which one was looked for") {
  check_processes(1, [](int) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return;  // not allowed here. In the new network lo is down
    const std::string name = fresh_group();
    const auto ended = run_processes(2, [&](int rank) {
      set_master(name);
      ls::parallel::init_process_group({.backend = "gloo", .world_size = 2, .rank = rank, .group_name = name});
    });
    for (const ExitStatus& each : ended) {
      CHECK_MESSAGE(contains(each.error, " finds no network interface with the address 127.0.0.1, that of lo: "),
                    each.error);
      CHECK_MESSAGE(contains(each.error, "init_process_group: gloo: rank "), each.error);
    }
  });
}

TEST_CASE("gloo: ranks that are stopped cause a timeout on the others, which name all of them") {
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
      std::chrono::milliseconds(2000), "gloo");
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].signal == SIGKILL);
}

TEST_CASE("gloo: a rank that waits for a live rank gets the error about a dead rank before the live one arrives") {
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
      std::chrono::seconds(20), "gloo");
  CHECK(ended[0].signal == SIGKILL);
  CHECK_MESSAGE(ended[1].ok(), ended[1].to_string());
  CHECK(ended[2].signal == SIGKILL);
}

TEST_CASE("gloo: groups and their subgroups leave no keys in the store") { check_no_keys_left("gloo"); }
