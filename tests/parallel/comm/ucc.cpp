// The collective suite on the ucc backend, and the errors of the others when a rank is lost.
#include "tests/parallel/comm/network_backend.h"

namespace {

// Runs fn as between several hosts: without shared memory, and with UCC's own broadcast and all_gather.
template <class Fn>
void over_tcp(Fn fn) {
  setenv("UCX_TLS", "tcp", 1);
  fn();
  unsetenv("UCX_TLS");
}

}  // namespace

TEST_CASE("ucc: every collective, dtype and stride, 1 to 5 ranks") { check_every_collective("ucc"); }

TEST_CASE("ucc: collectives of parts in place, apart and scaled") { check_collectives_of_parts("ucc"); }

TEST_CASE("ucc: ranks report the buckets that were done before the last gradient was ready") {
  with_group("ucc", 2, overlap_test::check_overlap);
}

TEST_CASE("ucc: tensors of several pieces") { with_group("ucc", 3, check_pieces); }

TEST_CASE("ucc: random collectives of random sizes, waited for at random, give the right numbers") {
  check_random("ucc");
}

TEST_CASE("ucc: ranks may be threads of one process") { check_ranks_as_threads("ucc"); }

TEST_CASE("ucc: sums have the bits of shm, in either reduction order and size") { check_bits_of_shm("ucc"); }

TEST_CASE("ucc: uneven all_to_all, products, bools, and groups of a split") { check_uneven_and_split("ucc"); }

TEST_CASE("ucc: a stopped rank is named even by a rank that waits for it only through another rank") {
  check_stopped_rank("ucc");
}

TEST_CASE("ucc: a stopped rank is named even by ranks that wait for it in another group, or for such a rank") {
  check_stopped_rank_of_other_group("ucc");
}

TEST_CASE("ucc: messages between some ranks do not disturb the collectives of all ranks") {
  check_messages_between_ranks("ucc");
}

TEST_CASE("ucc: join and communication hooks") { check_join_and_hooks("ucc"); }

TEST_CASE("ucc: ranks that disagree get an error that names both calls") { check_disagreements("ucc"); }

TEST_CASE("ucc: a rank that is killed is named by the others, and the failed step leaves their parameters unchanged") {
  for (const int size : {2, 3}) check_killed_rank(size, size - 1, 5, "ucc");
}

TEST_CASE("ucc: a rank that is killed during large sums is named by all others") {
  check_kill_during_large_sums("ucc");
}

TEST_CASE("ucc: without a network interface that is up, all ranks say which one was looked for") {
  check_no_interface("ucc");
}

TEST_CASE("ucc: ranks that are stopped cause a timeout on the others, which name all of them") {
  check_stopped_ranks("ucc");
}

TEST_CASE("ucc: a rank that waits for a live rank gets the error about a dead rank before the live one arrives") {
  check_dead_before_live("ucc");
}

TEST_CASE("ucc: groups and their subgroups leave no keys in the store") { check_no_keys_left("ucc"); }

TEST_CASE("ucc: without shared memory, with UCC's own large collectives, all collectives give the right numbers") {
  over_tcp([] {
    for (const int size : {2, 3, 4}) {
      with_group("ucc", size, [](const Group& group) {
        for (const std::int64_t rows : {29, 20'000, 700'000}) check_collectives(group, rows, ls::kFloat32, false);
        check_random_collectives(group, random_collectives(1000));
        const Group part = group->split(group->rank() % 2);  // UCC's teams of groups that overlap
        check_collectives(part, 700'000, ls::kFloat32, false);
      });
    }
    with_group("ucc", 3, check_point_to_point);
    with_threads("ucc", 3, [](const Group& group) { check_collectives(group, 700'000, ls::kFloat32, false); });
  });
}

TEST_CASE("ucc: a rank that is killed during UCC's broadcasts and all_gathers is named by all others") {
  over_tcp([] {
    for (const int victim : {0, 2}) {
      const auto ended = ranks_of(
          4,
          [&](const Group& group) {
            const ls::Tensor whole = ls::ones({4'000'000}), part = ls::ones({1'000'000});
            const std::string error = error_of<ls::CommError>([&] {
              for (int i = 0; i < 1000; ++i) {
                const auto work = i % 2 == 0 ? group->broadcast(whole, 0) : group->all_gather(whole, part);
                if (group->rank() == victim && i == 4 + victim / 2) raise(SIGKILL);
                work->wait();
              }
            });
            CHECK_MESSAGE(contains(error, "rank " + std::to_string(victim) + " is gone"), error);
          },
          std::chrono::seconds(20), "ucc");
      for (int rank = 0; rank < 4; ++rank) {
        const ExitStatus& status = ended[static_cast<std::size_t>(rank)];
        CHECK_MESSAGE((rank == victim ? status.signal == SIGKILL : status.ok()), status.to_string());
      }
    }
  });
}
