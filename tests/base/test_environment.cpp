// Invalid environment variables are errors that name them.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "lockstep/base/environment_internal.h"
#include "lockstep/base/threads.h"
#include "tests/support/testing.h"

namespace {

constexpr const char* kVariable = "LOCKSTEP_NUM_THREADS";
constexpr const char* kChild = "LOCKSTEP_TEST_FIRST_OPERATION";  // set in the child process

// True if the first operation of a process with this value of the variable succeeds or fails as expected. Runs this
// program again with one test case.
bool passes_in_child(const std::string& value) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv(kVariable, value.c_str(), 1);
    setenv(kChild, "1", 1);
    execl("/proc/self/exe", "test", "--test-case=the first operation*", nullptr);
    _exit(3);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("the first operation of a process reads LOCKSTEP_NUM_THREADS" * doctest::skip(!std::getenv(kChild))) {
  const std::string value = std::getenv(kVariable);
  const std::string want = "the environment variable LOCKSTEP_NUM_THREADS is \"" + value +
                           "\", expected a number from 1 to 1024\nCorrect the variable, or unset it";
  const bool is_right = value == "7" || value.empty();
  for (int i = 0; i < 2; ++i) {  // each operation reports it
    const std::string text = error_of([] { ls::ones({2}) + 1; });
    CHECK_MESSAGE((is_right ? text.empty() : text.ends_with(want)), text);
    CHECK(error_of([] { ls::num_threads(); }) == (is_right ? "" : want));
  }
  if (value == "7") CHECK(ls::num_threads() == 7);
}

TEST_CASE("a LOCKSTEP_NUM_THREADS that is not a number from 1 to 1024 is an error with its value") {
  for (const char* value : {"7", "", "abc", "0", "-1", "1025", "4x", " 4", "1e3", "99999999999"}) {
    CAPTURE(value);
    CHECK(passes_in_child(value));
  }
}

TEST_CASE("a number in the environment: unset, empty, right and wrong") {
  constexpr const char* kName = "LOCKSTEP_TEST_NUMBER";
  unsetenv(kName);
  CHECK_FALSE(ls::environment_number(kName, 0, 9));
  setenv(kName, "", 1);
  CHECK_FALSE(ls::environment_number(kName, 0, 9));
  setenv(kName, "9", 1);
  CHECK(ls::environment_number(kName, 0, 9) == 9);
  setenv(kName, "10", 1);
  CHECK(error_of([] { ls::environment_number(kName, 0, 9); }) ==
        "the environment variable LOCKSTEP_TEST_NUMBER is \"10\", expected a number from 0 to 9\nCorrect the variable, "
        "or unset it");
  unsetenv(kName);
}
