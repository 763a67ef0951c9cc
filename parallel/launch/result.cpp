// Texts about the ends of ranks and jobs, and the error files that ranks write.
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"

namespace lockstep::parallel {

namespace {

// Makes text safe for a terminal: no control characters except line ends and tabs, and a limited length.
std::string printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  if (text.size() > kMaxErrorText) text = text.substr(0, kMaxErrorText) + "...";
  return text;
}

std::string indented(const std::string& text) {
  std::string out = "  ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "  ";
  }
  return out;
}

std::string signal_text(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return fmt::format("signal {} (SIG{})", signal, name ? name : "?");
}

}  // namespace

std::string RankExit::to_string() const {
  std::string out = fmt::format("rank {} (pid {})", rank, pid);
  if (is_stuck) return out + " did not end even when killed; it is left behind";
  out += signal != 0 ? " was killed by " + signal_text(signal) : fmt::format(" exited with code {}", code);
  return error.empty() ? out : out + "; its last error:\n" + indented(error);
}

std::string LaunchResult::summary() const {
  if (exit_code == 0) return "";
  const auto killed = std::count_if(ranks.begin(), ranks.end(),
                                    [](const RankExit& rank) { return rank.was_stopped && rank.signal == SIGKILL; });
  std::string out;
  if (was_killed)
    out = fmt::format("A second request to stop, by {}: killed {} of {} ranks\n", signal_text(stop_signal), killed,
                      ranks.size());
  else if (was_asked_to_stop && stop_signal != 0)
    out = fmt::format("Asked to stop by {}\n", signal_text(stop_signal));
  if (attempt > 0 && !was_killed) out += fmt::format("After {} {}: ", attempt, attempt == 1 ? "restart" : "restarts");
  for (const RankExit& rank : ranks) {
    if (rank.rank == first_failure) out += "First to fail: " + rank.to_string() + "\n";
  }
  int stopped = 0;
  for (const RankExit& rank : ranks) {
    if (rank.rank == first_failure) continue;
    if (rank.was_stopped && !rank.is_stuck) {
      ++stopped;
    } else if (rank.is_stuck || rank.code != 0) {
      out += "Then: " + rank.to_string() + "\n";
    }
  }
  if (stopped > 0 && !was_killed)
    out += fmt::format("Stopped: {} other {}{}\n", stopped, stopped == 1 ? "rank" : "ranks",
                       killed > 0 ? fmt::format(" ({} had to be killed)", killed) : "");
  return out;
}

ErrorFile::ErrorFile() : file_(::memfd_create("lockstep-error", MFD_CLOEXEC)) {
  LOCKSTEP_CHECK_IO(bool(file_), "launch: cannot make a memory file for a rank's error: {}", reason(errno));
}

// The path names this process's descriptor, so that processes started by a rank can write the file, too.
std::string ErrorFile::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }

std::string ErrorFile::read() const {
  std::string bytes(kMaxErrorFile + 1, '\0');
  const ssize_t count = uninterrupted([&] { return ::pread(file_.get(), bytes.data(), bytes.size(), 0); });
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (bytes.size() > kMaxErrorFile)
    return fmt::format("(its error file is longer than {0} bytes; at most {0} are read)", kMaxErrorFile);
  return message_in(bytes);
}

std::string message_in(const std::string& json) {
  const nlohmann::json root = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* at = &root;
  for (int level = 0; level < 2 && at->is_object(); ++level) {  // "message" is a text, or an object with one
    const auto found = at->find("message");
    if (found == at->end()) return "";
    at = &*found;
  }
  return at->is_string() ? printable(at->get<std::string>()) : "";
}

std::string error_json(const std::string& message) {
  const nlohmann::json extra = {{"py_callstack", ""}, {"timestamp", std::to_string(::time(nullptr))}};
  const nlohmann::json content = {{"message", {{"message", message}, {"extraInfo", extra}}}};
  return content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void write_error_file(const std::string& message) {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!path || !*path) return;
  try {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
    write_all(Descriptor(uninterrupted([&] { return ::open(path, kFlags, 0600); })), error_json(message));
  } catch (const std::exception&) {
    // The rank ends because of an error already; the file only adds to what it reports.
  }
}

bool write_all(const Descriptor& file, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = uninterrupted([&] { return ::write(file.get(), text.data() + done, text.size() - done); });
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace lockstep::parallel
