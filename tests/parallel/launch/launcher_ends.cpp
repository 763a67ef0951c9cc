// The ends of lockstep-run: exit codes and messages after signals. docs/parallel.md and --help list them.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "lockstep/parallel/launch/launch.h"
#include "tests/support/testing.h"
#include "tests/support/watched_process.h"

namespace {

// A lockstep-run of two ranks that run a shell script.
class Launcher {
 public:
  explicit Launcher(const std::string& script, const std::string& flag = "--no-python",
                    void (*on_hangup)(int) = SIG_DFL) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::signal(SIGHUP, on_hangup);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execl(LOCKSTEP_RUN, LOCKSTEP_RUN, "--nproc-per-node=2", flag.c_str(), "sh", "-c", script.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    lines_ = fdopen(ends[0], "r");
  }
  ~Launcher() {
    if (pid_ > 0) end(SIGKILL);
    std::fclose(lines_);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Waits until both ranks have written this line.
  void await(const std::string& text) {
    for (int count = 0; count < 2;) count += next_line().find("] " + text + "\n") != std::string::npos ? 1 : 0;
  }
  std::string next_line() {
    char line[512];
    REQUIRE(std::fgets(line, sizeof(line), lines_));
    return line;
  }
  void signal(int number) const { kill(pid_, number); }
  // The same signal is another request only some time after the first one, which the ranks have answered.
  void signal_again(int number) const {
    CHECK_FALSE(WatchedProcess(pid_).ends(ls::parallel::LaunchOptions::kSameRequest));
    signal(number);
  }
  // The exit code, with the rest of the output in `output`.
  int wait(std::string& output) {
    REQUIRE(WatchedProcess(pid_).ends());
    char line[512];
    while (std::fgets(line, sizeof(line), lines_)) output += line;
    const int status = end(0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  int end(int signal) {
    int status = 0;
    kill(pid_, signal);
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  pid_t pid_ = -1;
  std::FILE* lines_ = nullptr;
};

// Starts ranks, sends the signals, each when the ranks have written what they answer to the one before.
struct Ended {
  int code = -1;
  std::string output;  // after the last signal
};
Ended end_by(const std::vector<int>& signals, const std::string& script, const std::string& flag = "--no-python") {
  Launcher launcher(script, flag);
  launcher.await("ready");
  for (std::size_t i = 0; i < signals.size(); ++i) {
    if (i > 0) launcher.await("got");
    if (i > 0 && signals[i] == signals[i - 1])
      launcher.signal_again(signals[i]);
    else
      launcher.signal(signals[i]);
  }
  Ended ended;
  ended.code = launcher.wait(ended.output);
  return ended;
}

const std::string kTraps = "TERM INT HUP QUIT; ulimit -c 0; echo ready; while :; do sleep 0.01; done";

}  // namespace

TEST_CASE("after one signal the ranks end as they like, and their exit code is the launcher's") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    CAPTURE(signal);
    const Ended well = end_by({signal}, "trap 'exit 0' " + kTraps);
    CHECK(well.code == 0);
    CHECK_FALSE(contains(well.output, "lockstep-run"));
    CHECK(end_by({signal}, "trap 'exit 3' " + kTraps).code == 3);
    CHECK(end_by({signal}, "ulimit -c 0; echo ready; exec sleep 1000").code == 128 + signal);
  }
  const Ended ended = end_by({SIGTERM}, "echo ready; exec sleep 1000");
  CHECK_MESSAGE(contains(ended.output, "lockstep-run: Asked to stop by signal 15 (SIGTERM)\nFirst to fail: rank "),
                ended.output);
}

TEST_CASE("a second signal kills the ranks; the exit code is 128 + its number, and the launcher says what it did") {
  const std::pair<std::vector<int>, std::string> all[] = {
      {{SIGINT, SIGINT}, "2 (SIGINT)"}, {{SIGTERM, SIGTERM}, "15 (SIGTERM)"}, {{SIGINT, SIGTERM}, "15 (SIGTERM)"},
      {{SIGHUP, SIGHUP}, "1 (SIGHUP)"}, {{SIGQUIT, SIGQUIT}, "3 (SIGQUIT)"},  {{SIGTERM, SIGINT}, "2 (SIGINT)"}};
  for (const auto& each : all) {
    const std::vector<int>& signals = each.first;
    const std::string& name = each.second;
    CAPTURE(name);
    const Ended ended = end_by(signals, "trap 'echo got' " + kTraps);
    CHECK(ended.code == 128 + signals.back());
    CHECK_MESSAGE(
        contains(ended.output, "lockstep-run: A second request to stop, by signal " + name + ": killed 2 of 2 ranks\n"),
        ended.output);
  }
}

TEST_CASE("a rank that ends at the first signal is not counted among the killed") {
  Launcher launcher(
      "[ $RANK = 0 ] && trap 'echo got; exit 0' TERM || trap 'echo got' TERM; echo $$; echo ready; "
      "while :; do sleep 0.01; done");
  std::vector<pid_t> pids(2);
  for (int ready = 0; ready < 2;) {
    const std::string line = launcher.next_line();  // "[0] 71"
    if (contains(line, "ready"))
      ++ready;
    else
      pids.at(static_cast<std::size_t>(line.at(1) - '0')) = std::stoi(line.substr(4));
  }
  launcher.signal(SIGTERM);
  launcher.await("got");
  REQUIRE(WatchedProcess(pids[0]).ends());
  launcher.signal(SIGINT);
  std::string output;
  CHECK(launcher.wait(output) == 128 + SIGINT);
  CHECK_MESSAGE(contains(output, "killed 1 of 2 ranks\n"), output);
}

TEST_CASE("ranks that do not end after another one's failure are killed, and the summary says so") {
  const Ended ended = end_by({SIGTERM},
                             "[ $RANK = 0 ] && trap 'exit 7' TERM || trap '' TERM; echo ready; "
                             "while :; do sleep 0.01; done",
                             "--shutdown-timeout=0.2");
  CHECK(ended.code == 7);
  CHECK_MESSAGE(contains(ended.output, "exited with code 7\nStopped: 1 other rank (1 had to be killed)\n"),
                ended.output);
}

TEST_CASE("a stopped rank is continued, so that it receives the signal") {
  // The subshell tells when its shell has stopped.
  const Ended ended = end_by({SIGTERM},
                             "trap 'exit 0' TERM; "
                             "{ until grep -q '^State:.T' /proc/$$/status; do :; done; echo ready; } & kill -STOP $$; "
                             "while :; do sleep 0.01; done");
  CHECK(ended.code == 0);
}

TEST_CASE("under nohup a launcher outlives its terminal") {
  Launcher launcher("trap 'exit 9' HUP; trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", "--no-python",
                    SIG_IGN);
  launcher.await("ready");
  launcher.signal(SIGHUP);
  launcher.signal(SIGTERM);
  std::string output;
  CHECK(launcher.wait(output) == 0);
}
