// One host's part of the pre-flight: what is installed on it, and how fast its link to the first host is. The connection
// begins with the handshake of a store, so that only who has the job's token takes part; what follows is noise of a fixed
// size, kept by nobody.
#include <dlfcn.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "lockstep/parallel/crypto_internal.h"
#include "lockstep/parallel/hosts_internal.h"
#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/tcp_store_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/file.h"
#include "lockstep/version.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundTrips = 101, kMessages = 5;
constexpr std::size_t kMessageBytes = 4 << 20;
constexpr std::chrono::milliseconds kProbeDeadline = std::chrono::seconds(10), kProbeOfOne = std::chrono::seconds(1);
constexpr const char *kFacts = "lockstep-probe facts", *kLink = "lockstep-probe link";

// --- what is installed --------------------------------------------------------------------------------------------------

std::string hash_of_file(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kMaxProgramFile);
  const Digest digest = sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  std::string out;
  for (const char byte : view(digest)) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
}

// Where it is linked in, the launcher's own.
std::string path_of_library() {
  Dl_info info{};
  const auto* const inside = reinterpret_cast<const void*>(&hash_of_file);
  LOCKSTEP_CHECK_IO(::dladdr(inside, &info) != 0 && info.dli_fname, "pre-flight: cannot find the file of liblockstep");
  return info.dli_fname;
}

bool is_hash(const std::string& text) {
  return text.size() == 2 * kDigestBytes && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// --- the link -----------------------------------------------------------------------------------------------------------

void say(const Descriptor& socket, const std::string& bytes, Deadline& deadline) {
  if (send_all(socket, bytes, deadline) == Outcome::kTimeout) throw CommTimeout("pre-flight: the link is too slow");
}

void hear(const Descriptor& socket, std::size_t count, Deadline& deadline) {
  constexpr std::size_t kAtOnce = 256 << 10;
  for (std::string buffer; count > 0; buffer.clear()) {
    const Outcome outcome = read_some(socket, buffer, std::min(count, kAtOnce), deadline);
    if (outcome == Outcome::kTimeout) throw CommTimeout("pre-flight: the link is too slow");
    if (outcome == Outcome::kClosed) throw CommError("pre-flight: the other host ended the measurement");
    count -= buffer.size();
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds of one exchange: `bytes` there, one byte back.
double exchange(const Descriptor& socket, const std::string& bytes, Deadline& deadline) {
  const auto begin = Clock::now();
  say(socket, bytes, deadline);
  hear(socket, 1, deadline);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void measure(const Descriptor& socket, HostReport& report) {
  Deadline deadline(kProbeDeadline);
  std::vector<double> round_trips, messages;
  for (int i = 0; i < kRoundTrips; ++i) round_trips.push_back(exchange(socket, "x", deadline));
  const std::string message(kMessageBytes, 'x');
  for (int i = 0; i < kMessages; ++i) messages.push_back(exchange(socket, message, deadline));
  report.latency_us = median(round_trips) / 2 * 1e6;
  report.gigabytes_per_s = kMessageBytes / median(messages) / 1e9;
}

void answer(const Descriptor& socket) {
  Deadline deadline(kProbeDeadline);
  for (int i = 0; i < kRoundTrips + kMessages; ++i) {
    hear(socket, i < kRoundTrips ? 1 : kMessageBytes, deadline);
    say(socket, "x", deadline);
  }
}

// Whether the other end knows the token.
bool welcome(const Descriptor& socket, const TcpIdentity& identity) {
  Deadline deadline(kHandshakeDeadline);
  TcpServerHandshake handshake(identity);
  try {
    for (std::string heard;;) {
      if (read_some(socket, heard, handshake.wanted(heard.size()), deadline) != Outcome::kAnswered) return false;
      const Handshake::Step step = handshake.take(heard);
      if (step.state == Handshake::State::kRefused) return false;
      if (send_all(socket, step.reply, deadline) != Outcome::kAnswered) return false;
      if (step.state == Handshake::State::kKnown) return true;
    }
  } catch (const Error&) {
    return false;  // whoever that was is told nothing
  }
}

void serve(const NodeOptions& nodes, const TcpIdentity& identity) {
  std::string error;
  const Descriptor listener = listen_tcp(resolve(nodes.address, nodes.port), error);
  if (!listener)
    throw CommError(
        fmt::format("pre-flight: cannot listen at {}:{}: {}\nGive another --master-port, or an address of "
                    "this host that the others reach: --master-addr",
                    nodes.address, nodes.port, error));
  Deadline deadline(kProbeDeadline + kProbeOfOne * nodes.count);
  for (int left = nodes.count - 1; left > 0;) {
    if (!wait_for(listener, POLLIN, deadline)) throw CommTimeout("pre-flight: not all hosts have come");
    const Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;
    tune_tcp(socket);
    if (!welcome(socket, identity)) continue;
    answer(socket);
    --left;
  }
}

}  // namespace

std::string facts_line(const HostReport& report) {
  return fmt::format("{} {} {} {} {}", kFacts, report.version, report.program_hash, report.library_hash, report.cores);
}

std::string link_line(const HostReport& report) {
  return fmt::format("{} {:.1f} {:.4f}", kLink, report.latency_us, report.gigabytes_per_s);
}

bool take_probe_line(const std::string& line, HostReport& report) {
  std::istringstream words(line);
  std::string first, second;
  HostReport read = report;
  words >> first >> second;
  const std::string kind = first + " " + second;
  if (kind == kFacts) {
    words >> read.version >> read.program_hash >> read.library_hash >> read.cores;
    if (!words || !is_hash(read.program_hash) || !is_hash(read.library_hash) || read.version.size() > 32) return false;
  } else if (kind == kLink) {
    words >> read.latency_us >> read.gigabytes_per_s;
    if (!words) return false;
  } else {
    return false;
  }
  report = read;
  return true;
}

void probe_host(const NodeOptions& nodes, const std::string& program, ProbeCallback on_line) {
  HostReport report{.version = version(),
                    .program_hash = hash_of_file(find_program(program)),
                    .library_hash = hash_of_file(path_of_library()),
                    .cores = usable_cores()};
  on_line(facts_line(report));
  if (nodes.count == 1) return;
  const TcpIdentity identity{nodes.token, "lockstep-run --hosts", "pre-flight"};
  if (nodes.rank == 0) return serve(nodes, identity);
  TcpAddress reached;
  const Greeting greeting =
      reach_tcp(resolve(nodes.address, nodes.port), identity, kProbeDeadline + kProbeOfOne * nodes.count,
                fmt::format("{}:{}", nodes.address, nodes.port), reached);
  measure(greeting.link.socket, report);
  on_line(link_line(report));
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
