// One attempt of a launcher: its ranks, from their start to the end of the last one.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
  int local_rank = 0;
  RankExit exit;
  Descriptor pidfd;  // readable when it has ended; closed when that has been taken in
  Stream streams[2];
  ErrorFile error;
};

class Attempt {
 public:
  explicit Attempt(const AttemptContext& context) : context_(context), stop_fd_(context.options.stop_fd) {}
  ~Attempt();
  LaunchResult run();

 private:
  void start(int local_rank);
  Descriptor make_stream(Worker& worker, bool is_stderr);
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

  AttemptContext context_;
  std::string program_ = find_program(context_.options.command[0]);
  std::vector<std::unique_ptr<Worker>> workers_;
  LaunchResult result_;
  int stop_fd_;
  bool is_stopping_ = false;
  std::optional<Deadline> until_kill_, until_given_up_;
};

// After an exception, of the callback for one: what runs is killed.
Attempt::~Attempt() {
  for (const auto& worker : workers_) {
    if (!worker->pidfd) continue;
    const auto group = static_cast<pid_t>(worker->exit.pid);
    ::kill(-group, SIGKILL);
    pollfd ended{worker->pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 1000) != 1) continue;
    context_.watchdog.forget(group);
    ::waitpid(group, nullptr, 0);
  }
}

LaunchResult Attempt::run() {
  result_.attempt = context_.place.attempt;
  if (context_.logs) context_.logs->begin(context_.place);
  for (int rank = 0; rank < context_.place.local_size; ++rank) start(rank);
  while (is_running()) turn();
  for (const auto& worker : workers_) {
    for (Stream& stream : worker->streams) finish(*worker, stream);
    if (context_.logs && !worker->exit.error.empty())
      context_.logs->write_error(worker->local_rank, worker->exit.error);
    result_.ranks.push_back(worker->exit);
  }
  return std::move(result_);
}

// The end of a pipe that the rank writes to; empty where it has the launcher's own stream.
Descriptor Attempt::make_stream(Worker& worker, bool is_stderr) {
  const bool is_logged = context_.logs && context_.logs->wants(worker.local_rank, is_stderr);
  if (!context_.on_line && !is_logged) return {};
  int ends[2];
  LOCKSTEP_CHECK_IO(::pipe2(ends, O_CLOEXEC) == 0, "launch: no pipe for the output of rank {}: {}", worker.exit.rank,
                    reason(errno));
  Stream& stream = worker.streams[is_stderr ? 1 : 0];
  stream.pipe = Descriptor(ends[0]);
  stream.is_stderr = is_stderr;
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Descriptor(ends[1]);
}

void Attempt::start(int local_rank) {
  auto worker = std::make_unique<Worker>();
  worker->local_rank = local_rank;
  worker->exit.rank = context_.place.first_rank + local_rank;
  const Descriptor out = make_stream(*worker, false), err = make_stream(*worker, true);
  const pid_t pid = start_worker({.program = program_,
                                  .command = context_.options.command,
                                  .environment = environment_of(local_rank, context_.place, context_.options,
                                                                context_.identity, worker->error.path()),
                                  .out = out.get(),
                                  .err = err.get(),
                                  .watchdog = context_.watchdog.socket()});
  worker->exit.pid = pid;
  worker->pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int error = errno;
  if (!worker->pidfd) {
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    throw IoError(fmt::format("launch: cannot watch rank {}: {}", worker->exit.rank, reason(error)));
  }
  workers_.push_back(std::move(worker));
}

bool Attempt::is_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return bool(worker->pidfd); });
}

// --- the loop -----------------------------------------------------------------------------------------------------------

void Attempt::turn() {
  // Negative ones are left out by poll.
  std::vector<pollfd> polled{{stop_fd_, POLLIN, 0}, {is_stopping_ ? -1 : context_.failed_elsewhere, POLLIN, 0}};
  const std::size_t first = polled.size();
  for (const auto& worker : workers_) {
    polled.push_back({worker->pidfd.get(), POLLIN, 0});
    for (const Stream& stream : worker->streams) polled.push_back({stream.pipe.get(), POLLIN, 0});
  }
  if (::poll(polled.data(), polled.size(), next_timeout()) < 0) return;  // EINTR, or no memory for a moment

  std::vector<Worker*> ended;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    for (std::size_t s = 0; s < 2; ++s) {
      if (polled[first + 3 * i + 1 + s].revents) read(worker, worker.streams[s]);
    }
    if (polled[first + 3 * i].revents) ended.push_back(&worker);
  }
  take_exits(ended);
  if (polled[0].revents) take_stop_request();
  if (polled[1].revents && !is_stopping_) begin_stop();

  if (until_kill_ && until_kill_->passed()) kill_all();
  if (!until_given_up_ || !until_given_up_->passed()) return;
  for (const auto& worker : workers_) {
    if (worker->pidfd) worker->exit.is_stuck = true;
    worker->pidfd.reset();
  }
}

int Attempt::next_timeout() {
  if (until_given_up_) return static_cast<int>(until_given_up_->slice().count());
  if (until_kill_) return static_cast<int>(until_kill_->slice().count());
  return -1;
}

// Those who fail together: a rank killed by a signal comes first, as the others may have failed for want of it.
void Attempt::take_exits(const std::vector<Worker*>& ended) {
  Worker* first = nullptr;
  for (Worker* worker : ended) {
    const auto pid = static_cast<pid_t>(worker->exit.pid);
    ::kill(-pid, SIGKILL);  // what it has started and left; the group cannot be another's before the wait below
    context_.watchdog.forget(pid);
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

void Attempt::signal_all(int signal) {
  for (const auto& worker : workers_) {
    if (worker->pidfd) ::kill(-static_cast<pid_t>(worker->exit.pid), signal);
  }
}

void Attempt::begin_stop() {
  is_stopping_ = true;
  until_kill_.emplace(context_.options.grace);
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // one that is stopped would not see it
}

void Attempt::kill_all() {
  is_stopping_ = true;
  signal_all(SIGKILL);
  until_kill_.reset();
  if (!until_given_up_) until_given_up_.emplace(kUnkillable);
}

// The first request is handed on, and the ranks end in their own time: they may have something to save.
void Attempt::take_stop_request() {
  signalfd_siginfo info{};
  const ssize_t size = uninterrupted([&] { return ::read(stop_fd_, &info, sizeof(info)); });
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) {
    stop_fd_ = -1;  // closed: nobody will ask any more
    return;
  }
  if (std::exchange(result_.was_asked_to_stop, true)) return kill_all();
  signal_all(size == sizeof(info) ? static_cast<int>(info.ssi_signo) : SIGTERM);
}

// --- output -------------------------------------------------------------------------------------------------------------

void Attempt::emit(const Worker& worker, const Stream& stream, std::string line) const {
  RankLogs* const logs = context_.logs;
  if (logs && logs->wants(worker.local_rank, stream.is_stderr)) logs->write(worker.local_rank, stream.is_stderr, line);
  if (logs && logs->redirects(worker.local_rank, stream.is_stderr)) return;
  if (context_.on_line) context_.on_line(worker.exit.rank, stream.is_stderr, std::move(line));
}

void Attempt::read(Worker& worker, Stream& stream) {
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
void Attempt::finish(Worker& worker, Stream& stream) {
  while (stream.pipe) {
    pollfd ready{stream.pipe.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    read(worker, stream);
  }
  if (!stream.rest.empty()) emit(worker, stream, std::exchange(stream.rest, {}));
}

}  // namespace

LaunchResult run_attempt(const AttemptContext& context) { return Attempt(context).run(); }

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
