// One attempt of a launcher: its ranks and their output, from the start to the end of the last rank.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"

namespace lockstep::parallel {

int StreamChoice::of(int local_rank) const {
  const auto found = std::find_if(by_local_rank.begin(), by_local_rank.end(),
                                  [&](const auto& entry) { return entry.first == local_rank; });
  return found == by_local_rank.end() ? all : found->second;
}

namespace {

// --- output -------------------------------------------------------------------------------------------------------------

Descriptor create_log(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  Descriptor file(uninterrupted([&] { return ::open(path.c_str(), kFlags, 0644); }));
  LOCKSTEP_CHECK_IO(bool(file), "launch: cannot create {}: {}", path, reason(errno));
  return file;
}

void write_log(const Descriptor& file, const std::string& text) {
  LOCKSTEP_CHECK_IO(write_all(file, text), "launch: cannot write a rank's log: {}", reason(errno));
}

// Opens a pseudo-terminal in raw mode, which changes no byte. Returns its master and the end for a rank; both are empty
// where the system has no pseudo-terminals.
std::pair<Descriptor, Descriptor> open_terminal() {
  Descriptor master(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  if (!master || ::unlockpt(master.get()) != 0) return {};
  Descriptor terminal(::ioctl(master.get(), TIOCGPTPEER, O_WRONLY | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (!terminal || ::tcgetattr(terminal.get(), &mode) != 0) return {};
  ::cfmakeraw(&mode);
  if (::tcsetattr(terminal.get(), TCSANOW, &mode) != 0) return {};
  winsize size{};  // the launcher's, if it has a terminal
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::ioctl(stream, TIOCGWINSZ, &size) == 0 && ::ioctl(terminal.get(), TIOCSWINSZ, &size) == 0) break;
  }
  return {std::move(master), std::move(terminal)};
}

// One output stream of a rank.
struct OutputStream {
  Descriptor open(bool prefers_terminal);  // returns the end to which the rank writes
  std::vector<std::string> read(bool has_ended);

  Descriptor pipe = {};  // of a pipe or a pseudo-terminal, the end from which the launcher reads
  Descriptor log = {};   // where the lines are written; may be empty
  bool is_shown = true;  // whether they are passed to the callback
  std::string rest = {};
};

Descriptor OutputStream::open(bool prefers_terminal) {
  Descriptor terminal;
  if (prefers_terminal) std::tie(pipe, terminal) = open_terminal();
  if (terminal) return terminal;
  int ends[2];
  LOCKSTEP_CHECK_IO(::pipe2(ends, O_CLOEXEC) == 0, "launch: cannot make a pipe: {}", reason(errno));
  pipe = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  LOCKSTEP_CHECK_IO(::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0, "launch: cannot set up a pipe: {}", reason(errno));
  return other;
}

// Returns the complete lines, without their ends; a line longer than kMaxOutputLine is split. After the rank's end
// also returns the rest, without waiting for the end of the stream, which a process started by the rank may keep open.
std::vector<std::string> OutputStream::read(bool has_ended) {
  char buffer[16 << 10];
  ssize_t size = 0;
  do {
    size = uninterrupted([&] { return ::read(pipe.get(), buffer, sizeof(buffer)); });
    if (size > 0) rest.append(buffer, static_cast<std::size_t>(size));
  } while (has_ended && size > 0);
  if (size == 0 || (size < 0 && errno != EAGAIN)) pipe.reset();  // a pseudo-terminal ends with EIO

  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end; (end = std::min(rest.find('\n', begin), begin + kMaxOutputLine)) < rest.size();) {
    lines.push_back(rest.substr(begin, end - begin));
    begin = rest[end] == '\n' ? end + 1 : end;
  }
  rest.erase(0, begin);
  if (has_ended && !rest.empty()) lines.push_back(std::exchange(rest, {}));
  return lines;
}

// --- start and end ------------------------------------------------------------------------------------------------------

constexpr std::chrono::seconds kUnkillable{5};  // time for the system to end a killed process

struct Rank {
  Process process = {};
  RankExit exit = {};
  OutputStream streams[2] = {};  // stdout, stderr
  ErrorFile error = {};
  std::string log_folder = {};  // empty: nothing is logged
};

class Attempt {
 public:
  Attempt(const LaunchOptions& options, const OutputCallback& on_line)
      : options_(options), on_line_(on_line), stop_fd_(options.stop_fd) {}
  ~Attempt();
  void start(int local_rank, int number, const JobIdentity& job, const std::string& log_folder);
  LaunchResult run();

 private:
  Descriptor open_stream(Rank& rank, int local_rank, bool is_stderr) const;
  void wait_and_handle();
  void forward_output(Rank& rank, bool is_stderr, bool has_ended) const;
  void handle_ends(const std::vector<Rank*>& ended);
  void handle_stop_request();
  void stop(int signal, std::chrono::milliseconds timeout);
  void signal_all(int signal) const;
  bool is_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process.is_running(); });
  }

  const LaunchOptions& options_;
  const OutputCallback& on_line_;
  const Watchdog watchdog_;
  std::vector<Rank> ranks_;
  LaunchResult result_;
  int stop_fd_;
  Deadline::Clock::time_point requested_;  // the first request to stop
  int stopped_by_ = 0;                     // SIGTERM or SIGKILL once all ranks are to end, else 0
  std::optional<Deadline> stop_deadline_;  // then SIGTERM is followed by SIGKILL, and SIGKILL by giving up
};

void Attempt::start(int local_rank, int number, const JobIdentity& job, const std::string& log_folder) {
  Rank& rank = ranks_.emplace_back();
  rank.exit.rank = options_.nodes.rank * options_.nproc + local_rank;
  if (!log_folder.empty()) rank.log_folder = fmt::format("{}/attempt_{}/{}", log_folder, number, local_rank);
  const Descriptor out = open_stream(rank, local_rank, false), err = open_stream(rank, local_rank, true);
  const auto environment = environment_of(local_rank, number, options_, job, rank.error.path(), bool(out));
  rank.process = start_process(options_.command, environment, out, err, watchdog_);
  rank.exit.pid = rank.process.pid;
}

// Returns the end to which the rank writes; empty if the rank uses the launcher's own stream.
Descriptor Attempt::open_stream(Rank& rank, int local_rank, bool is_stderr) const {
  OutputStream& stream = rank.streams[is_stderr];
  if (!rank.log_folder.empty()) {
    const int bit = is_stderr ? 2 : 1;
    const bool is_teed = options_.logs.tee.of(local_rank) & bit;
    const bool is_redirected = options_.logs.redirects.of(local_rank) & bit;
    std::error_code error;
    std::filesystem::create_directories(rank.log_folder, error);
    LOCKSTEP_CHECK_IO(!error, "launch: cannot make the folder {} for logs: {}", rank.log_folder, error.message());
    if (is_teed || is_redirected)
      stream.log = create_log(rank.log_folder + (is_stderr ? "/stderr.log" : "/stdout.log"));
    stream.is_shown = is_teed || !is_redirected;
  }
  return on_line_ || stream.log ? stream.open(options_.pty && !is_stderr) : Descriptor();
}

LaunchResult Attempt::run() {
  while (is_running()) wait_and_handle();
  for (Rank& rank : ranks_) {
    for (const bool is_stderr : {false, true}) forward_output(rank, is_stderr, /*has_ended=*/true);
    if (!rank.log_folder.empty() && !rank.exit.error.empty())
      write_log(create_log(rank.log_folder + "/error.json"), error_json(rank.exit.error));
    result_.ranks.push_back(rank.exit);
  }
  return std::move(result_);
}

// After an exception ranks may still run.
Attempt::~Attempt() {
  signal_all(SIGKILL);
  for (Rank& rank : ranks_) {
    pollfd ended{rank.process.pidfd.get(), POLLIN, 0};
    if (rank.process.is_running() && ::poll(&ended, 1, 1000) == 1) reap(rank.process, watchdog_, rank.exit);
  }
}

// --- events -------------------------------------------------------------------------------------------------------------

void Attempt::wait_and_handle() {
  std::vector<pollfd> polled{{stop_fd_, POLLIN, 0}};  // poll ignores negative descriptors
  for (const Rank& rank : ranks_) {
    for (const Descriptor* each : {&rank.process.pidfd, &rank.streams[0].pipe, &rank.streams[1].pipe})
      polled.push_back({each->get(), POLLIN, 0});
  }
  const int timeout = stop_deadline_ ? static_cast<int>(stop_deadline_->slice().count()) : -1;
  if (::poll(polled.data(), polled.size(), timeout) < 0) return;  // EINTR, or no memory for a moment

  std::vector<Rank*> ended;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const pollfd* const events = &polled[1 + 3 * i];
    if (events[1].revents) forward_output(ranks_[i], /*is_stderr=*/false, /*has_ended=*/false);
    if (events[2].revents) forward_output(ranks_[i], /*is_stderr=*/true, /*has_ended=*/false);
    if (events[0].revents) ended.push_back(&ranks_[i]);
  }
  handle_ends(ended);
  if (polled[0].revents) handle_stop_request();
  if (!stop_deadline_ || !stop_deadline_->passed()) return;
  if (stopped_by_ == SIGTERM) return stop(SIGKILL, kUnkillable);
  for (Rank& rank : ranks_) {
    rank.exit.is_stuck = rank.process.is_running();
    rank.process.pidfd.reset();
  }
}

void Attempt::forward_output(Rank& rank, bool is_stderr, bool has_ended) const {
  OutputStream& stream = rank.streams[is_stderr];
  for (const std::string& line : stream.read(has_ended)) {
    if (stream.log) write_log(stream.log, line + "\n");
    if (stream.is_shown && on_line_) on_line_(rank.exit.rank, is_stderr, line);
  }
}

// A rank that a signal killed counts as the first of ranks that fail together: the others may have failed because of it.
void Attempt::handle_ends(const std::vector<Rank*>& ended) {
  const RankExit* first = nullptr;
  for (Rank* rank : ended) {
    RankExit& exit = rank->exit;
    reap(rank->process, watchdog_, exit);
    exit.was_stopped = stopped_by_ != 0;
    if (exit.code == 0) continue;
    exit.error = rank->error.read();
    if (!exit.was_stopped && (!first || (exit.signal != 0 && first->signal == 0))) first = &exit;
  }
  if (!first) return;
  result_.first_failure = first->rank;
  result_.exit_code = first->code;
  stop(SIGTERM, options_.grace);
}

// The first request is passed on, and the ranks have unlimited time to end, for example to save data. The second
// request kills the ranks that are still running.
void Attempt::handle_stop_request() {
  const int signal = read_stop_request(stop_fd_), before = result_.stop_signal;
  if (signal == 0 || result_.was_killed) return;
  const auto now = Deadline::Clock::now();
  result_.stop_signal = signal;
  if (!std::exchange(result_.was_asked_to_stop, true)) {
    requested_ = now;
    return signal_all(signal);
  }
  if (signal == before && now - requested_ < LaunchOptions::kSameRequest) return;
  if (!is_running()) return;
  result_.was_killed = true;
  result_.exit_code = 128 + signal;
  stop(SIGKILL, kUnkillable);
}

void Attempt::stop(int signal, std::chrono::milliseconds timeout) {
  stopped_by_ = signal;
  stop_deadline_.emplace(timeout);
  signal_all(signal);
}

// A stopped rank (SIGSTOP, or a debugger's) receives the signal only when it is continued.
void Attempt::signal_all(int signal) const {
  for (const int number : {signal, SIGCONT}) {
    for (const Rank& rank : ranks_) {
      if (rank.process.is_running()) ::kill(-rank.process.pid, number);
    }
  }
}

}  // namespace

LaunchResult run_attempt(int number, const LaunchOptions& options, const JobIdentity& job,
                         const std::string& log_folder, const OutputCallback& on_line) {
  Attempt attempt(options, on_line);
  for (int rank = 0; rank < options.nproc; ++rank) attempt.start(rank, number, job, log_folder);
  LaunchResult result = attempt.run();
  result.attempt = number;
  return result;
}

}  // namespace lockstep::parallel
