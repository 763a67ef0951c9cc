// A peer without the token that attacks a job's store while an honest client uses it:
//   network_intruder host port connections pid
// Connections of eight kinds in random order (LOCKSTEP_CHAOS_SEED); of those that stay, 200 are kept open. Every 20th is
// followed by an honest operation on the store and every 500th by a new honest client, all of which must be served, the client
// sooner than unauthenticated peers lose their places by themselves. `pid` is the server's: its descriptors and memory must stay bounded.
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::seconds;

namespace {

constexpr std::size_t kKeptOpen = 200;
constexpr int kDescriptorsOfClients = 16;  // besides those of unauthenticated peers
constexpr long kMostGrowth = 16 << 10;     // KiB
constexpr std::chrono::seconds kSoonerThanOthers = par::kHandshakeDeadline - seconds(2);

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Of the server's process.
struct Resources {
  int descriptors = 0;
  long kilobytes = 0;

  explicit Resources(const std::string& process) {
    DIR* const folder = opendir(("/proc/" + process + "/fd").c_str());
    require(folder, "no process " + process);
    while (readdir(folder)) ++descriptors;
    closedir(folder);
    std::ifstream status("/proc/" + process + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) kilobytes = std::atol(line.c_str() + 6);
    }
  }
};

class Intruder {
 public:
  Intruder(const std::string& host, int port, const par::TcpStoreOptions& honest, unsigned seed)
      : address_(par::resolve(host, port).at(0)), honest_(honest), random_(seed) {
    record_session();
  }

  void connect() {
    par::Deadline deadline(seconds(30));
    std::string error;
    ls::Descriptor socket = par::connect_tcp(address_, deadline, error);
    require(bool(socket), error);
    switch (random_() % 8) {
      case 0:
        return say(std::move(socket), random_bytes(1 + random_() % 400));
      case 1:
        return prove_with_another_token(std::move(socket));
      case 2:
        return keep(std::move(socket));  // silent
      case 3:
        slow_.push_back({std::move(socket), 0});
        break;
      case 4:
        return say(std::move(socket), std::string("\xff\xff\xff\x7f", 4) + random_bytes(60));
      case 5:
        return reset(std::move(socket));
      case 6:
        return say(std::move(socket), session_);  // all at once
      default:
        return replay(std::move(socket));
    }
    // Of the slow ones each says a byte more of a good hello.
    for (Slow& slow : slow_) {
      if (slow.said + 1 < client_hello_.size()) try_to_say(slow.socket, session_.substr(slow.said++, 1));
    }
    if (slow_.size() > kKeptOpen / 4) slow_.pop_front();
  }

 private:
  struct Slow {
    ls::Descriptor socket;
    std::size_t said;
  };

  static void try_to_say(const ls::Descriptor& socket, const std::string& bytes) {
    std::size_t sent = 0;
    static_cast<void>(par::send_some(socket, bytes, sent));  // it may be closed already
  }
  void keep(ls::Descriptor socket) {
    open_.push_back(std::move(socket));
    if (open_.size() > kKeptOpen) open_.pop_front();
  }
  void say(ls::Descriptor socket, const std::string& bytes) {
    try_to_say(socket, bytes);
    keep(std::move(socket));
  }
  void reset(ls::Descriptor socket) {
    const linger no_linger{1, 0};
    require(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger)) == 0, "no SO_LINGER");
  }
  std::string random_bytes(std::size_t count) {
    std::string bytes(count, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random_()); });
    return bytes;
  }

  // A whole session of an honest client, whose bytes pass through here: a handshake and a hello, and a request that would change
  // the store, which is recorded and never sent by the honest one.
  void record_session() {
    const par::TcpCredentials credentials = par::make_credentials(honest_, address_.port());
    par::Deadline deadline(seconds(30));
    std::string error;
    const ls::Descriptor server = par::connect_tcp(address_, deadline, error);
    require(bool(server), error);
    int pair[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0, "no socket pair");
    const ls::Descriptor own(pair[0]);
    const auto client = credentials.tls->stream(ls::Descriptor(pair[1]), par::TlsRole::kClient);
    const std::string hello = par::frame(par::StoreHello{.job = credentials.id});
    std::size_t sent = 0;
    while (client->send(hello, sent) == par::Transmission::kWouldBlock) {
      const std::string piece = take(own);
      if (session_.empty()) client_hello_ = piece;
      session_ += piece;
      try_to_say(server, piece);
      require(par::wait_for(server, POLLIN, deadline), "the honest session failed");
      try_to_say(own, take(server));
    }
    sent = 0;
    client->send(par::frame({.op = par::StoreOp::kAdd, .keys = {"intruder/probe"}, .values = {"1000000"}}), sent);
    session_ += take(own);
  }
  static std::string take(const ls::Descriptor& socket) {
    std::string bytes;
    par::receive_some(socket, bytes, 64 << 10);
    return bytes;
  }

  // A newcomer is answered before others have lost their places by themselves.
  static void hear_answer(const ls::Descriptor& socket, const std::string& client_hello) {
    par::Deadline deadline(kSoonerThanOthers);
    try_to_say(socket, client_hello);
    require(par::wait_for(socket, POLLIN, deadline) && !take(socket).empty(), "a newcomer is not answered");
  }

  void replay(ls::Descriptor socket) {
    hear_answer(socket, client_hello_);
    say(std::move(socket), session_.substr(client_hello_.size()));
  }

  void prove_with_another_token(ls::Descriptor socket) {
    par::TcpStoreOptions other = honest_;
    other.token = "another0another0another0another0";
    par::Deadline deadline(kSoonerThanOthers);
    const par::TcpCredentials credentials = par::make_credentials(other, address_.port());
    auto stream = credentials.tls->stream(std::move(socket), par::TlsRole::kClient);
    const par::ConnectResult result = par::say_hello(std::move(stream), credentials.id, deadline);
    require(result.outcome == par::ConnectOutcome::kOtherJob, "another token is not refused");
  }

  par::TcpAddress address_;
  par::TcpStoreOptions honest_;
  std::mt19937 random_;
  std::string session_, client_hello_;
  std::deque<ls::Descriptor> open_;
  std::deque<Slow> slow_;
};

void attack(const std::string& host, int port, int connections, const std::string& server, unsigned seed) {
  const par::TcpStoreOptions options{.job = par::membership_from_environment({}).store.job, .timeout = seconds(30)};
  par::TcpStoreOptions hasty = options;
  hasty.timeout = kSoonerThanOthers;
  par::TcpStore client(host, port, options);
  std::vector<double> latencies;
  const auto use_store = [&](par::TcpStore& store) {
    const auto before = std::chrono::steady_clock::now();
    const std::int64_t sum = store.add("intruder/probe", 1);
    latencies.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count());
    require(sum == static_cast<std::int64_t>(latencies.size()), "the store counts " + std::to_string(sum));
  };
  use_store(client);
  const Resources before(server);
  int most_descriptors = 0;
  {
    Intruder intruder(host, port, options, seed);
    for (int i = 1; i <= connections; ++i) {
      intruder.connect();
      if (i % 20 == 0) use_store(client);
      if (i % 500 != 0) continue;
      most_descriptors = std::max(most_descriptors, Resources(server).descriptors);
      par::TcpStore another(host, port, hasty);
      use_store(another);
    }
  }
  par::TcpStore another(host, port, options);
  use_store(another);
  const Resources after(server);
  std::sort(latencies.begin(), latencies.end());
  std::printf(
      "%d hostile connections, %zu honest operations: median %.2f ms, p99 %.2f ms; descriptors %d, at most %d; "
      "%ld KiB, then %ld KiB\n",
      connections, latencies.size(), latencies[latencies.size() / 2], latencies[latencies.size() * 99 / 100],
      before.descriptors, most_descriptors, before.kilobytes, after.kilobytes);
  require(most_descriptors <= before.descriptors + static_cast<int>(par::kMaxUnauthenticated) + kDescriptorsOfClients,
          "too many descriptors");
  require(after.kilobytes <= before.kilobytes + kMostGrowth, "the server's memory grows");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const char* const given = std::getenv("LOCKSTEP_CHAOS_SEED");
  const auto seed = static_cast<unsigned>(given ? std::atoi(given) : 1);
  try {
    attack(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), argv[4], seed);
  } catch (const std::exception& error) {
    std::printf("FAILED (seed %u): %s\n", seed, error.what());
    return 1;
  }
  return 0;
}
