// Requests to stop a program, as its signal handler counts them.
#include "support/stop.h"

#include "tests/samples/support.h"

namespace {

// Runs `body` in a process of its own with the stop handler, and returns the status of its end.
template <class Body>
int status_of(Body body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    samples::install_stop_handler();
    body();
    _exit(samples::stop_signal());
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("the same signal again, immediately, is the same request to stop, and later it kills") {
  const int twice = status_of([] {
    raise(SIGTERM);
    raise(SIGTERM);
  });
  CHECK(WIFEXITED(twice));
  CHECK(WEXITSTATUS(twice) == SIGTERM);
  const int again = status_of([] {
    for (;;) raise(SIGINT);
  });
  CHECK(WIFSIGNALED(again));
  CHECK(WTERMSIG(again) == SIGINT);
}
