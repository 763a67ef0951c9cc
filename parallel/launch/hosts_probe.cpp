// One host's part of the pre-flight: what is installed on it, and how fast its links to the others are. Hosts tell each other
// in a store on the first one where they listen and whose turn it is. Every connection begins with a store's handshake, so
// that only who has the job's token takes part; what follows is noise of a fixed size, kept by nobody.
#include <dlfcn.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/device.h"
#include "lockstep/tensor/file_internal.h"
#include "lockstep/version.h"

namespace lockstep::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundTrips = 101, kMessages = 5;
constexpr std::size_t kProbeMessageBytes = 4 << 20;
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

void measure(const Descriptor& socket, HostLink& link) {
  Deadline deadline(kProbeDeadline);
  std::vector<double> round_trips, messages;
  for (int i = 0; i < kRoundTrips; ++i) round_trips.push_back(exchange(socket, "x", deadline));
  const std::string message(kProbeMessageBytes, 'x');
  for (int i = 0; i < kMessages; ++i) messages.push_back(exchange(socket, message, deadline));
  link.latency_us = median(round_trips) / 2 * 1e6;
  link.gigabytes_per_s = kProbeMessageBytes / median(messages) / 1e9;
}

void answer(const Descriptor& socket) {
  Deadline deadline(kProbeDeadline);
  for (int i = 0; i < kRoundTrips + kMessages; ++i) {
    hear(socket, i < kRoundTrips ? 1 : kProbeMessageBytes, deadline);
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

// What a host does for the links that it is an end of.
class LinkProbe {
 public:
  LinkProbe(const NodeOptions& nodes, const TcpIdentity& identity)
      : nodes_(nodes), identity_(identity), timeout_(kProbeDeadline + kProbeOfOne * links_between(nodes.count).size()),
        store_(join()) {
    const std::string host = nodes.rank == 0 ? nodes.address : address_towards(resolve(nodes.address, nodes.port));
    std::string error;
    if (!host.empty()) listener_ = listen_tcp(resolve(host, 0), error);
    if (!listener_) throw CommError(fmt::format("pre-flight: cannot listen at {}: {}", in_quotes(host), error));
    store_->set(fmt::format("address/{}", nodes.rank), fmt::format("{} {}", address_of(listener_).port(), host));
  }

  void run(ProbeCallback& on_line) {
    const std::vector<HostLink> links = links_between(nodes_.count);
    for (std::size_t turn = 0; turn < links.size(); ++turn) {
      if (links[turn].to == nodes_.rank) serve();
      if (links[turn].from != nodes_.rank) continue;
      if (turn > 0) store_->wait({fmt::format("done/{}", turn - 1)}, timeout_);
      on_line(link_line(measured(links[turn])));
      // The first host is an end of the last link: it knows, and its store may be gone already.
      if (turn + 1 < links.size()) store_->set(fmt::format("done/{}", turn), "");
    }
  }

 private:
  std::shared_ptr<TcpStore> join() const {
    try {
      return std::make_shared<TcpStore>(
          nodes_.address, nodes_.port,
          TcpStoreOptions{
              .is_server = nodes_.rank == 0, .token = identity_.token, .job = identity_.job, .timeout = timeout_});
    } catch (const CommError& error) {
      if (nodes_.rank != 0) throw;
      throw CommError(
          fmt::format("pre-flight: {}\nGive another --master-port, or an address of this host that the "
                      "others reach: --master-addr",
                      error.what()));
    }
  }

  // For the one whose turn it is; who does not know the token is turned away.
  void serve() {
    for (Deadline deadline(timeout_);;) {
      if (!wait_for(listener_, POLLIN, deadline)) throw CommTimeout("pre-flight: not all hosts have come");
      const Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) continue;
      tune_tcp(socket);
      if (welcome(socket, identity_)) return answer(socket);
    }
  }

  HostLink measured(HostLink link) {
    std::istringstream text(store_->get(fmt::format("address/{}", link.to), timeout_));
    int port = 0;
    std::string host;
    text >> port >> host;
    TcpAddress reached;
    const Greeting greeting =
        reach_tcp(resolve(host, port), identity_, kProbeDeadline, fmt::format("{}:{}", host, port), reached);
    measure(greeting.link.socket, link);
    return link;
  }

  const NodeOptions& nodes_;
  const TcpIdentity& identity_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<TcpStore> store_;
  Descriptor listener_;
};

}  // namespace

std::string facts_line(const HostReport& report) {
  return fmt::format("{} {} {} {} {}", kFacts, report.version, report.program_hash, report.library_hash, report.cores);
}

std::string link_line(const HostLink& link) {
  return fmt::format("{} {} {} {:.1f} {:.4f}", kLink, link.from, link.to, link.latency_us, link.gigabytes_per_s);
}

std::vector<HostLink> links_between(int hosts) {
  std::vector<HostLink> links;
  for (int round = 1; round <= hosts; ++round) {
    const int to = round % hosts;
    for (int from = to + 1; from < hosts; ++from) links.push_back({.from = from, .to = to});
  }
  return links;
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
    HostLink link;
    words >> link.from >> link.to >> link.latency_us >> link.gigabytes_per_s;
    if (!words || read.links.size() >= kMaxRanks) return false;
    read.links.push_back(link);
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
  LinkProbe(nodes, identity).run(on_line);
}

}  // namespace lockstep::parallel
