// Ranks that are threads meet on a store they have.
#include <doctest/doctest.h>

#include <atomic>

#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("threads meet on a store again and again, and each group has keys of its own") {
  const auto store = std::make_shared<par::InProcessStore>();
  run_threads(4, [&](int rank) {
    for (int round = 0; round < 10; ++round) {
      par::Rendezvous here = par::rendezvous({.world_size = 4, .rank = rank, .store = store});
      CHECK(here.rank == rank);
      CHECK(here.size == 4);
      // A key of an earlier round would be there already.
      if (rank == round % 4) here.store->set("round", std::to_string(round));
      CHECK(here.store->get("round") == std::to_string(round));
    }
  });
}

TEST_CASE("groups of two names on one store do not meet, whatever the order") {
  const auto store = std::make_shared<par::InProcessStore>();
  run_threads(4, [&](int thread) {
    const std::string name = thread % 2 ? "odd" : "even";
    par::Rendezvous here = par::rendezvous({.world_size = 2, .rank = thread / 2, .store = store, .group_name = name});
    if (here.rank == 0) here.store->set("name", name);
    CHECK(here.store->get("name") == name);
  });
}

TEST_CASE("a rank that was started twice is an error on all ranks") {
  const auto store = std::make_shared<par::InProcessStore>();
  run_threads(3, [&](int thread) {
    const std::string text =
        error_of<ls::CommError>([&] { par::rendezvous({.world_size = 3, .rank = thread % 2, .store = store}); });
    CHECK_MESSAGE(text.find("rank 0 was started twice: as process ") != std::string::npos, text);
    CHECK(text.find("thread") != std::string::npos);
  });
}

TEST_CASE("who comes too late hears why the call failed, and the next one is for all") {
  const auto store = std::make_shared<par::InProcessStore>();
  const par::RendezvousOptions alone{.timeout = milliseconds(5), .world_size = 3, .rank = 1, .store = store};
  const std::string text = error_of<ls::CommTimeout>([&] { par::rendezvous(alone); });
  CHECK_MESSAGE(text == "rendezvous: ranks 0 and 2 of 3 did not arrive within 5 ms; rank 1 is here", text);
  for (int late : {0, 2}) {
    const auto come = [&] { par::rendezvous({.world_size = 3, .rank = late, .store = store}); };
    CHECK(error_of<ls::CommTimeout>(come) == text);
  }
  run_threads(3, [&](int rank) { par::rendezvous({.world_size = 3, .rank = rank, .store = store}); });
}

TEST_CASE("all ranks hear of a missing one in the same way") {
  const auto store = std::make_shared<par::InProcessStore>();
  std::atomic<int> heard{0};
  run_threads(3, [&](int rank) {
    const milliseconds timeout = rank == 0 ? seconds(2) : seconds(30);  // the first to give up tells the others
    const std::string text = error_of<ls::CommTimeout>(
        [&] { par::rendezvous({.timeout = timeout, .world_size = 4, .rank = rank, .store = store}); });
    heard += text.find("rank 3 of 4 did not arrive") != std::string::npos ? 1 : 0;
  });
  CHECK(heard == 3);
}

TEST_CASE("threads with different world sizes or backends both get the error that names both") {
  for (const bool same_size : {false, true}) {
    const auto store = std::make_shared<par::InProcessStore>();
    run_threads(2, [&](int rank) {
      const std::string text = error_of<ls::CommError>([&] {
        par::rendezvous({.backend = same_size && rank == 1 ? "sim" : "local",
                         .timeout = seconds(60),
                         .world_size = same_size ? 2 : 2 + rank,
                         .rank = rank,
                         .store = store});
      });
      CHECK_MESSAGE(text.find(same_size ? ") has \"local\"" : ") has 2") != std::string::npos, text);
      CHECK_MESSAGE(text.find(same_size ? ") has \"sim\"" : ") has 3") != std::string::npos, text);
      CHECK_MESSAGE(text.find(same_size ? "the same .backend" : "the same WORLD_SIZE") != std::string::npos, text);
    });
    // Both ranks have heard of it, so the next group on the store is for both.
    run_threads(2, [&](int rank) {
      par::rendezvous({.backend = "local", .timeout = seconds(60), .world_size = 2, .rank = rank, .store = store});
    });
  }
}

TEST_CASE("a store whose earlier group was smaller serves a larger one") {
  const auto store = std::make_shared<par::InProcessStore>();
  for (const int size : {2, 3, 1, 4}) {
    run_threads(size, [&](int rank) {
      par::Rendezvous here =
          par::rendezvous({.timeout = seconds(60), .world_size = size, .rank = rank, .store = store});
      here.store->set(std::to_string(rank), "");
      for (int r = 0; r < size; ++r) here.store->get(std::to_string(r));
    });
  }
}
