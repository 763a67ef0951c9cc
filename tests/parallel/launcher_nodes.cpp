// Launchers of several hosts, which are all this one.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/parallel/launch/launcher.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/tcp_store.h"
#include "lockstep/tensor/warning.h"
#include "tests/parallel/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace par = lockstep::parallel;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

par::LaunchOptions on_node(int node, int nodes, const std::string& port, int nproc, const std::string& script) {
  clear_environment();
  set_variable("LOCKSTEP_JOB_TOKEN", kToken);
  return {.nproc = nproc,
          .command = {"sh", "-c", script},
          .back_off = milliseconds(1),
          .nodes = {.count = nodes, .rank = node, .port = std::stoi(port), .timeout = seconds(20)}};
}

}  // namespace

TEST_CASE("ranks are numbered over all hosts, each with as many as it starts") {
  const std::string port = fresh_port();
  check_processes(3, [&](int node) {
    std::vector<std::string> lines;
    const auto result = par::launch(on_node(node, 3, port, node + 1,
                                            "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                                            "$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT "
                                            "$TORCHELASTIC_USE_AGENT_STORE"),
                                    [&](int, bool, const std::string& line) { lines.push_back(line); });
    CHECK(result.exit_code == 0);
    const int first = node * (node + 1) / 2;
    REQUIRE(lines.size() == static_cast<std::size_t>(node + 1));
    for (int local = 0; local <= node; ++local) {
      const std::string expected = std::to_string(first + local) + " " + std::to_string(local) + " 6 " +
                                   std::to_string(node + 1) + " " + std::to_string(node) + " 3 127.0.0.1:" + port +
                                   " True";
      CHECK(std::find(lines.begin(), lines.end(), expected) != lines.end());
    }
  });
}

TEST_CASE("ranks that two launchers start find each other") {
  const std::string port = fresh_port();
  check_processes(2, [&](int node) {
    par::LaunchOptions options = on_node(node, 2, port, 2, "");
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

TEST_CASE("a failure on one host stops the ranks of all, and each launcher tells it") {
  const std::string port = fresh_port();
  check_processes(2, [&](int node) {
    const auto result = par::launch(on_node(node, 2, port, 2, "[ $RANK != 2 ] || exit 7; exec sleep 1000"),
                                    [](int, bool, const std::string&) {});
    CHECK(result.exit_code == 7);
    INFO(result.summary());
    if (node == 0) CHECK(contains(result.summary(), "node 1: First to fail: rank 2 (pid "));
    if (node == 1) CHECK(result.summary().starts_with("First to fail: rank 2 (pid "));
  });
}

TEST_CASE("all hosts start their ranks again, also those whose ranks had succeeded") {
  const std::string port = fresh_port();
  check_processes(2, [&](int node) {
    auto options =
        on_node(node, 2, port, 1,
                "echo $TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] || exit $((2 - TORCHELASTIC_RESTART_COUNT))");
    options.max_restarts = 3;
    std::vector<std::string> lines;
    const auto result = par::launch(options, [&](int, bool, const std::string& line) { lines.push_back(line); });
    CHECK(result.exit_code == 0);
    CHECK(result.attempt == 2);
    // Node 0's rank may be stopped before it says a word.
    if (node == 1) CHECK(lines == std::vector<std::string>{"0", "1", "2"});
    CHECK(lines.back() == "2");
  });
}

TEST_CASE("a launcher that is killed ends the others' ranks") {
  const std::string port = fresh_port();
  int victim = 0;
  SUBCASE("node 0, which has the store") {}
  SUBCASE("another") { victim = 1; }
  int ready[2];  // the survivor's ranks have started, too
  REQUIRE(::pipe(ready) == 0);
  const auto results = run_processes(2, [&](int node) {
    const auto result =
        par::launch(on_node(node, 2, port, 1, "echo ready; exec sleep 1000"), [&](int, bool, const std::string&) {
          char byte = 0;
          if (node != victim) REQUIRE(::write(ready[1], &byte, 1) == 1);
          if (node == victim && ::read(ready[0], &byte, 1) == 1) raise(SIGKILL);
        });
    CHECK(result.exit_code == 1);
    CHECK(contains(result.summary(), victim == 0 ? "node 0's launcher is lost" : "node 1: its launcher ended"));
  });
  ::close(ready[0]);
  ::close(ready[1]);
  CHECK(results[static_cast<std::size_t>(victim)].signal == SIGKILL);
  CHECK_MESSAGE(results[static_cast<std::size_t>(1 - victim)].ok(),
                results[static_cast<std::size_t>(1 - victim)].to_string());
}

TEST_CASE("a host that is there twice, or does not come, is named") {
  const std::string port = fresh_port();
  const auto results = run_processes(2, [&](int node) {
    auto options = on_node(0, 3, port, 1, "true");
    options.nodes.rank = node;
    options.nodes.timeout = seconds(1);
    par::launch(options, [](int, bool, const std::string&) {});
  });
  for (const ExitStatus& result : results)
    CHECK_MESSAGE(contains(result.error, "node 2 of 3 did not arrive within 1000 ms; 2 of them are here"),
                  result.to_string());
}

TEST_CASE("two launchers with one --node-rank: the second one is told so") {
  const std::string port = fresh_port();
  const auto results = run_processes(3, [&](int process) {
    auto options = on_node(process == 0 ? 0 : 1, 3, port, 1, "true");
    options.nodes.timeout = seconds(5);
    par::launch(options, [](int, bool, const std::string&) {});
  });
  CHECK(contains(results[1].error + results[2].error, "node 1 is there twice"));
}

TEST_CASE("a node that is lost for good: the others go on without it") {
  const std::string port = fresh_port();
  const auto results = run_processes(3, [&](int node) {
    auto options = on_node(node, 3, port, 2,
                           "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE; "
                           "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000");
    options.max_restarts = 1;
    options.nodes.min_count = 2;
    options.nodes.last_call = seconds(3);
    std::vector<std::string> lines;
    const auto result = par::launch(options, [&](int, bool, const std::string& line) {
      lines.push_back(line);
      if (node == 1 && lines.size() == 2) raise(SIGKILL);
    });
    CHECK_MESSAGE(result.exit_code == 0, result.summary());
    CHECK(result.attempt == 1);
    for (const char* line : {node == 0 ? "0/4 0/2" : "2/4 1/2", node == 0 ? "1/4 0/2" : "3/4 1/2"})
      CHECK(std::find(lines.begin(), lines.end(), line) != lines.end());
  });
  CHECK(results[1].signal == SIGKILL);
  CHECK_MESSAGE(results[0].ok(), results[0].to_string());
  CHECK_MESSAGE(results[2].ok(), results[2].to_string());
}

TEST_CASE("a node that comes back takes its place again") {
  const std::string port = fresh_port();
  int killed[2];  // the first life of node 1 says so at its end
  REQUIRE(::pipe(killed) == 0);
  const auto results = run_processes(3, [&](int process) {
    char byte = 0;
    if (process == 2) REQUIRE(::read(killed[0], &byte, 1) == 1);  // the second life
    auto options = on_node(process == 0 ? 0 : 1, 2, port, 1,
                           "echo $RANK/$WORLD_SIZE; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000");
    options.max_restarts = 1;
    options.nodes.min_count = 1;
    options.nodes.last_call = seconds(20);
    std::string last;
    const auto result = par::launch(options, [&](int, bool, const std::string& line) {
      last = line;
      if (process != 1) return;
      REQUIRE(::write(killed[1], "", 1) == 1);
      raise(SIGKILL);
    });
    CHECK_MESSAGE(result.exit_code == 0, result.summary());
    CHECK(last == (process == 0 ? "0/2" : "1/2"));
  });
  ::close(killed[0]);
  ::close(killed[1]);
  CHECK(results[1].signal == SIGKILL);
  CHECK_MESSAGE(results[0].ok(), results[0].to_string());
  CHECK_MESSAGE(results[2].ok(), results[2].to_string());
}

TEST_CASE("a request to stop at node 0, which waits for others: those that are there hear of it") {
  const std::string port = fresh_port();
  int request[2];
  REQUIRE(::pipe(request) == 0);
  const auto results = run_processes(3, [&](int process) {
    if (process == 2) {
      par::TcpStore store("127.0.0.1", std::stoi(port), {.token = kToken, .job = "launchers of 3 hosts"});
      store.wait({"attempt/0/here/1"});
      REQUIRE(::write(request[1], "", 1) == 1);
      return;
    }
    auto options = on_node(process, 3, port, 1, "true");
    if (process == 0) options.stop_fd = request[0];
    const auto result = par::launch(options, [](int, bool, const std::string&) {});
    CHECK(result.was_asked_to_stop);
  });
  ::close(request[0]);
  ::close(request[1]);
  CHECK_MESSAGE(results[0].ok(), results[0].to_string());
  CHECK_MESSAGE(contains(results[1].error, "node 0 was asked to stop"), results[1].to_string());
  CHECK_MESSAGE(results[2].ok(), results[2].to_string());
}

TEST_CASE("a request to stop ends the wait for other hosts") {
  int request[2];
  REQUIRE(::pipe(request) == 0);
  int node = 0;
  SUBCASE("at node 0") {}
  SUBCASE("before node 0 is there") { node = 1; }
  auto options = on_node(node, 2, fresh_port(), 1, "true");
  options.stop_fd = request[0];
  REQUIRE(::write(request[1], "", 1) == 1);
  const auto result = par::launch(options, [](int, bool, const std::string&) {});
  CHECK(result.was_asked_to_stop);
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK(contains(result.summary(), "Stopped while it waited for other hosts"));
  ::close(request[0]);
  ::close(request[1]);
}
