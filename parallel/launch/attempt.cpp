// One attempt of a launcher: its ranks, from their start to the end of the last one.
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <optional>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::chrono::seconds kUnkillable{5};  // what the system gets to end a killed process

struct Worker {
  int local_rank = 0;
  RankExit exit = {};
  LineReader streams[2] = {};  // stdout, stderr
  ErrorFile error = {};
  std::optional<WorkerProcess> process = {};
};

class Attempt {
 public:
  explicit Attempt(const AttemptContext& context) : context_(context), stop_fd_(context.options.stop_fd) {}
  LaunchResult run();

 private:
  void start(int local_rank);
  Descriptor make_stream(Worker& worker, bool is_stderr);
  void turn();
  int next_timeout();
  void emit(const Worker& worker, bool is_stderr, std::vector<std::string> lines) const;
  void take_exits(const std::vector<Worker*>& ended);
  void take_stop_request();
  void signal_all(int signal);
  void signal_and_continue(int signal);
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

LaunchResult Attempt::run() {
  result_.attempt = context_.place.attempt;
  if (context_.logs) context_.logs->begin(context_.place);
  for (int rank = 0; rank < context_.place.local_size; ++rank) start(rank);
  while (is_running()) turn();
  for (const auto& worker : workers_) {
    for (const bool is_stderr : {false, true}) emit(*worker, is_stderr, worker->streams[is_stderr].finish());
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
  return worker.streams[is_stderr].open(fmt::format("rank {}", worker.exit.rank));
}

void Attempt::start(int local_rank) {
  auto worker = std::make_unique<Worker>();
  worker->local_rank = local_rank;
  worker->exit.rank = context_.place.first_rank + local_rank;
  const Descriptor out = make_stream(*worker, false), err = make_stream(*worker, true);
  worker->process.emplace(WorkerSpec{.program = program_,
                                     .command = context_.options.command,
                                     .environment = environment_of(local_rank, context_.place, context_.options,
                                                                   context_.identity, worker->error.path()),
                                     .out = out.get(),
                                     .err = err.get(),
                                     .watchdog = context_.watchdog.socket()},
                          context_.watchdog);
  worker->exit.pid = worker->process->pid();
  workers_.push_back(std::move(worker));
}

bool Attempt::is_running() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->process->is_running(); });
}

// --- the loop -----------------------------------------------------------------------------------------------------------

void Attempt::turn() {
  // Negative ones are left out by poll.
  std::vector<pollfd> polled{{stop_fd_, POLLIN, 0}};
  for (const auto& worker : workers_) {
    polled.push_back({worker->process->ended(), POLLIN, 0});
    for (const LineReader& stream : worker->streams) polled.push_back({stream.fd(), POLLIN, 0});
  }
  if (::poll(polled.data(), polled.size(), next_timeout()) < 0) return;  // EINTR, or no memory for a moment

  std::vector<Worker*> ended;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    for (std::size_t s = 0; s < 2; ++s) {
      if (polled[1 + 3 * i + 1 + s].revents) emit(worker, s == 1, worker.streams[s].read());
    }
    if (polled[1 + 3 * i].revents) ended.push_back(&worker);
  }
  take_exits(ended);
  if (polled[0].revents) take_stop_request();

  if (until_kill_ && until_kill_->passed()) kill_all();
  if (!until_given_up_ || !until_given_up_->passed()) return;
  for (const auto& worker : workers_) {
    worker->exit.is_stuck = worker->process->is_running();
    worker->process->abandon();
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
    RankExit& exit = worker->exit;
    const WorkerProcess::End end = worker->process->take_end();
    exit.signal = end.signal;
    exit.code = end.code;
    exit.was_stopped = is_stopping_;
    if (exit.code != 0) exit.error = worker->error.read();
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
  for (const auto& worker : workers_) worker->process->signal(signal);
}

// A stopped rank (SIGSTOP, or a debugger's) receives the signal only when it is continued.
void Attempt::signal_and_continue(int signal) {
  signal_all(signal);
  signal_all(SIGCONT);
}

void Attempt::begin_stop() {
  is_stopping_ = true;
  until_kill_.emplace(context_.options.grace);
  signal_and_continue(SIGTERM);
}

void Attempt::kill_all() {
  is_stopping_ = true;
  signal_all(SIGKILL);
  until_kill_.reset();
  if (!until_given_up_) until_given_up_.emplace(kUnkillable);
}

// The first request is passed on, and the ranks end in their own time: they may have something to save. The
// second request kills the ranks that still run.
void Attempt::take_stop_request() {
  const int signal = take_request(stop_fd_);
  if (signal == 0 || result_.was_killed) return;
  result_.stop_signal = signal;
  if (!std::exchange(result_.was_asked_to_stop, true)) return signal_and_continue(signal);
  if (!is_running()) return;
  result_.was_killed = true;
  result_.exit_code = 128 + signal;
  kill_all();
}

// --- output -------------------------------------------------------------------------------------------------------------

void Attempt::emit(const Worker& worker, bool is_stderr, std::vector<std::string> lines) const {
  RankLogs* const logs = context_.logs;
  for (std::string& line : lines) {
    if (logs && logs->wants(worker.local_rank, is_stderr)) logs->write(worker.local_rank, is_stderr, line);
    if (logs && logs->redirects(worker.local_rank, is_stderr)) continue;
    if (context_.on_line) context_.on_line(worker.exit.rank, is_stderr, line);
  }
}

}  // namespace

LaunchResult run_attempt(const AttemptContext& context) { return Attempt(context).run(); }

}  // namespace lockstep::parallel
