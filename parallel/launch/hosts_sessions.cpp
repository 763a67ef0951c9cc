#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string_view>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::string_view kOwnErrors = "lockstep-run: ";

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry) out.emplace_back(*entry);
  return out;
}

}  // namespace

Sessions::Sessions(const HostsOptions& options, const std::vector<Assignment>& assignments) {
  for (std::size_t host = 0; host < assignments.size(); ++host) start(options, host, assignments[host]);
}

// The command line has no more than the program's path: all else goes over stdin, where nobody can read it in a list of
// processes, and no shell takes it apart.
void Sessions::start(const HostsOptions& options, std::size_t host, const Assignment& assignment) {
  const std::string& name = options.hosts[host].name;
  std::vector<std::string> command = options.ssh;
  command.push_back(name);
  command.push_back("exec " + shell_quoted(options.remote_path) + " --assigned");
  int ends[2];
  LOCKSTEP_CHECK_IO(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
                    "hosts: no socket for the input of ssh to {}: {}", name, reason(errno));
  auto session = std::make_unique<Session>();
  session->input = Descriptor(ends[0]);
  session->unsent = to_bytes(assignment);
  const Descriptor in(ends[1]), out = session->streams[0].open(name), err = session->streams[1].open(name);
  session->process.emplace(WorkerSpec{.program = find_program(command[0]),
                                      .command = command,
                                      .environment = own_environment(),
                                      .in = in.get(),
                                      .out = out.get(),
                                      .err = err.get(),
                                      .watchdog = watchdog_.socket()},
                           watchdog_);
  sessions_.push_back(std::move(session));
}

bool Sessions::is_running() const {
  for (const auto& session : sessions_) {
    if (session->process->is_running()) return true;
  }
  return false;
}

std::vector<Sessions::Ended> Sessions::turn(int timeout, int stop_fd, OnLine on_line) {
  constexpr std::size_t kEach = 4;
  std::vector<pollfd> polled{{stop_fd, POLLIN, 0}};  // negative ones are left out by poll
  for (const auto& session : sessions_) {
    polled.push_back({session->unsent.empty() ? -1 : session->input.get(), POLLOUT, 0});
    for (const LineReader& stream : session->streams) polled.push_back({stream.fd(), POLLIN, 0});
    polled.push_back({session->process->ended(), POLLIN, 0});
  }
  is_stop_requested_ = false;
  if (::poll(polled.data(), polled.size(), timeout) < 0) return {};  // EINTR, or no memory for a moment
  is_stop_requested_ = polled[0].revents != 0;
  std::vector<Ended> ended;
  for (std::size_t host = 0; host < sessions_.size(); ++host) {
    Session& session = *sessions_[host];
    const pollfd* const own = polled.data() + 1 + kEach * host;
    if (own[0].revents) send(session);
    for (std::size_t s = 0; s < 2; ++s) {
      if (own[1 + s].revents) emit(host, s == 1, session.streams[s].read(), on_line);
    }
    if (!own[3].revents) continue;
    for (std::size_t s = 0; s < 2; ++s) emit(host, s == 1, session.streams[s].finish(), on_line);
    session.input.reset();  // what ssh was for, and may still be there without it, ends as well
    session.unsent.clear();
    std::string& last = session.last_error;
    if (last.starts_with(kOwnErrors)) last.erase(0, kOwnErrors.size());
    const WorkerProcess::End end = session.process->take_end();
    ended.push_back({host, end.code, end.signal, last});
  }
  return ended;
}

void Sessions::send(Session& session) {
  const ssize_t count = uninterrupted([&] {
    return ::send(session.input.get(), session.unsent.data(), session.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  });
  if (count < 0 && errno == EAGAIN) return;
  // One that does not read any more is about to end, which tells the reason.
  session.unsent.erase(0, count < 0 ? session.unsent.size() : static_cast<std::size_t>(count));
}

void Sessions::emit(std::size_t host, bool is_stderr, const std::vector<std::string>& lines, OnLine on_line) {
  for (const std::string& line : lines) {
    // What lockstep-run says itself comes before what others have said, and before its own further lines.
    std::string& last = sessions_[host]->last_error;
    const bool is_own = line.starts_with(kOwnErrors);
    if (is_stderr && !line.empty() && (is_own || !last.starts_with(kOwnErrors))) last = line;
    on_line(host, is_stderr, line);
  }
}

void Sessions::tell(int signal) {
  for (const auto& session : sessions_) {
    if (!session->input) continue;
    session->unsent += static_cast<char>(signal);
    send(*session);
  }
}

void Sessions::hang_up() {
  for (const auto& session : sessions_) {
    session->input.reset();
    session->unsent.clear();
  }
}

void Sessions::kill() {
  for (const auto& session : sessions_) session->process->signal(SIGKILL);
}

}  // namespace lockstep::parallel
