// Ranks that end while a group is made over a store that does not notice it: whether a process has ended, and who is
// named.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"
#include "tests/support/watched_process.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// A child that waits for its end.
pid_t start_child() {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  while (child == 0) pause();
  return child;
}

void reap(pid_t child) { REQUIRE(waitpid(child, nullptr, 0) == child); }

void end(pid_t child) {
  const WatchedProcess watched(child);
  REQUIRE(kill(child, SIGKILL) == 0);
  REQUIRE(watched.ends(seconds(30)));
}

std::string fresh_path() { return std::filesystem::current_path().string() + "/store" + fresh_port(); }

}  // namespace

TEST_CASE("a process has ended once it is a zombie, is reaped, or its id belongs to another") {
  const pid_t child = start_child();
  const std::string identity = ls::process_identity(child), own = ls::process_identity(getpid());
  REQUIRE(identity.starts_with(std::to_string(child) + " "));
  CHECK_FALSE(ls::has_ended(identity));
  const std::string after_id = own.substr(own.find(' ') + 1), space = after_id.substr(after_id.find(' ') + 1);
  CHECK(ls::has_ended(std::to_string(child) + " 1 " + space));
  end(child);
  CHECK(ls::has_ended(identity));
  reap(child);
  CHECK(ls::has_ended(identity));
}

TEST_CASE("a process is not said to have ended where that is unknown") {
  const pid_t child = start_child();
  const std::string identity = ls::process_identity(child);
  end(child);
  reap(child);
  REQUIRE(ls::has_ended(identity));
  CHECK_FALSE(ls::has_ended(ls::process_identity(getpid())));
  CHECK_FALSE(ls::has_ended(identity + "0"));  // another pid namespace
  for (const char* text : {"", "x", "-1 1 a b", "17", "0 1 a b"}) CHECK_FALSE(ls::has_ended(text));
  const pid_t living = start_child();
  check_processes(1, [&](int) {
    const std::string of_living = ls::process_identity(living);
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 0;  // no further descriptor
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_FALSE(ls::has_ended(of_living));
    CHECK(ls::process_identity(living).empty());
  });
  end(living);
  reap(living);
}

TEST_CASE("a rank that is killed while a group is made over a file is named") {
  const std::string path = fresh_path();
  const auto join = [&](int rank) {
    par::rendezvous({.init_method = "file://" + path, .timeout = seconds(60), .world_size = 3, .rank = rank});
  };
  const pid_t victim = fork();
  REQUIRE(victim >= 0);
  if (victim == 0) {
    join(1);
    _exit(0);
  }
  const auto results = run_processes(2, [&](int process) {
    if (process == 0) join(0);
    par::FileStore store(path);
    for (const char* rank : {"0", "1"}) store.get(std::string("group//0/rendezvous/rank/") + rank);
    kill(victim, SIGKILL);
  });
  reap(victim);
  INFO(results[0].to_string());
  CHECK(results[0].code == 1);
  CHECK(contains(results[0].error,
                 "rendezvous: rank 1 (process " + std::to_string(victim) + ") ended before the group was made"));
}
