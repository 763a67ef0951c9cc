// The collective suite on the ucc backend, and the errors of the others when a rank is lost.
#include "tests/parallel/comm/network_backend.h"

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
