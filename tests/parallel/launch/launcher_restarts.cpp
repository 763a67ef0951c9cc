// Ranks that are started again, and the files that their output goes to.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/parallel/launch/launch_support.h"

using std::chrono::milliseconds;

namespace {

// Runs it, with what rank 0 writes and the pauses before restarts.
struct Outcome {
  par::LaunchResult result;
  std::vector<std::string> lines;
  std::vector<std::int64_t> pauses;
};
Outcome run(const par::LaunchOptions& options) {
  Outcome out;
  out.result = par::launch(
      options,
      [&](int rank, bool, const std::string& line) {
        if (rank == 0) out.lines.push_back(line);
      },
      [&](const par::LaunchResult& failed, milliseconds pause) {
        CHECK(failed.attempt == static_cast<int>(out.pauses.size()));
        CHECK(failed.exit_code != 0);
        out.pauses.push_back(pause.count());
      });
  return out;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("ranks are started again, all of them, until they succeed") {
  for (int attempt = 0; attempt < 3; ++attempt) std::filesystem::remove("said." + std::to_string(attempt));
  const Outcome out = run(
      shell(2,
            "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; said=said.$TORCHELASTIC_RESTART_COUNT; "
            "[ $RANK = 1 ] || touch $said; while ! [ -e $said ]; do sleep 0.01; done; "
            "[ $RANK = 0 ] || exit $((2 - TORCHELASTIC_RESTART_COUNT)); [ $TORCHELASTIC_RESTART_COUNT = "
            "2 ] || exec sleep 1000",
            5));
  CHECK(out.result.exit_code == 0);
  CHECK(out.result.attempt == 2);
  CHECK(out.result.summary().empty());
  CHECK(out.lines == std::vector<std::string>{"0 of 5", "1 of 5", "2 of 5"});
  CHECK(out.pauses == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("a crash loop ends, and the pauses in it double") {
  const Outcome out = run(shell(1, "exit 3", 4));
  CHECK(out.result.exit_code == 3);
  CHECK(out.result.attempt == 4);
  CHECK(out.pauses == std::vector<std::int64_t>{0, 1, 2, 4});
  CHECK(out.result.summary().starts_with("After 4 restarts: First to fail: rank 0 (pid "));
}

TEST_CASE("ranks that were asked to stop are not started again") {
  Lines lines;
  const auto result =
      stop_when_ready(shell(1, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", 3), &lines);
  CHECK(lines[0] == std::vector<std::string>{"ready"});
  CHECK(result.exit_code == 5);
  CHECK(result.was_asked_to_stop);
}

TEST_CASE("a request to stop ends the pause before a restart") {
  const StopRequest request;
  auto options = shell(1, "exit 5", 3);
  options.back_off = std::chrono::hours(1);
  options.stop_fd = request.fd();
  int restarts = 0;
  const auto result = par::launch(options, {}, [&](const par::LaunchResult&, milliseconds pause) {
    if (++restarts < 2) return;
    CHECK(pause == std::chrono::minutes(1));
    request.send();
  });
  CHECK(restarts == 2);
  CHECK(result.attempt == 1);
  CHECK(result.exit_code == 5);
  CHECK(result.was_asked_to_stop);
  CHECK(result.summary().starts_with("Asked to stop by signal 15 (SIGTERM)\nAfter 1 restart: First to fail: rank 0"));
}

TEST_CASE("output goes to files, by stream, local rank and attempt") {
  auto options = shell(2,
                       "echo out $RANK; echo err $RANK >&2; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] || "
                       "{ printf '{\"message\":\"lost\"}' > $TORCHELASTIC_ERROR_FILE; exit 4; }",
                       1);
  options.run_id = "job";
  options.logs = {.folder = "logs/deep", .redirects = {.by_local_rank = {{0, 1}}}, .tee = {.all = 3}};
  options.logs.tee.by_local_rank = {{0, 0}};
  std::filesystem::remove_all("logs");
  std::map<std::string, int> shown;
  const auto result = par::launch(options, [&](int, bool, const std::string& line) { ++shown[line]; });
  CHECK(result.exit_code == 0);
  CHECK(shown.count("out 0") == 0);  // in its file only
  CHECK(shown["err 1"] == 2);

  std::vector<std::filesystem::path> runs;
  for (const auto& entry : std::filesystem::directory_iterator("logs/deep")) runs.push_back(entry.path());
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].filename().string().starts_with("job_"));
  CHECK(read(runs[0] / "attempt_1/0/stdout.log") == "out 0\n");
  CHECK_FALSE(std::filesystem::exists(runs[0] / "attempt_1/0/stderr.log"));
  for (const char* attempt : {"attempt_0", "attempt_1"}) {
    CHECK(read(runs[0] / attempt / "1/stdout.log") == "out 1\n");
    CHECK(read(runs[0] / attempt / "1/stderr.log") == "err 1\n");
  }
  CHECK(read(runs[0] / "attempt_0/1/error.json").find("\"message\":\"lost\"") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(runs[0] / "attempt_1/1/error.json"));
}

TEST_CASE("options that make no sense are refused") {
  const auto text = [](par::LaunchOptions options) {
    options.command = {"true"};
    return error_of<lockstep::Error>([&] { par::launch(options); });
  };
  CHECK(contains(text({.max_restarts = -1}), "max_restarts is -1, expected 0 or more"));
  CHECK(contains(text({.back_off = milliseconds(-1)}), "back_off is -1 ms"));
  CHECK(contains(text({.nodes = {.count = 2, .rank = 2}}), "the node's rank is 2, expected 0 to 1"));
  CHECK(contains(text({.nodes = {.count = 2, .port = 0}}), "port is 0, expected 1 to 65535"));
  ::unsetenv("LOCKSTEP_JOB_TOKEN");
  CHECK(contains(text({.nodes = {.count = 2}}), "lockstep-run --new-token"));
  CHECK(contains(text({.max_restarts = 1, .nodes = {.count = 2}}),
                 "expected 0: a launcher restarts the ranks of its own"));
  CHECK(contains(text({.nproc = 64, .nodes = {.count = 65}}), "at most 4096 ranks in all"));
  CHECK(contains(text({.logs = {.folder = "/dev/null/x"}}), "/dev/null/x"));
}

TEST_CASE("tokens are long and new each time") {
  const std::string token = par::new_job_token();
  CHECK(token.size() == 64);
  CHECK(token.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(token != par::new_job_token());
}
