// Ranks that are shell scripts, and how they end.
#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "lockstep/base/device.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "tests/parallel/launch/launch_support.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"
#include "tests/support/watched_process.h"

namespace {

par::LaunchResult run(const par::LaunchOptions& options, Lines* lines = nullptr) {
  return par::launch(options, [lines](int rank, bool is_stderr, const std::string& line) {
    if (lines) (*lines)[rank].push_back((is_stderr ? "stderr: " : "") + line);
  });
}

// A zombie that nobody has waited for yet counts as gone.
bool is_alive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const char state = line.at(line.rfind(')') + 2);
  return state != 'Z' && state != 'X';
}

// A request to stop by each of the signals, as StopSignals writes it.
std::string requests_by(const std::vector<int>& signals) {
  std::string bytes;
  for (const int signal : signals) {
    signalfd_siginfo request{};
    request.ssi_signo = static_cast<std::uint32_t>(signal);
    bytes.append(reinterpret_cast<const char*>(&request), sizeof(request));
  }
  return bytes;
}

int open_descriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

}  // namespace

TEST_CASE("every rank gets what torchrun sets, and its share of the cores") {
  Lines lines;
  unsetenv("LOCKSTEP_NUM_THREADS");
  setenv("RANK", "77", 1);  // an outer launcher's
  auto options = shell(3,
                       "echo $RANK $LOCAL_RANK $ROLE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
                       "$TORCHELASTIC_RESTART_COUNT $OWN; echo $MASTER_PORT $LOCKSTEP_JOB_TOKEN $TORCHELASTIC_RUN_ID; "
                       "echo $LOCKSTEP_NUM_THREADS");
  options.environment = {"OWN=x=y"};
  CHECK(run(options, &lines).exit_code == 0);
  unsetenv("RANK");
  REQUIRE(lines.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string r = std::to_string(rank);
    REQUIRE(lines[rank].size() == 3);
    CHECK(lines[rank][0] == r + " " + r + " " + r + " 3 3 0 127.0.0.1 0 x=y");
    CHECK(lines[rank][1] == lines[0][1]);
    CHECK(lines[rank][1].size() == 5 + 1 + 64 + 1 + 16);
    CHECK(lines[rank][2] == std::to_string(std::max(lockstep::usable_cores() / 3, 1)));
  }
  Lines next;
  options.environment = {"LOCKSTEP_NUM_THREADS=9"};
  run(options, &next);
  CHECK(next[0][1].substr(6) != lines[0][1].substr(6));  // another run, another token
  CHECK(next[0][2] == "9");
}

TEST_CASE("ranks that are started here find each other") {
  const par::LaunchResult result = run(rank_of_test("a rank that meets the others", 3));
  CHECK_MESSAGE(result.exit_code == 0, result.summary());
}

TEST_CASE("a rank that meets the others" * doctest::skip()) {
  ls::on_warning([](const std::string&) {});
  par::Rendezvous here = par::rendezvous({});
  CHECK(std::to_string(here.size) == std::getenv("WORLD_SIZE"));
  check_together(here);
}

TEST_CASE("the first rank to fail gives the exit code and stops the others") {
  const auto result = run(shell(4, "[ $RANK != 2 ] || exit 7; exec sleep 1000"));
  CHECK(result.exit_code == 7);
  CHECK(result.first_failure == 2);
  REQUIRE(result.ranks.size() == 4);
  CHECK(result.ranks[0].signal == SIGTERM);
  CHECK(result.ranks[0].was_stopped);
  CHECK_FALSE(result.ranks[2].was_stopped);
  CHECK(contains(result.summary(),
                 "First to fail: rank 2 (pid " + std::to_string(result.ranks[2].pid) + ") exited with code 7\n"));
  CHECK(contains(result.summary(), "Stopped: 3 other ranks\n"));
}

TEST_CASE("a rank that a signal ended is told by name, with 128 + signal") {
  const auto result = run(shell(2, "[ $RANK = 0 ] || kill -SEGV $$; exec sleep 1000"));
  CHECK(result.exit_code == 128 + SIGSEGV);
  CHECK(contains(result.summary(), "was killed by signal 11 (SIGSEGV)"));
}

TEST_CASE("who ignores SIGTERM is killed after the grace, and who is stopped is continued") {
  auto options = shell(3,
                       "[ $RANK != 0 ] || trap 'exit 3' TERM; [ $RANK != 1 ] || trap '' TERM; "
                       "[ $RANK != 2 ] || trap 'exit 0' TERM; echo ready; [ $RANK != 2 ] || kill -STOP $$; "
                       "while :; do sleep 0.01; done");
  options.grace = std::chrono::seconds(2);
  const auto result = stop_when_ready(options);
  CHECK(result.exit_code == 3);
  CHECK(result.first_failure == 0);
  CHECK(result.ranks[1].signal == SIGKILL);
  CHECK(result.ranks[1].was_stopped);
  CHECK(result.ranks[2].code == 0);
}

TEST_CASE("the last error of a rank stands in the summary") {
  const auto result =
      run(shell(2,
                "[ $RANK = 0 ] || { printf '{\"message\":{\"message\":\"all_reduce #3: rank 0 \\\\u001b "
                "is lost\"}}' > $TORCHELASTIC_ERROR_FILE; exit 1; }; exec sleep 1000"));
  CHECK(result.ranks[1].error == "all_reduce #3: rank 0 ? is lost");
  CHECK(contains(result.summary(), "exited with code 1; its last error:\n  all_reduce #3: rank 0 ? is lost\n"));
}

TEST_CASE("write_error_file says what torchrun and this launcher read") {
  unsetenv("TORCHELASTIC_ERROR_FILE");
  par::write_error_file("nobody listens");
  const par::ErrorFile file;
  CHECK(file.read().empty());
  setenv("TORCHELASTIC_ERROR_FILE", file.path().c_str(), 1);
  par::write_error_file("a much longer first message");
  par::write_error_file("line 1\nline \"2\" \xff");
  CHECK(file.read() == "line 1\nline \"2\" \xef\xbf\xbd");
  par::write_error_file(std::string(par::kMaxErrorFile, 'x'));
  CHECK(contains(file.read(), "at most 524288 are read"));
  par::write_error_file(std::string(par::kMaxErrorText + 1, 'x'));
  CHECK(file.read() == std::string(par::kMaxErrorText, 'x') + "...");
  setenv("TORCHELASTIC_ERROR_FILE", "/nonexistent/folder/file", 1);
  par::write_error_file("cannot be written");
  unsetenv("TORCHELASTIC_ERROR_FILE");
}

TEST_CASE("an error file of another form is no error") {
  for (const char* text : {"", "{", "[]", "{}", "5", "\"x\"", "{\"message\":5}", "{\"message\":{\"message\":[]}}",
                           "{\"message\":{}}", "\xff\xfe", "{\"message\":{\"message\":{\"message\":\"deep\"}}}"}) {
    INFO(text);
    CHECK(par::message_in(text) == (std::string(text) == "\"x\"" ? "x" : ""));
  }
  CHECK(par::message_in("{\"message\":\"flat\"}") == "flat");
  CHECK(par::message_in(std::string(100000, '[')).empty());
}

TEST_CASE("lines come whole, with the stream they were written to; long ones in pieces") {
  Lines lines;
  run(shell(1, "printf 'a\\n\\nb'; sleep 0; printf 'c\\nlast'; printf 'e\\n' >&2; exit 0"), &lines);
  std::vector<std::string> out, err;
  for (const std::string& line : lines[0]) (line.starts_with("stderr: ") ? err : out).push_back(line);
  CHECK(out == std::vector<std::string>{"a", "", "bc", "last"});
  CHECK(err == std::vector<std::string>{"stderr: e"});

  Lines pieces;
  run(shell(1, "head -c 200000 /dev/zero | tr '\\0' x; echo; echo end"), &pieces);
  std::string joined;
  for (const std::string& piece : pieces[0]) {
    CHECK(piece.size() <= par::kMaxOutputLine);
    joined += piece;
  }
  CHECK(joined == std::string(200000, 'x') + "end");
}

TEST_CASE("ranks read nothing, and have none of this process's descriptors") {
  const ls::Descriptor leak(fcntl(0, F_DUPFD, 40));  // not close-on-exec
  Lines lines;
  run(shell(1, "cat; [ -e /proc/self/fd/40 ] || echo closed; readlink /proc/self/fd/0"), &lines);
  CHECK(lines[0] == std::vector<std::string>{"closed", "/dev/null"});
}

TEST_CASE("a request to stop is handed on, and the ranks end in their own time") {
  const std::string saves = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
  Lines lines;
  const auto result = stop_when_ready(shell(2, saves), &lines);
  CHECK(result.exit_code == 0);
  CHECK(result.summary().empty());
  for (int rank : {0, 1}) CHECK(lines[rank] == std::vector<std::string>{"ready", "saved"});

  const StopRequest request;
  int ready = 0;
  SUBCASE("a second one by another signal kills") {
    auto stubborn = shell(2, "trap 'echo no' TERM; echo ready; while :; do sleep 0.01; done");
    stubborn.stop_fd = request.fd();
    const auto killed = par::launch(stubborn, [&](int, bool, const std::string& line) {
      if (line == "ready" && ++ready == 2) request.send();
      if (line == "no" && ready++ == 2) request.send(requests_by({SIGINT}));
    });
    CHECK(killed.ranks[0].signal == SIGKILL);
    CHECK(killed.ranks[1].signal == SIGKILL);
    CHECK(killed.exit_code == 128 + SIGINT);
    CHECK(killed.first_failure == -1);
    CHECK(killed.was_killed);
    CHECK(killed.summary() == "A second request to stop, by signal 2 (SIGINT): killed 2 of 2 ranks\n");
  }
  SUBCASE("the same signal again, immediately, is the same request") {
    auto saving = shell(2, saves);
    saving.stop_fd = request.fd();
    const auto saved = par::launch(saving, [&](int, bool, const std::string& line) {
      if (line == "ready" && ++ready == 2) request.send(requests_by({SIGTERM, SIGTERM, SIGTERM}));
    });
    CHECK(saved.exit_code == 0);
    CHECK(saved.was_asked_to_stop);
    CHECK(!saved.was_killed);
  }
}

TEST_CASE("StopSignals turns a signal into a request, and lets it through again afterwards") {
  const auto results = run_processes(1, [](int) {
    {
      const par::StopSignals signals;
      auto options = shell(2, "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.01; done");
      options.stop_fd = signals.fd();
      int ready = 0;
      const auto result = par::launch(options, [&](int, bool, const std::string& line) {
        if (line == "ready" && ++ready == 2) kill(getpid(), SIGINT);
      });
      CHECK(result.exit_code == 5);
    }
    ::signal(SIGTERM, SIG_DFL);  // doctest has a handler
    raise(SIGTERM);
  });
  CHECK(results[0].signal == SIGTERM);
}

TEST_CASE("what a rank started and left ends with it") {
  const StopRequest request;
  std::vector<WatchedProcess> watched;
  auto options = shell(2, "trap 'exit 0' TERM; sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & wait");
  options.stop_fd = request.fd();
  const auto result = par::launch(options, [&](int, bool is_stderr, const std::string& line) {
    if (is_stderr) return;
    watched.emplace_back(std::stoi(line));
    if (watched.size() == 2) request.send();
  });
  CHECK(result.exit_code == 0);
  for (const WatchedProcess& process : watched) CHECK(process.ends());
}

TEST_CASE("a launcher that is killed takes its ranks along, and what they have started") {
  int tell[2];
  REQUIRE(pipe2(tell, O_CLOEXEC) == 0);
  const pid_t launcher = fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    par::launch(shell(2, "sleep 1000 & echo $$ $!; wait"), [&](int, bool, const std::string& line) {
      const std::string text = line + "\n";
      if (write(tell[1], text.data(), text.size()) < 0) _exit(1);
    });
    _exit(0);
  }
  close(tell[1]);
  std::FILE* const pids = fdopen(tell[0], "r");
  std::vector<WatchedProcess> watched;
  for (int i = 0; i < 4; ++i) {
    int pid = 0;
    REQUIRE(std::fscanf(pids, "%d", &pid) == 1);
    watched.emplace_back(pid);
  }
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const WatchedProcess& process : watched) CHECK(process.ends());
  std::fclose(pids);
}

TEST_CASE("an exception of the callback ends the ranks and passes through") {
  const auto options = shell(3, "echo $$; exec sleep 1000");
  std::vector<pid_t> pids;
  const auto fail = [&] {
    par::launch(options, [&](int, bool, const std::string& line) {
      pids.push_back(std::stoi(line));
      if (pids.size() == 3) throw std::runtime_error("enough");
    });
  };
  CHECK_THROWS_WITH_AS(fail(), "enough", std::runtime_error);
  for (const pid_t pid : pids) CHECK_FALSE(is_alive(pid));
}

TEST_CASE("what cannot be started says why, and leaves nothing") {
  const int before = open_descriptors();
  const auto text = [](const par::LaunchOptions& options) { return error_of<ls::Error>([&] { run(options); }); };
  CHECK(contains(text({.command = {"no-such-program"}}), "no program \"no-such-program\" in PATH"));
  CHECK(contains(text({.command = {"./no-such-program"}}), "cannot be run: No such file"));
  CHECK(contains(text({.command = {"/dev/null"}}), "/dev/null: cannot be run: Permission denied"));
  CHECK(contains(text({.command = {}}), "no program to run"));
  CHECK(contains(text({.nproc = 0, .command = {"true"}}), "nproc is 0"));
  CHECK(contains(text({.command = {"true"}, .environment = {"x"}}), "\"x\" is not NAME=value"));
  for (int i = 0; i < 5; ++i) CHECK(run({.nproc = 4, .command = {"true"}}).exit_code == 0);
  CHECK(open_descriptors() == before);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left, the watchdog neither
}

TEST_CASE("a quota of cores is rounded up") {
  CHECK(lockstep::cores_of_quota("max 100000") == 0);
  CHECK(lockstep::cores_of_quota("150000 100000") == 2);
  CHECK(lockstep::cores_of_quota("200000 100000") == 2);
  CHECK(lockstep::cores_of_quota("1000 100000") == 1);
  CHECK(lockstep::cores_of_quota("-1 100000") == 0);
  CHECK(lockstep::cores_of_quota("") == 0);
  CHECK(lockstep::cores_of_quota("1 0") == 0);
  CHECK(lockstep::usable_cores() >= 1);
}
