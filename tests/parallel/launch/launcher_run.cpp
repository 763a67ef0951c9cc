// lockstep-run as a user starts it.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

struct Finished {
  int code = -1;
  std::string output;  // stdout and stderr together
};

Finished lockstep_run(const std::string& arguments) {
  Finished out;
  std::FILE* const pipe = popen((std::string(LOCKSTEP_RUN) + " " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  char buffer[4096];
  while (const std::size_t size = std::fread(buffer, 1, sizeof(buffer), pipe)) out.output.append(buffer, size);
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("both spellings of a flag go, and options end at the program's name") {
  for (const char* flags :
       {"-n 2", "--nproc 2", "--nproc-per-node 2", "--nproc_per_node 2", "--nproc-per-node=2", "--nproc_per_node=2 --",
        "--standalone --no_python --no-python --shutdown_timeout 5 --nproc-per-node 2"}) {
    INFO(flags);
    const Finished run = lockstep_run(std::string(flags) + " echo --nproc-per-node 7 -h -- x");
    CHECK(run.code == 0);
    CHECK(contains(run.output, "[0] --nproc-per-node 7 -h -- x\n"));
    CHECK(contains(run.output, "[1] --nproc-per-node 7 -h -- x\n"));
    CHECK(run.output.size() == 2 * std::string("[0] --nproc-per-node 7 -h -- x\n").size());
  }
  CHECK(lockstep_run("--no-prefix echo x").output == "x\n");
  CHECK(lockstep_run("--no-pty sh -c '[ -t 1 ] || echo pipe'").output == "[0] pipe\n");
  CHECK(lockstep_run("--nproc-per-node auto true").code == 0);
}

TEST_CASE("the first failure gives code and summary") {
  const Finished run = lockstep_run("--nproc-per-node 2 sh -c '[ $RANK = 0 ] || kill -9 $$; exec sleep 1000'");
  CHECK(run.code == 128 + 9);
  CHECK(contains(run.output, "lockstep-run: First to fail: rank 1 (pid "));
  CHECK(contains(run.output, "was killed by signal 9 (SIGKILL)"));
  CHECK(contains(run.output, "Stopped: 1 other rank\n"));
}

TEST_CASE("restarts are told, and PET_ variables stand for options") {
  const Finished run = lockstep_run("--max_restarts 1 sh -c 'echo $TORCHELASTIC_RESTART_COUNT; exit 6'");
  CHECK(run.code == 6);
  CHECK(contains(run.output, "[0] 0\n"));
  CHECK(contains(run.output, "lockstep-run: restart 1 of 1\n"));
  CHECK(contains(run.output, "[0] 1\n"));
  CHECK(contains(run.output, "lockstep-run: After 1 restart: First to fail: rank 0"));
  ::setenv("PET_NPROC_PER_NODE", "2", 1);
  CHECK(contains(lockstep_run("echo x").output, "[1] x\n"));
  ::unsetenv("PET_NPROC_PER_NODE");
  CHECK(lockstep_run("--new-token").output.size() == 65);
}

TEST_CASE("of several hosts lockstep-run sets the variables, and rank 0 listens on the port as given") {
  ::setenv("LOCKSTEP_JOB_TOKEN", "0123456789abcdef0123456789abcdef", 1);
  const std::string show = " sh -c 'echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $LOCKSTEP_JOB_TOKEN'";
  for (const char* where : {"--master-addr a.example --master-port 4000", "--rdzv-endpoint a.example:4000"}) {
    const Finished run = lockstep_run(std::string("--nnodes 3 --node-rank 1 --nproc-per-node 2 ") + where + show);
    CHECK(run.code == 0);
    CHECK(contains(run.output, "[2] 2/6 a.example:4000 0123456789abcdef0123456789abcdef\n"));
    CHECK(contains(run.output, "[3] 3/6 a.example:4000 0123456789abcdef0123456789abcdef\n"));
  }
  CHECK(contains(lockstep_run("--nnodes 3 --standalone" + show).output, "[0] 0/1 127.0.0.1:"));
  ::unsetenv("LOCKSTEP_JOB_TOKEN");
}

TEST_CASE("wrong command lines are refused, with what is wrong") {
  struct Case {
    std::string arguments, part;
  };
  for (const Case& wrong : std::vector<Case>{
           {"", "PROGRAM is required"},
           {"--nproc-per-node 2", "PROGRAM is required"},
           {"--nproc-per-node x true", "expected a number from 1, or auto"},
           {"--nproc-per-node 0 true", "expected a number from 1, or auto"},
           {"--nproc-per-node", "nproc-per-node"},
           {"--no-such-flag true", "--no-such-flag"},
           {"--nnodes 1:2 true",
            "is \"1:2\", expected one number\nFor a job whose number of hosts may change use torchrun"},
           {"--nnodes 2 --node-rank 2 true", "the node's rank is 2, expected 0 to 1"},
           {"--nnodes 2 --max-restarts 1 touch started", "Start the job with torchrun"},
           {"--nnodes 2 touch started", "LOCKSTEP_JOB_TOKEN is not set"},
           {"--nnodes 2 touch started", "lockstep-run --new-token"},
           {"--nnodes x true", "is \"x\", expected a number from 1"},
           {"--rdzv-endpoint :1 true", "expected HOST or HOST:PORT"},
           {"--max-restarts -1 true", "max-restarts"},
           {"--tee 4 --log-dir . true", "expected 0 to 3"},
           {"--redirects 0:1,1 --log-dir . true", "expected 0 to 3, or RANK:0..3"},
           {"--tee 3 true", "--log-dir"},
           {"--tee 1:3 --log-dir . true", "names local rank 1, and the local ranks are 0 to 0"},
           {"--redirects 2:1 --nproc-per-node 2 --log-dir . true", "the local ranks are 0 to 1"},
           {"--new-token true", "leave the program out"},
       }) {
    INFO(wrong.arguments);
    const Finished run = lockstep_run(wrong.arguments);
    CHECK(run.code == 2);
    CHECK_MESSAGE(contains(run.output, wrong.part), run.output);
  }
  CHECK_FALSE(std::filesystem::exists("started"));
  const Finished missing = lockstep_run("no-such-program");
  CHECK(missing.code == 1);
  CHECK(contains(missing.output, "no program \"no-such-program\" in PATH"));
  CHECK(contains(lockstep_run("--help").output, "Options end at the program's name"));
  CHECK(lockstep_run("--help").code == 0);
}
