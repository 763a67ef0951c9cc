#include "lockstep/parallel/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/parallel/deadline.h"
#include "lockstep/parallel/launcher_internal.h"
#include "lockstep/parallel/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

constexpr std::chrono::seconds kUnkillable{5};  // what the system gets to end a killed process

// One end of a rank's stdout or stderr, and the line that is not complete yet.
struct Stream {
  Descriptor pipe;
  bool is_stderr = false;
  std::string rest;
};

struct Worker {
  RankExit exit;
  Descriptor pidfd;  // readable when it has ended; closed when that has been taken in
  Stream streams[2];
  ErrorFile error;
};

class Job {
 public:
  Job(const LaunchOptions& options, OutputCallback on_line);
  ~Job();
  LaunchResult run();

 private:
  void start(int rank);
  void turn();
  int next_timeout();
  void read(Worker& worker, Stream& stream);
  void finish(Worker& worker, Stream& stream);
  void emit(const Worker& worker, const Stream& stream, std::string line) const;
  void take_exits(const std::vector<Worker*>& ended);
  void take_stop_request();
  void signal_all(int signal);
  void begin_stop();
  void kill_all();
  bool is_running() const;

  const LaunchOptions& options_;
  OutputCallback on_line_;
  std::string program_;
  RunIdentity identity_ = make_run_identity();
  Watchdog watchdog_;
  std::vector<std::unique_ptr<Worker>> workers_;
  LaunchResult result_;
  int stop_fd_;
  bool was_asked_to_stop_ = false;
  bool is_stopping_ = false;
  std::optional<Deadline> until_kill_, until_given_up_;
};

Job::Job(const LaunchOptions& options, OutputCallback on_line)
    : options_(options), on_line_(std::move(on_line)), program_(find_program(options.command[0])),
      stop_fd_(options.stop_fd) {}

// After an exception, of the callback for one: what runs is killed.
Job::~Job() {
  for (const auto& worker : workers_) {
    if (!worker->pidfd) continue;
    const auto group = static_cast<pid_t>(worker->exit.pid);
    ::kill(-group, SIGKILL);
    pollfd ended{worker->pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 1000) != 1) continue;
    watchdog_.forget(group);
    ::waitpid(group, nullptr, 0);
  }
}

LaunchResult Job::run() {
  for (int rank = 0; rank < options_.nproc; ++rank) start(rank);
  while (is_running()) turn();
  for (const auto& worker : workers_) {
    for (Stream& stream : worker->streams) finish(*worker, stream);
    result_.ranks.push_back(worker->exit);
  }
  return std::move(result_);
}

void Job::start(int rank) {
  auto worker = std::make_unique<Worker>();
  worker->exit.rank = rank;
  WorkerSpec spec{.program = program_,
                  .command = options_.command,
                  .environment = environment_of(rank, options_, identity_, worker->error.path()),
                  .watchdog = watchdog_.socket()};
  Descriptor ends[2];
  for (int i = 0; i < 2 && on_line_; ++i) {
    int pipe[2];
    LOCKSTEP_CHECK_IO(::pipe2(pipe, O_CLOEXEC) == 0, "launch: no pipe for the output of rank {}: {}", rank,
                      reason(errno));
    worker->streams[i].pipe = Descriptor(pipe[0]);
    worker->streams[i].is_stderr = i == 1;
    ends[i] = Descriptor(pipe[1]);
    ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  }
  spec.out = ends[0].get();
  spec.err = ends[1].get();
  const pid_t pid = start_worker(spec);
  worker->exit.pid = pid;
  worker->pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int error = errno;
  if (!worker->pidfd) {
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    throw IoError(fmt::format("launch: cannot watch rank {}: {}", rank, reason(error)));
  }
  workers_.push_back(std::move(worker));
}

bool Job::is_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return bool(worker->pidfd); });
}

// --- the loop -----------------------------------------------------------------------------------------------------------

void Job::turn() {
  std::vector<pollfd> polled{{stop_fd_, POLLIN, 0}};  // a negative one is left out by poll
  for (const auto& worker : workers_) {
    polled.push_back({worker->pidfd.get(), POLLIN, 0});
    for (const Stream& stream : worker->streams) polled.push_back({stream.pipe.get(), POLLIN, 0});
  }
  if (::poll(polled.data(), polled.size(), next_timeout()) < 0) return;  // EINTR, or no memory for a moment

  std::vector<Worker*> ended;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    for (std::size_t s = 0; s < 2; ++s) {
      if (polled[1 + 3 * i + 1 + s].revents) read(worker, worker.streams[s]);
    }
    if (polled[1 + 3 * i].revents) ended.push_back(&worker);
  }
  take_exits(ended);
  if (polled[0].revents) take_stop_request();

  if (until_kill_ && until_kill_->passed()) kill_all();
  if (!until_given_up_ || !until_given_up_->passed()) return;
  for (const auto& worker : workers_) {
    if (worker->pidfd) worker->exit.is_stuck = true;
    worker->pidfd.reset();
  }
}

int Job::next_timeout() {
  if (until_given_up_) return static_cast<int>(until_given_up_->slice().count());
  if (until_kill_) return static_cast<int>(until_kill_->slice().count());
  return -1;
}

// Those who fail together: a rank killed by a signal comes first, as the others may have failed for want of it.
void Job::take_exits(const std::vector<Worker*>& ended) {
  Worker* first = nullptr;
  for (Worker* worker : ended) {
    const auto pid = static_cast<pid_t>(worker->exit.pid);
    ::kill(-pid, SIGKILL);  // what it has started and left; the group cannot be another's before the wait below
    watchdog_.forget(pid);
    int status = 0;
    const pid_t waited = uninterrupted([&] { return ::waitpid(pid, &status, 0); });
    RankExit& exit = worker->exit;
    exit.signal = waited == pid && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    exit.code = waited != pid ? 1 : exit.signal != 0 ? 128 + exit.signal : WEXITSTATUS(status);
    exit.was_stopped = is_stopping_;
    if (exit.code != 0) exit.error = worker->error.read();
    worker->pidfd.reset();
    const bool is_worse = !first || (exit.signal != 0 && first->exit.signal == 0);
    if (exit.code != 0 && !is_stopping_ && is_worse) first = worker;
  }
  if (!first) return;
  result_.first_failure = first->exit.rank;
  result_.exit_code = first->exit.code;
  begin_stop();
}

// --- stopping -----------------------------------------------------------------------------------------------------------

void Job::signal_all(int signal) {
  for (const auto& worker : workers_) {
    if (worker->pidfd) ::kill(-static_cast<pid_t>(worker->exit.pid), signal);
  }
}

void Job::begin_stop() {
  is_stopping_ = true;
  until_kill_.emplace(options_.grace);
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // one that is stopped would not see it
}

void Job::kill_all() {
  is_stopping_ = true;
  signal_all(SIGKILL);
  until_kill_.reset();
  if (!until_given_up_) until_given_up_.emplace(kUnkillable);
}

// The first request is handed on, and the ranks end in their own time: they may have something to save.
void Job::take_stop_request() {
  signalfd_siginfo info{};
  const ssize_t size = uninterrupted([&] { return ::read(stop_fd_, &info, sizeof(info)); });
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) {
    stop_fd_ = -1;  // closed: nobody will ask any more
    return;
  }
  if (std::exchange(was_asked_to_stop_, true)) return kill_all();
  signal_all(size == sizeof(info) ? static_cast<int>(info.ssi_signo) : SIGTERM);
}

// --- output -------------------------------------------------------------------------------------------------------------

void Job::emit(const Worker& worker, const Stream& stream, std::string line) const {
  on_line_(worker.exit.rank, stream.is_stderr, std::move(line));
}

void Job::read(Worker& worker, Stream& stream) {
  char buffer[16 << 10];
  const ssize_t size = uninterrupted([&] { return ::read(stream.pipe.get(), buffer, sizeof(buffer)); });
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) {
    stream.pipe.reset();
    return;
  }
  stream.rest.append(buffer, static_cast<std::size_t>(size));
  std::size_t begin = 0;
  for (;;) {
    std::size_t end = stream.rest.find('\n', begin);
    const bool is_long = std::min(end, stream.rest.size()) - begin > kMaxOutputLine;
    if (is_long) end = begin + kMaxOutputLine;
    if (end == std::string::npos) break;
    emit(worker, stream, stream.rest.substr(begin, end - begin));
    begin = is_long ? end : end + 1;
  }
  stream.rest.erase(0, begin);
}

// What is in the pipe when all have ended. Something that got away from its group may hold the other end, so this does
// not wait for its end.
void Job::finish(Worker& worker, Stream& stream) {
  while (stream.pipe) {
    pollfd ready{stream.pipe.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    read(worker, stream);
  }
  if (!stream.rest.empty()) emit(worker, stream, std::exchange(stream.rest, {}));
}

}  // namespace

LaunchResult launch(const LaunchOptions& options, OutputCallback on_line) {
  LOCKSTEP_CHECK(options.nproc >= 1 && options.nproc <= kMaxRanks, "launch: nproc is {}, expected 1 to {}",
                 options.nproc, kMaxRanks);
  LOCKSTEP_CHECK(!options.command.empty() && !options.command[0].empty(), "launch: there is no program to run");
  LOCKSTEP_CHECK(options.grace.count() >= 0, "launch: grace is {} ms, expected 0 or more", options.grace.count());
  return Job(options, std::move(on_line)).run();
}

// --- signals ------------------------------------------------------------------------------------------------------------

StopSignals::StopSignals() : before_(sizeof(sigset_t)) {
  sigset_t stops, before;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&stops, signal);
  fd_ = ::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
  LOCKSTEP_CHECK_IO(fd_ >= 0, "StopSignals: no descriptor for signals: {}", reason(errno));
  ::pthread_sigmask(SIG_BLOCK, &stops, &before);
  std::memcpy(before_.data(), &before, sizeof(before));
}

StopSignals::~StopSignals() {
  ::close(fd_);
  sigset_t before;
  std::memcpy(&before, before_.data(), sizeof(before));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
