// A job: its options, identity, environment of the ranks, attempts, and requests to stop it.
#include "lockstep/parallel/launch/launch.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/device.h"
#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"

namespace lockstep::parallel {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPause = std::chrono::minutes(1);  // between two attempts

void check(const LaunchOptions& options) {
  const NodeOptions& nodes = options.nodes;
  LOCKSTEP_CHECK(options.nproc >= 1 && options.nproc <= kMaxRanks, "launch: nproc is {}, expected 1 to {}",
                 options.nproc, kMaxRanks);
  LOCKSTEP_CHECK(!options.command.empty() && !options.command[0].empty(), "launch: there is no program to run");
  LOCKSTEP_CHECK(options.grace.count() >= 0, "launch: grace is {} ms, expected 0 or more", options.grace.count());
  LOCKSTEP_CHECK(options.max_restarts >= 0, "launch: max_restarts is {}, expected 0 or more", options.max_restarts);
  LOCKSTEP_CHECK(options.back_off.count() >= 0, "launch: back_off is {} ms, expected 0 or more",
                 options.back_off.count());
  LOCKSTEP_CHECK(nodes.count >= 1 && nodes.count <= kMaxRanks / options.nproc,
                 "launch: there are {} nodes with {} ranks each, expected 1 or more, with at most {} ranks in all",
                 nodes.count, options.nproc, kMaxRanks);
  LOCKSTEP_CHECK(nodes.rank >= 0 && nodes.rank < nodes.count, "launch: the node's rank is {}, expected 0 to {}",
                 nodes.rank, nodes.count - 1);
  LOCKSTEP_CHECK(nodes.port >= 1 && nodes.port <= 65535, "launch: the master's port is {}, expected 1 to 65535",
                 nodes.port);
  LOCKSTEP_CHECK(nodes.count == 1 || options.max_restarts == 0,
                 "launch: max_restarts is {} with {} nodes, expected 0: a launcher restarts the ranks of its own host "
                 "only\nStart the job with torchrun, which restarts the ranks of all hosts together",
                 options.max_restarts, nodes.count);
}

// Returns the signal of a request to stop, which ends the pause, or 0.
int pause_unless_stopped(int stop_fd, milliseconds pause) {
  pollfd stop{stop_fd, POLLIN, 0};
  for (Deadline until(pause); !until.passed();) {
    if (::poll(&stop, 1, static_cast<int>(until.slice().count())) <= 0) continue;
    if (const int signal = read_stop_request(stop.fd)) return signal;
  }
  return 0;
}

// The rendezvous address of a job on one host is derived from the port, so no other job may use the port.
void claim_port(JobIdentity& job) {
  for (int tries = 0; tries < 100 && !job.claim; ++tries) {
    const auto number = std::strtoul(random_hex(2).c_str(), nullptr, 16);
    job.port = std::to_string(20000 + number % 40000);
    job.claim = listen_abstract("lockstep-run-" + job.port);
    if (!job.claim && errno != EADDRINUSE) break;
  }
  LOCKSTEP_CHECK_IO(bool(job.claim), "launch: cannot claim a port number for the job: {}", reason(errno));
}

// On several hosts the token is the environment's. Throws InvalidArgument if it is not set.
JobIdentity make_identity(const LaunchOptions& options) {
  JobIdentity job{.id = options.run_id};
  if (options.nodes.count == 1) {
    if (job.id.empty()) job.id = random_hex(8);
    job.token = new_job_token();
    claim_port(job);
    return job;
  }
  const char* const token = std::getenv("LOCKSTEP_JOB_TOKEN");
  LOCKSTEP_CHECK(token && *token,
                 "launch: LOCKSTEP_JOB_TOKEN is not set, and a job on {} hosts needs it: ranks authenticate by it\n"
                 "`lockstep-run --new-token` prints a token; set it on all hosts",
                 options.nodes.count);
  if (job.id.empty()) job.id = "none";  // torchrun's default: the same on all hosts
  job.token = token;
  job.address = options.nodes.address;
  job.port = std::to_string(options.nodes.port);
  return job;
}

}  // namespace

LaunchResult launch(const LaunchOptions& options, OutputCallback on_line, RestartCallback on_restart) {
  check(options);
  const JobIdentity job = make_identity(options);
  std::string log_folder = options.logs.folder;  // of this run
  if (!log_folder.empty()) log_folder += fmt::format("/{}_{}", job.id, random_hex(4));
  milliseconds next_pause{0};
  for (int attempt = 0;; ++attempt) {
    const auto begin = Deadline::Clock::now();
    LaunchResult result = run_attempt(attempt, options, job, log_folder, on_line);
    if (result.exit_code == 0 || result.was_asked_to_stop || attempt == options.max_restarts) return result;
    if (Deadline::Clock::now() - begin >= LaunchOptions::kCrashLoop) next_pause = milliseconds(0);
    const milliseconds pause = next_pause;
    next_pause = std::min(std::max(options.back_off, 2 * pause), kLongestPause);
    if (on_restart) on_restart(result, pause);
    result.stop_signal = pause_unless_stopped(options.stop_fd, pause);
    result.was_asked_to_stop = result.stop_signal != 0;
    if (result.was_asked_to_stop) return result;
  }
}

std::string new_job_token() { return random_hex(kTokenBytes); }

std::vector<std::string> environment_of(int local_rank, int attempt, const LaunchOptions& options,
                                        const JobIdentity& job, const std::string& error_file, bool is_stdout_read) {
  std::vector<std::string> out;
  const auto set = [&](const std::string& name, const auto& value) {
    std::erase_if(out, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    out.push_back(fmt::format("{}={}", name, value));
  };
  for (char** entry = environ; *entry; ++entry) out.emplace_back(*entry);
  for (const char* name : {"RANK", "ROLE_RANK"}) set(name, options.nodes.rank * options.nproc + local_rank);
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) set(name, options.nodes.count * options.nproc);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", options.nproc);
  set("GROUP_RANK", options.nodes.rank);
  set("GROUP_WORLD_SIZE", options.nodes.count);
  set("ROLE_NAME", "default");
  set("MASTER_ADDR", job.address);
  set("MASTER_PORT", job.port);
  set("TORCHELASTIC_RUN_ID", job.id);
  set("TORCHELASTIC_RESTART_COUNT", attempt);
  set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");  // MASTER_PORT is rank 0's
  set("TORCHELASTIC_ERROR_FILE", error_file);
  set("LOCKSTEP_JOB_TOKEN", job.token);
  if (!std::getenv("LOCKSTEP_NUM_THREADS")) set("LOCKSTEP_NUM_THREADS", std::max(usable_cores() / options.nproc, 1));
  if (is_stdout_read) set("TERM", "dumb");
  for (const std::string& entry : options.environment) {
    const std::size_t equals = entry.find('=');
    LOCKSTEP_CHECK(equals != std::string::npos && equals > 0, "launch: environment: \"{}\" is not NAME=value", entry);
    set(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

int read_stop_request(int& stop_fd) {
  signalfd_siginfo info{};
  const ssize_t size = uninterrupted([&] { return ::read(stop_fd, &info, sizeof(info)); });
  if (size == 0 || (size < 0 && errno != EAGAIN)) stop_fd = -1;
  if (size <= 0) return 0;
  return size == sizeof(info) ? static_cast<int>(info.ssi_signo) : SIGTERM;
}

StopSignals::StopSignals() {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) sigaddset(&stops, signal);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  // A blocked signal is queued even if it is ignored, so a launcher under nohup would end with its terminal.
  if (hangup.sa_handler != SIG_IGN) sigaddset(&stops, SIGHUP);
  fd_ = ::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
  LOCKSTEP_CHECK_IO(fd_ >= 0, "StopSignals: no descriptor for signals: {}", reason(errno));
  ::pthread_sigmask(SIG_BLOCK, &stops, &before_);
}

StopSignals::~StopSignals() {
  ::close(fd_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace lockstep::parallel
