// Jobs under mpirun in which one rank is killed, stops, throws, or makes a different call than the others. The first
// test case starts the jobs; the second one is the program of their ranks.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "lockstep/parallel/rendezvous/store.h"
#include "tests/support/chaos.h"
#include "tests/support/files.h"
#include "tests/support/watched_process.h"

// Interposes MPI's own function, to report in such a job that it was called.
extern "C" int MPI_Finalize();
int MPI_Finalize() {
  if (std::getenv("LOCKSTEP_TEST_MPI_FAULT")) std::puts("finalized");
  return reinterpret_cast<decltype(&MPI_Finalize)>(dlsym(dlopen("libmpi.so.40", RTLD_NOW), "PMPI_Finalize"))();
}

namespace {

constexpr const char* kFault = "LOCKSTEP_TEST_MPI_FAULT";  // the fault of rank 1
constexpr const char* kJob = "LOCKSTEP_TEST_MPI_JOB";      // marks the processes of a job

std::string fault() {
  const char* const text = std::getenv(kFault);
  return text ? text : "";
}

bool stops() { return fault().starts_with("stop"); }

// Waits until all processes of this job have ended: mpirun does not wait for the ranks that it kills.
bool all_end(const std::string& job) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const bool is_of_job =
        contains(content_of_file((entry.path() / "environ").string()), std::string(kJob) + "=" + job);
    if (is_of_job && !WatchedProcess(std::stoi(entry.path().filename().string())).ends()) return false;
  }
  return true;
}

// The file in which the ranks of a job record that they have reported their errors.
std::string told_file(const std::string& job) { return "mpi_job_" + job + ".told"; }

struct Job {
  ExitStatus status;
  std::string output;
};

// Runs three ranks of this program under mpirun, for at most a minute.
Job run_job(const std::string& what) {
  static int jobs = 0;
  const std::string job = std::to_string(getpid()) + "-" + std::to_string(jobs++), file = "mpi_job_" + job + ".txt";
  const auto ended = run_processes(
      1,
      [&](int) {
        const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (out < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0) _exit(126);
        setenv(kFault, what.c_str(), 1);
        setenv(kJob, job.c_str(), 1);
        const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
        execlp("mpirun", "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", self.c_str(),
               "--test-case=mpi: a rank of a job*", nullptr);
        _exit(127);
      },
      std::chrono::seconds(60));
  Job result{ended[0], content_of_file(file)};
  std::filesystem::remove(file);
  std::filesystem::remove(told_file(job));
  CHECK_MESSAGE(all_end(job), result.output);
  return result;
}

// The fault of rank 1 during training.
void be_faulty(const Group& group) {
  const std::string what = fault();
  if (what == "kill") raise(SIGKILL);
  if (what == "stop" || what == "stop of group") raise(SIGSTOP);
  if (what == "exit") _exit(5);
  if (what == "throw") throw ls::InvalidArgument("the victim's own error");
  if (what == "disagree") group->broadcast(ls::zeros({3}), 0)->wait();
}

// Waits for the reports of the other ranks, because mpirun kills all ranks when the first one exits.
void wait_for_others(int rank) {
  if (!stops() && fault() != "disagree") return;
  ls::parallel::FileStore told(told_file(std::getenv(kJob)));
  told.set(std::to_string(rank), "");
  told.wait(stops() ? std::vector<std::string>{"0", "2"} : std::vector<std::string>{"0", "1", "2"},
            std::chrono::seconds(20));
}

}  // namespace

TEST_CASE("mpi: after any fault of a rank mpirun ends the job, no process is left, and the survivors name the culprit" *
          doctest::skip(!fault().empty())) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) {
    MESSAGE("SKIPPED: mpirun was not found");
    return;
  }
  for (const std::string what : {"kill", "exit", "throw", "stop", "stop of group", "disagree"}) {
    CAPTURE(what);
    const Job job = run_job(what);
    CAPTURE(job.output);
    CHECK(!job.status.timed_out);
    CHECK(job.status.code > 0);  // mpirun's exit code, which tells the user that the job failed
    // Where a rank was killed or failed, mpirun kills the others at once, possibly before they report.
    for (const char* survivor : {"rank 0 ", "rank 2 "}) {
      const bool has_told = contains(job.output, std::string(survivor) + "names rank 1");
      if (what.starts_with("stop") || what == "disagree") CHECK(has_told);
      CHECK(!contains(job.output, std::string(survivor) + "is wrong"));
    }
    CHECK(!contains(job.output, "finalized"));  // MPI_Finalize would wait for ranks that may be lost
  }
}

TEST_CASE("mpi: a rank of a job in which rank 1 fails" * doctest::skip(fault().empty())) {
  const Group group = ls::parallel::init_process_group(
      {.backend = "mpi", .init_method = "mpi://", .timeout = std::chrono::seconds(stops() ? 1 : 20)});
  const Group copy = fault() == "stop of group" ? group->duplicate() : nullptr;
  const auto say = [&](const std::string& text) {
    std::printf("rank %d %s\n", group->rank(), text.c_str());
    std::fflush(stdout);
  };
  const std::string error = error_of<ls::CommError>([&] {
    for (int step = 0; step < 1000; ++step) {
      if (group->rank() == 1 && step == 7) be_faulty(group);
      if (copy && group->rank() == 0 && step == 7) copy->recv(ls::ones({100}), 1)->wait();
      group->all_reduce(ls::ones({step % 2 == 0 ? 100 : 50'000}))->wait();
    }
  });
  // With a duplicate group, rank 0 waits for rank 1 there, and rank 2 for both in the original group.
  const std::string blame = error.substr(std::min(error.find("): "), error.size()));
  const bool is_named = (contains(blame, "rank 1 ") && !(copy && contains(blame, "rank 0"))) || group->rank() == 1;
  say(is_named ? "names rank 1: " + error : "is wrong: " + error);
  wait_for_others(group->rank());
  CHECK(is_named);
}
