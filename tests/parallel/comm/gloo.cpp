// The collective suite on the gloo backend, and the errors of the others when a rank is lost.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/parallel/comm/network_backend.h"

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

TEST_CASE("gloo: every collective, dtype and stride, 1 to 5 ranks") { check_every_collective("gloo"); }

TEST_CASE("gloo: collectives of parts in place, apart and scaled") { check_collectives_of_parts("gloo"); }

TEST_CASE("gloo: ranks report the buckets that were done before the last gradient was ready") {
  with_group("gloo", 2, overlap_test::check_overlap);
}

TEST_CASE("gloo: tensors of several pieces") { with_group("gloo", 3, check_pieces); }

TEST_CASE("gloo: random collectives of random sizes, waited for at random, give the right numbers") {
  check_random("gloo");
}

TEST_CASE("gloo: ranks may be threads of one process") { check_ranks_as_threads("gloo"); }

TEST_CASE("gloo: a large sum sends 2 (n-1) / n of its bytes, counted where they leave the process") {
  for (const int size : {2, 3, 5}) {
    with_group("gloo", size, [](const Group& group) {
      for (const std::int64_t count : {240'000, 1'500'007}) {
        const ls::Tensor t = ls::ones({count}), all = ls::zeros({group->size()}, {.dtype = ls::kInt64});
        group->all_reduce(ls::ones({count}))->wait();  // grows the socket buffers
        // A peer in the second barrier has received everything that was sent to it before the first one.
        const auto wait_for_all = [&] { group->barrier(), group->barrier(); };
        wait_for_all();
        group->traffic().clear();
        const std::int64_t before = bytes_of_connections();
        group->all_reduce(t)->wait();
        wait_for_all();
        const std::int64_t sent = bytes_of_connections() - before, counted = group->traffic().bytes_from(group->rank());
        const int n = group->size();
        // The counters record tensors alone; headers, and gloo's own messages, are a few hundred bytes per piece.
        CHECK_MESSAGE(sent >= 2 * (n - 1) * count * 4 / n - 64 * n, sent << " bytes, " << counted << " are recorded");
        CHECK_MESSAGE(sent <= 2 * (n - 1) * count * 4 / n + 64 * n + 1500 * (n - 1) + counted / 500,
                      sent << " bytes, " << counted << " are recorded");
        group->all_gather(all, ls::full({1}, static_cast<double>(counted), {.dtype = ls::kInt64}))->wait();
        CHECK(all.sum().item<std::int64_t>() == 2 * (n - 1) * count * 4);
      }
    });
  }
}

TEST_CASE("gloo: sums have the bits of shm, in either reduction order and size") { check_bits_of_shm("gloo"); }

TEST_CASE("gloo: uneven all_to_all, products, bools, and groups of a split") { check_uneven_and_split("gloo"); }

TEST_CASE("gloo: a stopped rank is named even by a rank that waits for it only through another rank") {
  check_stopped_rank("gloo");
}

TEST_CASE("gloo: a stopped rank is named even by ranks that wait for it in another group, or for such a rank") {
  check_stopped_rank_of_other_group("gloo");
}

TEST_CASE("gloo: messages between some ranks do not disturb the collectives of all ranks") {
  check_messages_between_ranks("gloo");
}

TEST_CASE("gloo: join and communication hooks") { check_join_and_hooks("gloo"); }

TEST_CASE("gloo: ranks that disagree get an error that names both calls") { check_disagreements("gloo"); }

TEST_CASE("gloo: a rank that is killed is named by the others, and the failed step leaves their parameters unchanged") {
  for (const int size : {2, 3}) check_killed_rank(size, size - 1, 5, "gloo");
}

TEST_CASE("gloo: a rank that is killed during large sums is named by all others") {
  check_kill_during_large_sums("gloo");
}

TEST_CASE("gloo: without a network interface that is up, all ranks say which one was looked for") {
  check_no_interface("gloo");
}

TEST_CASE("gloo: ranks that are stopped cause a timeout on the others, which name all of them") {
  check_stopped_ranks("gloo");
}

TEST_CASE("gloo: a rank that waits for a live rank gets the error about a dead rank before the live one arrives") {
  check_dead_before_live("gloo");
}

TEST_CASE("gloo: groups and their subgroups leave no keys in the store") { check_no_keys_left("gloo"); }
