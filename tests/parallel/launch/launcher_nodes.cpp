// Launchers of several hosts, all of them on this one.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/parallel/launch/launch_support.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace {

par::LaunchOptions on_node(int node, int nodes, const std::string& port, int nproc) {
  clear_environment();
  set_variable("LOCKSTEP_JOB_TOKEN", kJobToken);
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
    options.command = rank_of_test("a rank that meets the others").command;
    const auto result = par::launch(options, [](int, bool, const std::string&) {});
    CHECK_MESSAGE(result.exit_code == 0, result.summary());
  });
}
