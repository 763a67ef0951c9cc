// ucc: ranks on any hosts, over the networks of UCX. Collectives consist of UCX's tagged messages (MessageGroup),
// because UCC has no sends and receives, cannot detect that ranks disagree, and sums in an order of its own. UCC itself
// runs large broadcasts and all_gathers with Reduction::kNative between several hosts.
//
// Ranks read each other's addresses from the store. Each group has two workers, and thereby connections, of its own:
// one for data, over shared memory and TCP unless UCX_TLS is set, and one over TCP for reports of failures, which also
// detects the end of a rank. UCX authenticates nobody and encrypts nothing, see SECURITY.md.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/comm/backends/message_group_internal.h"
#include "lockstep/parallel/comm/backends/ucc_team_internal.h"
#include "lockstep/parallel/comm/backends/ucc_worker_internal.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::chrono::milliseconds kUntilFlushed{1000};  // for sending what was posted before the end
constexpr std::chrono::milliseconds kUntilFlushedAfterFailure{100};
constexpr std::chrono::milliseconds kUntilData{300};  // for data in flight, once the other connection has ended
constexpr std::size_t kLeastOfUcc = 1 << 20;          // bytes of a collective that UCC runs
constexpr int kMostRanks = 1 << 16;                   // a tag has 16 bits for the sender

// Returns the name of the network interface that is up and has the address.
std::string interface_of(const Rendezvous& place) {
  const std::string address = place.address.empty() ? "127.0.0.1" : place.address;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  const bool is_loopback = address.starts_with("127.");
  for (const ifaddrs* each = list; each; each = each->ifa_next) {
    if (!each->ifa_addr || !(each->ifa_flags & IFF_UP)) continue;
    if (is_loopback && (each->ifa_flags & IFF_LOOPBACK)) return each->ifa_name;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const auto length = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (getnameinfo(each->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 && address == text)
      return each->ifa_name;
  }
  throw CommError(fmt::format(
      "init_process_group: ucc: rank {} finds no network interface with the address {}{}: none that is up has it\n"
      "Turn the interface on (ip link set NAME up), or use the backend shm, which needs none, if all "
      "ranks are on one host",
      place.rank, address, is_loopback ? ", that of lo" : ""));
}

// The name by which UCC knows a rank: the boot of its host, and the process. Empty if /proc cannot be read.
std::string process_name() {
  const std::string space = namespace_id("pid");
  return space.empty() ? "" : fmt::format("{} {}", space.substr(0, space.find(' ')), getpid());
}

// Texts of any bytes, each after its length.
std::string join(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    const auto length = static_cast<std::uint32_t>(text.size());
    all.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(text);
  }
  return all;
}

std::vector<std::string_view> split(std::string_view all) {
  std::vector<std::string_view> texts;
  while (all.size() >= sizeof(std::uint32_t)) {
    std::uint32_t length = 0;
    all.copy(reinterpret_cast<char*>(&length), sizeof(length));
    all.remove_prefix(sizeof(length));
    texts.push_back(all.substr(0, length));
    all.remove_prefix(texts.back().size());
  }
  return texts;
}

class UccTransport final : public Transport {
 public:
  UccTransport(const InitOptions& options, const Rendezvous& place)
      : rank_(place.rank), size_(place.size), device_(interface_of(place)) {
    quiet_ucx();
    data_ = std::make_shared<UcxWorker>(
        UcxOptions{.transports = "posix,tcp", .device = device_, .by_environment = true, .copies_sends = false}, rank_,
        size_);
    reports_ = std::make_shared<UcxWorker>(
        UcxOptions{.transports = "tcp", .device = device_, .by_environment = false, .copies_sends = true}, rank_,
        size_);
    Deadline deadline(options.timeout);
    set_token(place);
    connect(place, deadline);
    exchange_hello(place, deadline);
  }
  ~UccTransport() override {
    if (team_) team_->end(true);
    data_->close(false, kUntilFlushed);
    reports_->close(true, kUntilFlushed);
  }

  std::unique_ptr<Request> send(int to, Channel channel, const void* data, std::size_t bytes) override {
    return worker_of(channel).send(to, static_cast<int>(channel), data, bytes);
  }
  std::unique_ptr<Request> receive(int from, Channel channel, void* data, std::size_t bytes) override {
    return worker_of(channel).receive(from, static_cast<int>(channel), data, bytes);
  }

  bool finish(Request& request, Deadline*) override {
    if (auto* const collective = dynamic_cast<UccRequest*>(&request)) return collective->team().finish(*collective);
    auto& own = static_cast<UcxRequest&>(request);
    if (own.worker().finish(own)) return true;
    // Shared memory does not report the end of a rank. TCP does, maybe before all data has arrived.
    if (own.peer() >= 0 && reports_->is_closed(own.peer()) &&
        Deadline::Clock::now() - reports_->closed_at(own.peer()) > kUntilData)
      throw PeerLost{own.peer(), "its connection is closed", false};
    return false;
  }
  bool is_closed(int peer) override {
    reports_->poll();
    return data_->is_closed(peer) || reports_->is_closed(peer);
  }
  bool blocks() const override { return false; }
  bool has_connections() const override { return true; }

  // UCC's broadcast and all_gather are faster over a network, if large. Over shared memory, and all_to_all everywhere,
  // the engine is.
  std::unique_ptr<Request> start_native(const Call& call) override {
    const bool is_gather = call.kind == Kind::kAllGather;
    const std::size_t bytes = call.bytes() * static_cast<std::size_t>(is_gather ? size_ : 1);
    if (!uses_ucc_ || (!is_gather && call.kind != Kind::kBroadcast) || bytes < kLeastOfUcc) return nullptr;
    const std::lock_guard lock(team_mutex_);
    if (!team_)
      team_ = std::make_shared<UccTeam>(
          rank_, size_, device_,
          [this](const void* own, void* all, std::size_t bytes) { return gather(own, all, bytes); },
          [this](Request& request) { return finish(request, nullptr); });
    return team_->start(call);
  }

  // Reports of failures are exchanged until the transport is destroyed.
  void hang_up(bool failed) override {
    {
      const std::lock_guard lock(team_mutex_);
      if (team_) team_->end(failed);
    }
    data_->close(true, failed ? kUntilFlushedAfterFailure : kUntilFlushed);
  }

 private:
  UcxWorker& worker_of(Channel channel) const { return channel >= Channel::kFailures ? *reports_ : *data_; }

  // Rank 0 draws the secret of this group.
  void set_token(const Rendezvous& place) {
    Digest secret;
    if (rank_ == 0) {
      secret = random_digest();
      place.store->set("ucc/secret", std::string(view(secret)));
    } else {
      const std::string given = place.store->get("ucc/secret");
      if (given.size() != secret.size()) throw CommError("ucc: rank 0 left no secret in the store");
      given.copy(secret.data(), secret.size());
    }
    std::uint64_t token = 0;
    view(secret).copy(reinterpret_cast<char*>(&token), sizeof(token));
    wipe(secret);
    for (UcxWorker* const worker : {data_.get(), reports_.get()}) worker->set_token(token);
  }

  // Makes the endpoints by what all ranks leave in the store: host, process, and the addresses of their two workers.
  void connect(const Rendezvous& place, Deadline& deadline) {
    PrefixStore store("ucc/rank/", place.store);
    // With transports of the user's choice, all endpoints are of the kind that detects the end of a peer.
    const std::string host = std::getenv("UCX_TLS") ? "" : namespace_id("pid");
    bool is_one_host = !host.empty();
    std::set<std::string, std::less<>> processes{process_name()};
    store.set(std::to_string(rank_), join({host, process_name(), data_->address(), reports_->address()}));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const std::string theirs = store.get(std::to_string(peer), std::max(deadline.left(), kAttempt));
      const std::vector<std::string_view> parts = split(theirs);
      if (parts.size() != 4) throw CommError(fmt::format("ucc: rank {} left no addresses in the store", peer));
      const bool shares_memory = !host.empty() && host == parts[0];
      is_one_host = is_one_host && shares_memory;
      processes.emplace(parts[1]);
      data_->connect(peer, parts[2], !shares_memory);
      reports_->connect(peer, parts[3], true);
    }
    // UCC does not accept ranks of one name, such as threads, or the first processes of containers on one host.
    uses_ucc_ = !is_one_host && processes.size() == static_cast<std::size_t>(size_);
  }

  // Exchanges a message with every other rank on both connections, so that they are established.
  void exchange_hello(const Rendezvous& place, Deadline& deadline) {
    std::vector<char> received(2 * static_cast<std::size_t>(size_));
    const char hello = 1;
    std::vector<std::unique_ptr<UcxRequest>> requests;
    const auto lost = [&](int peer, const std::string& why) {
      return fmt::format(
          "init_process_group: ucc: rank {} has no connection with rank {}: {}\n"
          "Both reach the store; UCX's own ports, any that are free, must be open between hosts, and to them alone",
          rank_, peer, why);
    };
    const auto each = [&](auto&& post) {
      for (UcxWorker* const worker : {data_.get(), reports_.get()}) {
        for (int peer = 0; peer < size_; ++peer) {
          if (peer != rank_) requests.push_back(post(*worker, peer));
        }
      }
    };
    try {
      each([&](UcxWorker& worker, int peer) {
        char& place_of = received[static_cast<std::size_t>(peer) + (&worker == reports_.get() ? size_ : 0)];
        return worker.receive(peer, kHelloChannel, &place_of, 1);
      });
      each([&](UcxWorker& worker, int peer) { return worker.send(peer, kHelloChannel, &hello, 1); });
      for (const auto& request : requests) {
        while (!request->worker().finish(*request)) {
          if (place.watch) place.watch->check();
          if (deadline.passed()) throw CommTimeout(lost(request->peer(), "it does not answer in time"));
        }
      }
    } catch (const PeerLost& error) {
      throw CommError(lost(error.peer, error.why));
    }
  }

  std::vector<std::unique_ptr<Request>> gather(const void* own, void* all, std::size_t bytes) {
    std::vector<std::unique_ptr<Request>> requests;
    auto* const places = static_cast<std::byte*>(all);
    std::memcpy(places + static_cast<std::size_t>(rank_) * bytes, own, bytes);
    for (int k = 1; k < size_; ++k) {
      const int from = (rank_ + size_ - k) % size_;
      requests.push_back(data_->receive(from, kAddressChannel, places + static_cast<std::size_t>(from) * bytes, bytes));
    }
    for (int k = 1; k < size_; ++k) requests.push_back(data_->send((rank_ + k) % size_, kAddressChannel, own, bytes));
    return requests;
  }

  const int rank_, size_;
  const std::string device_;
  bool uses_ucc_ = false;  // the same on all ranks
  std::shared_ptr<UcxWorker> data_, reports_;
  std::mutex team_mutex_;
  std::shared_ptr<UccTeam> team_;  // made with the first collective that uses it
};

std::unique_ptr<Backend> make_ucc(const InitOptions& options, const Rendezvous& place) {
  LOCKSTEP_CHECK(place.store, "init_process_group: the backend ucc needs a store; use env://");
  LOCKSTEP_CHECK(place.size <= kMostRanks, "init_process_group: the backend ucc is for at most {} ranks, not {}",
                 kMostRanks, place.size);
  return std::make_unique<MessageGroup>(options, place, std::make_unique<UccTransport>(options, place));
}

constexpr BackendModule kUccModule{.version = LOCKSTEP_VERSION, .make = make_ucc, .needs = {.network_address = true}};

}  // namespace
}  // namespace lockstep::parallel

extern "C" const lockstep::parallel::BackendModule* lockstep_backend_ucc();
const lockstep::parallel::BackendModule* lockstep_backend_ucc() { return &lockstep::parallel::kUccModule; }
