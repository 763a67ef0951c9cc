#include "tests/support/ranks.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/threads.h"

namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000 * 1000));
}

// Counts failed assertions: a forked child would print them, and its count would be lost.
std::atomic<int> failed_assertions{0};

struct CountFailures final : doctest::IReporter {
  explicit CountFailures(const doctest::ContextOptions& /*options*/) {}
  void log_assert(const doctest::AssertData& data) override {
    failed_assertions += data.m_failed && !(data.m_at & doctest::assertType::is_warn) ? 1 : 0;
  }
  void log_message(const doctest::MessageData& data) override {
    failed_assertions += data.m_severity & doctest::assertType::is_warn ? 0 : 1;
  }
  void report_query(const doctest::QueryData& /*data*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& /*stats*/) override {}
  void test_case_start(const doctest::TestCaseData& /*data*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*exception*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*signature*/) override {}
  void subcase_end() override {}
  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}
};
REGISTER_LISTENER("count_failures", 1, CountFailures);

// Returns the exception of `fn(rank)`, with the rank in front of its text; null if it returned.
std::exception_ptr exception_of(const std::function<void(int)>& fn, int rank) {
  try {
    fn(rank);
    return nullptr;
  } catch (lockstep::Error& error) {
    error.add_context("rank " + std::to_string(rank));
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

std::string text_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "a REQUIRE failed, or an exception not derived from std::exception was thrown";
  }
}

}  // namespace

std::chrono::milliseconds rank_deadline() {
  const char* const text = std::getenv("LOCKSTEP_RANK_DEADLINE");
  return std::chrono::seconds(text ? std::atoi(text) : 120);
}

// --- threads --------------------------------------------------------------------------------------------------------

void run_threads(int n, const std::function<void(int rank)>& fn, std::chrono::milliseconds deadline) {
  std::mutex mutex;
  std::condition_variable ended;
  std::exception_ptr first;
  std::vector<bool> done(static_cast<std::size_t>(n), false);

  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      const std::exception_ptr exception = exception_of(fn, rank);
      const std::lock_guard lock(mutex);
      if (exception && !first) first = exception;
      done[static_cast<std::size_t>(rank)] = true;
      ended.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    const auto all_done = [&] { return std::find(done.begin(), done.end(), false) == done.end(); };
    if (!ended.wait_until(lock, Clock::now() + deadline, all_done)) {
      for (int rank = 0; rank < n; ++rank) {
        if (!done[static_cast<std::size_t>(rank)]) std::fprintf(stderr, "run_threads: rank %d hangs\n", rank);
      }
      if (first) std::fprintf(stderr, "run_threads: the first exception: %s\n", text_of(first).c_str());
      std::abort();  // there is no way to end another thread
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

// --- processes ------------------------------------------------------------------------------------------------------

namespace {

// The text of the exception goes to the parent through `pipe`.
[[noreturn]] void be_rank(const std::function<void(int)>& fn, int rank, int pipe, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  failed_assertions = 0;
  const std::exception_ptr exception = exception_of(fn, rank);
  std::string text;
  if (exception) {
    text = text_of(exception);
    std::fprintf(stderr, "%s\n", text.c_str());
  } else if (failed_assertions > 0) {
    text = "rank " + std::to_string(rank) + ": a CHECK failed";
  }
  text.resize(std::min<std::size_t>(text.size(), 4096));  // what a pipe takes without blocking
  const bool sent = text.empty() || write(pipe, text.data(), text.size()) >= 0;
  std::fflush(nullptr);
  _exit(text.empty() && sent ? 0 : 1);  // no destructors, no atexit: those are the parent's
}

struct Child {
  pid_t pid = -1;
  int pidfd = -1;
  int pipe = -1;
};

Child start(const std::function<void(int)>& fn, int rank) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  std::fflush(nullptr);  // otherwise the child prints the buffered text a second time
  const pid_t parent = getpid(), pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) be_rank(fn, rank, ends[1], parent);
  close(ends[1]);
  return {pid, static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), ends[0]};
}

ExitStatus finish(const Child& child, Clock::time_point deadline) {
  ExitStatus result;
  pollfd ready{child.pidfd, POLLIN, 0};
  int count = -1;
  while (count < 0) {
    count = poll(&ready, 1, milliseconds_until(deadline));
    if (count < 0 && errno != EINTR) break;
  }
  if (count == 0) {
    result.timed_out = true;
    kill(child.pid, SIGKILL);
  }
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) {
    result.code = WEXITSTATUS(status);
  } else {
    result.signal = WTERMSIG(status);
  }
  char buffer[4096];
  const ssize_t size = read(child.pipe, buffer, sizeof(buffer));
  if (size > 0) result.error.assign(buffer, static_cast<std::size_t>(size));
  close(child.pipe);
  close(child.pidfd);
  return result;
}

}  // namespace

std::string ExitStatus::to_string() const {
  const std::string how = timed_out     ? "hung and was killed"
                          : signal != 0 ? "ended by signal " + std::to_string(signal)
                                        : "exit code " + std::to_string(code);
  return error.empty() ? how : how + ": " + error;
}

std::vector<ExitStatus> run_processes(int n, const std::function<void(int rank)>& fn,
                                      std::chrono::milliseconds deadline) {
  const Clock::time_point end = Clock::now() + deadline;
  lockstep::set_num_threads(lockstep::num_threads());  // ends the pool's threads; the next kernel starts new ones
  const auto threads = std::ranges::distance(std::filesystem::directory_iterator("/proc/self/task"));
  REQUIRE_MESSAGE(threads == 1, "run_processes: " << threads << " threads run");
  std::vector<Child> children;
  for (int rank = 0; rank < n; ++rank) children.push_back(start(fn, rank));
  std::vector<ExitStatus> results;
  for (const Child& child : children) results.push_back(finish(child, end));
  return results;
}

NumberPipe::NumberPipe() { REQUIRE(pipe2(ends_, O_CLOEXEC) == 0); }

NumberPipe::~NumberPipe() {
  close(ends_[0]);
  close(ends_[1]);
}

void NumberPipe::send(std::int64_t number) const {
  REQUIRE(write(ends_[1], &number, sizeof(number)) == sizeof(number));
}

std::int64_t NumberPipe::receive() const {
  std::int64_t number = 0;
  REQUIRE(read(ends_[0], &number, sizeof(number)) == sizeof(number));
  return number;
}

void check_processes(int n, const std::function<void(int rank)>& fn, std::chrono::milliseconds deadline) {
  const std::vector<ExitStatus> results = run_processes(n, fn, deadline);
  for (int rank = 0; rank < n; ++rank) {
    const ExitStatus& result = results[static_cast<std::size_t>(rank)];
    CHECK_MESSAGE(result.ok(), "rank " << rank << ": " << result.to_string());
  }
}
