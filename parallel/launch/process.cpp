// A rank's process, and the watchdog. Between fork and exec, and in the watchdog, only async-signal-safe calls are
// allowed: another thread may have held any lock, malloc's too, when the process was copied. All memory is allocated
// before.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"

namespace lockstep::parallel {

namespace {

// No handler of this process runs in a child, not even before exec resets it.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Reads groups to watch until the launcher ends, which closes the other end of the socket (ranks close it on exec).
[[noreturn]] void watch(int socket) {
  static_assert(sizeof(pid_t) * kMaxRanks <= 64 << 10, "must fit on the stack");
  pid_t groups[kMaxRanks];
  int count = 0;
  for (;;) {
    pid_t entry = 0;
    const ssize_t size = ::recv(socket, &entry, sizeof(entry), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(entry)) break;
    if (entry > 0 && count < kMaxRanks) groups[count++] = entry;
    for (int i = 0; entry < 0 && i < count; ++i) {
      if (groups[i] == -entry) groups[i] = groups[--count];
    }
  }
  for (int i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// The path of a program for execve: searched in PATH if it has no slash.
std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;  // execve reports errors
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw IoError(fmt::format("launch: no program \"{}\" in PATH\nOne in this folder is \"./{}\"", program, program));
}

// Returns a duplicate above the standard descriptors, which the child overwrites: in a process that has closed them, a
// new descriptor may be one of them. Empty if `from` is.
Descriptor above_standard(const Descriptor& from) {
  Descriptor out(::fcntl(from.get(), F_DUPFD_CLOEXEC, 3));
  LOCKSTEP_CHECK_IO(out || !from, "launch: cannot duplicate a descriptor for a rank: {}", reason(errno));
  return out;
}

// In a child: no signal has a handler, is ignored or is blocked.
void reset_signals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// In a child: makes it the leader of a session with these standard streams, known to the watchdog.
bool prepare(pid_t parent, const Watchdog& watchdog, const Descriptor (&streams)[3]) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the launcher ended before the line above
  if (!watchdog.add(::getpid())) return false;
  for (int i = 0; i < 3; ++i) {
    if (streams[i] && ::dup2(streams[i].get(), i) < 0) return false;
  }
  constexpr unsigned kCloseOnExec = 1U << 2;  // a rank inherits nothing else of the launcher's
  ::syscall(SYS_close_range, 3U, ~0U, kCloseOnExec);
  reset_signals();
  return true;
}

}  // namespace

Watchdog::Watchdog() {
  int ends[2];
  LOCKSTEP_CHECK_IO(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
                    "launch: cannot make a socket for the watchdog: {}", reason(errno));
  socket_ = Descriptor(ends[0]);
  const Descriptor other(ends[1]);
  const BlockedSignals blocked;
  pid_ = ::fork();
  LOCKSTEP_CHECK_IO(pid_ >= 0, "launch: cannot start the watchdog: {}", reason(errno));
  if (pid_ > 0) return;
  ::setsid();  // signals to the launcher's group do not reach it; its signals stay blocked
  if (ends[1] > 0) ::syscall(SYS_close_range, 0U, static_cast<unsigned>(ends[1] - 1), 0U);
  ::syscall(SYS_close_range, static_cast<unsigned>(ends[1] + 1), ~0U, 0U);
  watch(ends[1]);
}

Watchdog::~Watchdog() {
  socket_.reset();
  uninterrupted([&] { return ::waitpid(pid_, nullptr, 0); });
}

bool Watchdog::send(pid_t entry) const { return ::send(socket_.get(), &entry, sizeof(entry), MSG_NOSIGNAL) >= 0; }

Process start_process(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                      const Descriptor& out, const Descriptor& err, const Watchdog& watchdog) {
  const std::string program = find_program(command[0]);
  const std::vector<char*> argv = pointers(command), envp = pointers(environment);
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int ends[2];
  LOCKSTEP_CHECK_IO(null && ::pipe2(ends, O_CLOEXEC) == 0, "launch: cannot open descriptors for a rank: {}",
                    reason(errno));
  const Descriptor failure(ends[0]), streams[] = {above_standard(null), above_standard(out), above_standard(err)};
  Descriptor report = above_standard(Descriptor(ends[1]));  // the child writes errno there if it cannot exec
  const pid_t parent = ::getpid();
  const BlockedSignals blocked;
  Process process{.pid = ::fork()};
  LOCKSTEP_CHECK_IO(process.pid >= 0, "launch: cannot start a process: {}", reason(errno));
  if (process.pid == 0) {
    if (prepare(parent, watchdog, streams)) ::execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    static_cast<void>(::write(report.get(), &error, sizeof(error)) == sizeof(error));
    ::_exit(127);
  }
  report.reset();
  int error = 0;
  if (uninterrupted([&] { return ::read(failure.get(), &error, sizeof(error)); }) == 0) {
    process.pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
    if (process.pidfd) return process;
    error = errno;
  }
  RankExit ignored;
  reap(process, watchdog, ignored);
  throw IoError(fmt::format("launch: {}: cannot be run: {}", program, reason(error)));
}

void reap(Process& process, const Watchdog& watchdog, RankExit& exit) {
  ::kill(-process.pid, SIGKILL);  // the group's number is not used again before waitpid
  watchdog.remove(process.pid);
  int status = 1 << 8;  // exit code 1, if waitpid fails
  uninterrupted([&] { return ::waitpid(process.pid, &status, 0); });
  process.pidfd.reset();
  exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  exit.code = exit.signal != 0 ? 128 + exit.signal : WEXITSTATUS(status);
}

}  // namespace lockstep::parallel
