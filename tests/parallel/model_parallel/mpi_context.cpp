// Sequence blocks, slices and stages of a model over mpi have the bits of threads, and an exception in a stage reaches all
// ranks. The first test case starts jobs of mpirun; the second one is the program of their ranks.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/parallel/model_parallel/context_training.h"
#include "tests/parallel/model_parallel/failing_stages.h"
#include "tests/parallel/model_parallel/pipeline_training.h"
#include "tests/parallel/model_parallel/tensor_training.h"
#include "tests/support/files.h"

using namespace context_training;

namespace {

constexpr const char* kJob = "LOCKSTEP_TEST_MPI_CONTEXT";  // marks the processes of a job: a file that they share

bool is_in_job() { return std::getenv(kJob) != nullptr; }

std::string failure_of(int rank) { return fmt::format("rank {} got the exception of a stage", rank); }
std::string report_of(int rank) { return fmt::format("rank {} has the bits of threads", rank); }

struct Job {
  ExitStatus status;
  std::string output;
};

bool trains_in_stages(const Group& group) {
  const pipeline_training::ModelOptions options{.dropout = 0.1, .norm = true};
  bool is_same = true;
  for (const par::Schedule schedule : {par::Schedule::k1F1B, par::Schedule::kInterleaved}) {
    const pipeline_training::Layout layout{
        .ranks = group->size(), .chunks = schedule == par::Schedule::k1F1B ? 1 : 2, .schedule = schedule};
    const auto want = pipeline_training::train_alone(options, layout.micro_batches);
    const auto got = pipeline_training::train_on_rank(group, options, layout);
    pipeline_training::check_equal(got, want);
    is_same = is_same && got.losses == want.losses && got.norms == want.norms && got.state == want.state;
  }
  return is_same;
}

// Runs a test case of this program on `ranks` ranks under mpirun.
Job run_job(int ranks, const std::string& test_case) {
  const std::string file = fmt::format("mpi_context_{}.txt", ranks),
                    shared = fmt::format("mpi_context_{}.store", ranks);
  std::filesystem::remove(shared);
  const auto ended = run_processes(
      1,
      [&](int) {
        const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (out < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0) _exit(126);
        setenv(kJob, shared.c_str(), 1);
        const char* const given = std::getenv("ASAN_OPTIONS");
        const std::string asan = std::string(given ? given : "") + ":detect_leaks=0";  // MPI never frees some memory
        setenv("ASAN_OPTIONS", asan.c_str(), 1);
        const std::string self = std::filesystem::read_symlink("/proc/self/exe").string(),
                          count = std::to_string(ranks);
        execlp("mpirun", "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", count.c_str(), self.c_str(),
               ("--test-case=" + test_case).c_str(), "--no-colors=true", nullptr);
        _exit(127);
      },
      std::chrono::seconds(60));
  const Job job{ended[0], content_of_file(file)};
  std::filesystem::remove(file);
  std::filesystem::remove(shared);
  return job;
}

}  // namespace

TEST_CASE("mpi: training on sequence blocks has the bits of threads" * doctest::skip(is_in_job())) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) {
    MESSAGE("SKIPPED: mpirun was not found");
    return;
  }
  for (const int ranks : {2, 4}) {
    const Job job = run_job(ranks, "mpi: a rank of a job that trains on sequence blocks");
    CAPTURE(job.output);
    CHECK_MESSAGE(job.status.ok(), job.status.to_string());
    for (int rank = 0; rank < ranks; ++rank) CHECK(contains(job.output, report_of(rank)));
  }
}

// mpirun reports an error, since ranks of a failed group end without MPI_Finalize.
TEST_CASE("mpi: an exception in a stage ends the step on all ranks" * doctest::skip(is_in_job())) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) {
    MESSAGE("SKIPPED: mpirun was not found");
    return;
  }
  const Job job = run_job(4, "mpi: a rank of a job with an exception in a stage");
  CAPTURE(job.output);
  CHECK(!job.status.timed_out);
  for (int rank = 0; rank < 4; ++rank) CHECK(contains(job.output, failure_of(rank)));
}

TEST_CASE("mpi: a rank of a job that trains on sequence blocks" * doctest::skip(!is_in_job())) {
  constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 1 : 2;
  const Group group = par::init_process_group({.backend = "mpi",
                                               .init_method = "mpi://",
                                               .timeout = std::chrono::seconds(30),
                                               .reduction = par::Reduction::kCanonical});
  const ModelOptions options{.kv_heads = 2, .dropout = 0.1};
  const int ranks = group->size();
  bool is_same = true;
  const auto check = [&](int cp, Kind kind, const std::vector<Layout>& layouts) {
    const Outcome want = train_threads({.cp = cp, .kind = kind}, options, kSteps);
    for (const Layout& layout : layouts) {
      const std::string text = layout.describe();
      CAPTURE(text);
      const Outcome got = train(group, layout, options, kSteps);
      CHECK(got.hash == want.hash);
      CHECK(got.losses == want.losses);
      is_same = is_same && got == want;
    }
  };
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses})
    check(ranks, kind, {{ranks, 1, 0, kind}, {ranks, 1, 0, kind, true}, {ranks, 1, 3, kind}});
  if (ranks == 4) check(2, Kind::kRingZigzag, {{2, 2, 0}, {2, 2, 3}});
  for (const tensor_training::ModelOptions& with :
       {tensor_training::ModelOptions{.vocabulary = true, .dropout = 0.1},
        tensor_training::ModelOptions{.vocabulary = true, .sequence = true}}) {
    const tensor_training::Outcome want = tensor_training::train(4, {}, with, kSteps);
    for (const tensor_training::Layout& layout :
         {tensor_training::Layout{.tp = ranks}, tensor_training::Layout{.tp = 2, .dp = ranks / 2, .stage = 3}})
      is_same = tensor_training::check_rank(group, 4, layout, with, kSteps, want) && is_same;
  }
  is_same = trains_in_stages(group) && is_same;
  if (is_same) std::printf("%s\n", report_of(group->rank()).c_str());
}

TEST_CASE("mpi: a rank of a job with an exception in a stage" * doctest::skip(!is_in_job())) {
  const Group group =
      par::init_process_group({.backend = "mpi", .init_method = "mpi://", .timeout = std::chrono::seconds(30)});
  if (!failing_stages::check_failing_step(group, failing_stages::Place::kLoss)) return;
  std::printf("%s\n", failure_of(group->rank()).c_str());
  std::fflush(stdout);
  par::FileStore store(std::getenv(kJob));  // mpirun kills all ranks when the first one exits
  store.set(std::to_string(group->rank()), "");
  store.wait({"0", "1", "2", "3"}, std::chrono::seconds(20));
}
