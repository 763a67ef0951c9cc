// The stdout of a rank under the launcher: a pseudo-terminal in raw mode, to which every program writes line by line.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/parallel/launch/launch_support.h"
#include "tests/support/ranks.h"

namespace {

bool has_terminals = true;  // false: as on a system without pseudo-terminals

ls::Descriptor open_master() { return ls::Descriptor(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)); }

bool is_without_terminals() { return !open_master(); }

par::LaunchOptions script(const std::string& text) { return shell(1, text); }

std::vector<std::string> stdout_of(const par::LaunchOptions& options) {
  std::vector<std::string> lines;
  par::launch(options, [&](int, bool is_stderr, const std::string& line) {
    if (!is_stderr) lines.push_back(line);
  });
  return lines;
}

constexpr int kLines = 100'000;

}  // namespace

extern "C" int posix_openpt(int flags) {
  if (has_terminals) return reinterpret_cast<decltype(posix_openpt)*>(dlsym(RTLD_NEXT, "posix_openpt"))(flags);
  errno = ENOENT;
  return -1;
}

TEST_SUITE_BEGIN("terminal" * doctest::skip(is_without_terminals()));

TEST_CASE("a line that a program has not flushed is passed on while the program runs") {
  CHECK(stop_when_ready(rank_of_test("a rank that writes a line and waits")).ranks[0].signal == SIGTERM);
  // SIGALRM would be the signal if the line came too late.
  auto perl = script("exec perl -e 'alarm 60; print \"ready\\n\"; sleep 1000'");
  CHECK(stop_when_ready(perl).ranks[0].signal == SIGTERM);
}

TEST_CASE("a rank that writes a line and waits" * doctest::skip()) {
  alarm(60);
  signal(SIGTERM, SIG_DFL);  // doctest has a handler
  std::printf("ready\n");
  pause();
}

TEST_CASE("no line of a program that aborts is lost") {
  std::vector<std::string> expected;
  for (int i = 0; i < kLines; ++i) expected.push_back("line " + std::to_string(i));
  CHECK((stdout_of(rank_of_test("a rank that writes lines and aborts")) == expected));
}

TEST_CASE("a rank that writes lines and aborts" * doctest::skip()) {
  signal(SIGABRT, SIG_DFL);  // doctest has a handler
  for (int i = 0; i < kLines; ++i) std::printf("line %d\n", i);
  std::abort();
}

TEST_CASE("stdout is a terminal that changes no byte, and stdin and stderr are none") {
  const std::string types = "for fd in 0 1 2; do [ -t $fd ] && echo $fd; done; echo $TERM";
  CHECK(stdout_of(script(types)) == std::vector<std::string>{"1", "dumb"});
  CHECK(stdout_of(script("printf 'a\\tb\\r\\n\\003\\004\\021\\023\\032\\377\\n'")) ==
        std::vector<std::string>{"a\tb\r", "\003\004\021\023\032\377"});
  auto own_term = script("echo $TERM");
  own_term.environment = {"TERM=vt100"};
  CHECK(stdout_of(own_term) == std::vector<std::string>{"vt100"});
}

TEST_CASE("the terminal is no controlling terminal, also if a rank opens it again") {
  CHECK(stdout_of(script("echo again > /dev/stdout; ( : < /dev/tty ) 2> /dev/null || echo none")) ==
        std::vector<std::string>{"again", "none"});
}

TEST_CASE("a process in another session that keeps the terminal open delays nothing") {
  const auto lines = stdout_of(script(
      "trap 'echo last; exit 0' USR1; rank=$$ setsid sh -c 'echo $$; kill -USR1 $rank; exec sleep 1000' & wait"));
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "last");
  CHECK(kill(std::stoi(lines[0]), SIGKILL) == 0);
}

TEST_CASE("the terminal has the size of the launcher's") {
  check_processes(1, [](int) {
    const ls::Descriptor master = open_master();
    const winsize size{.ws_row = 33, .ws_col = 77, .ws_xpixel = 0, .ws_ypixel = 0};
    const ls::Descriptor terminal((unlockpt(master.get()), ioctl(master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY)));
    REQUIRE(ioctl(terminal.get(), TIOCSWINSZ, &size) == 0);
    REQUIRE(dup2(terminal.get(), STDOUT_FILENO) == STDOUT_FILENO);
    if (stdout_of(script("stty size <&1")) != std::vector<std::string>{"33 77"}) _exit(1);
  });
}

TEST_SUITE_END();

TEST_CASE("stdout is a pipe on request, and where the system has no pseudo-terminals") {
  auto options = script("[ -t 1 ] || echo pipe");
  options.pty = false;
  CHECK(stdout_of(options) == std::vector<std::string>{"pipe"});
  options.pty = true;
  has_terminals = false;
  CHECK(stdout_of(options) == std::vector<std::string>{"pipe"});
  has_terminals = true;
}
