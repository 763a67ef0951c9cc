// Tests of the harness itself: a rank that fails must not look like one that passed.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;

TEST_CASE("run_threads runs every rank once and rethrows the first exception, with its rank and type") {
  std::atomic<int> sum{0};
  run_threads(4, [&](int rank) { sum += 1 << rank; });
  CHECK(sum == 15);

  std::atomic<bool> thrown{false};
  const auto fail = [&] {
    run_threads(3, [&](int rank) {
      if (rank == 1) {
        thrown = true;
        throw ls::CommError("lost");
      }
    });
  };
  CHECK_THROWS_WITH_AS(fail(), "rank 1: lost", ls::CommError);
  CHECK(thrown);
}

TEST_CASE("run_processes distinguishes exit codes, signals, exceptions and failed checks") {
  const std::vector<ExitStatus> results = run_processes(6, [](int rank) {
    if (rank == 1) _exit(7);
    if (rank == 2) raise(SIGKILL);
    if (rank == 3) throw ls::CommError("lost");
    if (rank == 4) CHECK(1 + 1 == 3);  // prints an error, as intended
    if (rank == 5) REQUIRE(1 + 1 == 4);
  });
  REQUIRE(results.size() == 6);
  CHECK(results[0].ok());
  CHECK(results[1].code == 7);
  CHECK(results[2].signal == SIGKILL);
  CHECK_FALSE(results[2].timed_out);
  CHECK(results[3].code == 1);
  CHECK(results[3].error == "rank 3: lost");
  CHECK(results[4].code == 1);
  CHECK(results[4].error == "rank 4: a CHECK failed");
  CHECK(results[5].code == 1);
}

TEST_CASE("run_processes kills processes that still run at the deadline") {
  const auto results = run_processes(
      2,
      [](int rank) {
        if (rank == 1) pause();
      },
      std::chrono::seconds(2));
  CHECK(results[0].ok());
  CHECK(results[1].timed_out);
  CHECK(results[1].signal == SIGKILL);
  CHECK(results[1].to_string() == "hung and was killed");
}
