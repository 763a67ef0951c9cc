#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

// Between fork and exec, and in the watchdog, only async-signal-safe calls are allowed: another thread may have held any
// lock, that of malloc too, when the process was copied. All memory is made ready before.
namespace lockstep::parallel {

namespace {

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  LOCKSTEP_CHECK_IO(::pipe2(ends, O_CLOEXEC) == 0, "launch: cannot make a pipe: {}", reason(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// No handler of this process runs in a child, not even for the moment before exec resets it.
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

// In a child: handlers gone, nothing ignored, nothing blocked.
void reset_signals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void close_others(int keep) {
  if (keep > 3) ::syscall(SYS_close_range, 3U, static_cast<unsigned>(keep - 1), 0U);
  ::syscall(SYS_close_range, static_cast<unsigned>(std::max(keep + 1, 3)), ~0U, 0U);
}

// --- the watchdog -------------------------------------------------------------------------------------------------------

// Reads groups to watch until the other end is gone: until the launcher is, as workers close it when they exec.
[[noreturn]] void watch(int socket) {
  static_assert(sizeof(pid_t) * kMaxRanks <= 64 << 10, "must fit on the stack");
  pid_t groups[kMaxRanks];
  int count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t size = ::recv(socket, &group, sizeof(group), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(group)) break;
    if (group > 0 && count < kMaxRanks) groups[count++] = group;
    for (int i = 0; group < 0 && i < count; ++i) {
      if (groups[i] == -group) groups[i] = groups[--count];
    }
  }
  for (int i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Watchdog::Watchdog() {
  int ends[2];
  LOCKSTEP_CHECK_IO(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
                    "launch: no socket for the watchdog: {}", reason(errno));
  Descriptor mine(ends[0]);
  const Descriptor its(ends[1]);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const Descriptor owned(null);
  LOCKSTEP_CHECK_IO(null >= 0, "launch: cannot open /dev/null: {}", reason(errno));
  const BlockedSignals blocked;
  pid_ = ::fork();
  LOCKSTEP_CHECK_IO(pid_ >= 0, "launch: cannot start the watchdog: {}", reason(errno));
  if (pid_ == 0) {
    ::setsid();  // a Ctrl-C, or a kill of the launcher's group, is not for it; its signals stay blocked
    for (int standard = 0; standard < 3; ++standard) ::dup2(null, standard);
    ::close(ends[0]);
    close_others(ends[1]);
    watch(ends[1]);
  }
  socket_ = std::move(mine);
}

Watchdog::~Watchdog() {
  socket_.reset();
  if (pid_ > 0) uninterrupted([&] { return ::waitpid(pid_, nullptr, 0); });
}

void Watchdog::forget(pid_t group) {
  const pid_t entry = -group;
  ::send(socket_.get(), &entry, sizeof(entry), MSG_NOSIGNAL);  // fails if somebody killed it
}

// --- workers ------------------------------------------------------------------------------------------------------------

namespace {

struct ExecArguments {
  const char* program;
  char* const* argv;
  char* const* envp;
  int in, out, err, watchdog, failure;
  pid_t parent;
};

// Says errno on the pipe, for the parent.
[[noreturn]] void fail(int pipe) {
  const int error = errno;
  static_cast<void>(::write(pipe, &error, sizeof(error)) == sizeof(error));
  ::_exit(127);
}

// Runs in the child.
[[noreturn]] void become(const ExecArguments& arguments) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != arguments.parent) ::_exit(127);  // it died before the line above
  const pid_t own = ::getpid();
  if (::send(arguments.watchdog, &own, sizeof(own), MSG_NOSIGNAL) < 0) fail(arguments.failure);
  if (::dup2(arguments.in, STDIN_FILENO) < 0) fail(arguments.failure);
  if (arguments.out >= 0 && ::dup2(arguments.out, STDOUT_FILENO) < 0) fail(arguments.failure);
  if (arguments.err >= 0 && ::dup2(arguments.err, STDERR_FILENO) < 0) fail(arguments.failure);
  // A rank has nothing of the launcher's; close-on-exec, as the pipe for `failure` is still needed.
  constexpr unsigned kCloseOnExec = 1U << 2;
  ::syscall(SYS_close_range, 3U, ~0U, kCloseOnExec);
  reset_signals();
  ::execve(arguments.program, arguments.argv, arguments.envp);
  fail(arguments.failure);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// In a process whose own standard descriptors are closed, a new one may be 0 to 2, which `become` writes over.
Descriptor above_standard(int number) { return Descriptor(::fcntl(number, F_DUPFD_CLOEXEC, 3)); }

}  // namespace

pid_t start_worker(const WorkerSpec& spec) {
  const std::vector<char*> argv = pointers(spec.command), envp = pointers(spec.environment);
  Pipe failure = make_pipe();
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor in = above_standard(null.get());
  LOCKSTEP_CHECK_IO(bool(in), "launch: cannot open /dev/null: {}", reason(errno));
  const Descriptor out = above_standard(spec.out), err = above_standard(spec.err);
  const ExecArguments arguments{.program = spec.program.c_str(),
                                .argv = argv.data(),
                                .envp = envp.data(),
                                .in = in.get(),
                                .out = out.get(),
                                .err = err.get(),
                                .watchdog = spec.watchdog,
                                .failure = failure.write.get(),
                                .parent = ::getpid()};
  pid_t pid = -1;
  {
    const BlockedSignals blocked;
    pid = ::fork();
    if (pid == 0) become(arguments);
  }
  LOCKSTEP_CHECK_IO(pid > 0, "launch: cannot start a process: {}", reason(errno));
  failure.write.reset();
  int error = 0;
  const ssize_t size = uninterrupted([&] { return ::read(failure.read.get(), &error, sizeof(error)); });
  if (size == 0) return pid;
  uninterrupted([&] { return ::waitpid(pid, nullptr, 0); });
  throw IoError(fmt::format("launch: {}: cannot be run: {}", spec.program, reason(error)));
}

}  // namespace lockstep::parallel
