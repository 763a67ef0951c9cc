// A process that has used the CPU pool forks. This test is not among those with threads, because ThreadSanitizer does
// not support a child that starts threads.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/testing.h"

namespace {

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// Large enough for the pool: exponentials, their sum, and a product.
std::vector<ls::Tensor> work() {
  const ls::Tensor x = numbers({400, 400});
  return {ls::exp(x), ls::sum(x), ls::matmul(x, x)};
}

bool same(const std::vector<ls::Tensor>& a, const std::vector<ls::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

enum Child { kFine = 0, kThreadsThere = 10, kOtherCount, kOtherBits, kNotShared };

// Checks the results in a forked child; never returns to the test program.
[[noreturn]] void child(const std::vector<ls::Tensor>& want) {
  alarm(60);  // a signal ends a child that waits for threads that it does not have
  if (threads_of_this_process() != 1) _exit(kThreadsThere);
  if (ls::num_threads() != 3) _exit(kOtherCount);
  if (!same(work(), want)) _exit(kOtherBits);
  _exit(threads_of_this_process() == 3 ? kFine : kNotShared);
}

}  // namespace

TEST_CASE("after a fork the child has a new pool, and the parent keeps its own") {
  const int before = ls::num_threads();
  ls::set_num_threads(3);
  const std::vector<ls::Tensor> want = work();
  CHECK(threads_of_this_process() >= 3);
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) child(want);
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_MESSAGE(WIFEXITED(status), "the child was killed by signal " << WTERMSIG(status));
    CHECK(WEXITSTATUS(status) == kFine);
    CHECK(same(work(), want));
  }
  ls::set_num_threads(before);
}
