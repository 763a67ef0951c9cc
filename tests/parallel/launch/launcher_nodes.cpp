// Launchers of several hosts, all of them on this one.
#include <doctest/doctest.h>

#include <algorithm>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/launch/launch.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace par = lockstep::parallel;

namespace {

par::LaunchOptions on_node(int node, int nodes, const std::string& port, int nproc) {
  clear_environment();
  set_variable("LOCKSTEP_JOB_TOKEN", "0123456789abcdef0123456789abcdef");
  return {.nproc = nproc, .nodes = {.count = nodes, .rank = node, .port = std::stoi(port)}};
}

}  // namespace

TEST_CASE("ranks are numbered host by host") {
  for (int node = 0; node < 3; ++node) {
    par::LaunchOptions options = on_node(node, 3, "4000", 2);
    options.command = {
        "sh", "-c",
        "echo $RANK $LOCAL_RANK $ROLE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $ROLE_WORLD_SIZE $GROUP_RANK "
        "$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RUN_ID"};
    std::vector<std::string> lines;
    const auto result = par::launch(options, [&](int, bool, const std::string& line) { lines.push_back(line); });
    CHECK(result.exit_code == 0);
    REQUIRE(lines.size() == 2);
    for (int local = 0; local < 2; ++local) {
      const std::string rank = std::to_string(2 * node + local), l = std::to_string(local);
      const std::string expected =
          rank + " " + l + " " + rank + " 6 2 6 " + std::to_string(node) + " 3 127.0.0.1:4000 False none";
      CHECK_MESSAGE(std::find(lines.begin(), lines.end(), expected) != lines.end(), lines[0] << ", " << lines[1]);
    }
  }
}

TEST_CASE("ranks that two launchers start find each other") {
  const std::string port = fresh_port();
  check_processes(2, [&](int node) {
    par::LaunchOptions options = on_node(node, 2, port, 2);
    options.command = {"/proc/self/exe", "--no-skip", "--test-case=a rank of the launchers' test"};
    const auto result = par::launch(options, [](int, bool, const std::string&) {});
    CHECK_MESSAGE(result.exit_code == 0, result.summary());
  });
}

TEST_CASE("a rank of the launchers' test" * doctest::skip()) {
  lockstep::on_warning([](const std::string&) {});
  par::Rendezvous here = par::rendezvous({.backend = "gloo"});
  CHECK(here.size == 4);
  here.store->set(std::to_string(here.rank), "here");
  here.store->wait({"0", "1", "2", "3"});
  here.store->set("left " + std::to_string(here.rank), "");
  if (here.rank == 0) here.store->wait({"left 1", "left 2", "left 3"});  // the store ends with rank 0
}
