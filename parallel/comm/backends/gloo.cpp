// gloo: ranks on any hosts, over TCP. gloo's pairs move the bytes, through unbound buffers only. The collectives are
// those of MessageGroup, because gloo's own cannot detect that ranks disagree and need more messages for small
// tensors.
//
// Ranks read each other's addresses from the store. On each connection both ends prove by a MAC that they know a
// secret from the store, so a process that finds a rank's port is not accepted as a peer. A store of several hosts
// sends the secret inside TLS. The proof authenticates peers only: tensors are sent unencrypted. A message larger than
// its receive makes gloo end the process.
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backends/message_group_internal.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"

namespace lockstep::parallel {
namespace {

constexpr int kProofChannel = kChannels, kWatchChannel = kChannels + 1;

// gloo writes to sockets that peers may have closed. During the lifetime of this object such a write returns an error
// code in this thread instead of ending the process by SIGPIPE.
class WithoutBrokenPipe {
 public:
  WithoutBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutBrokenPipe() {
    const timespec now{};
    if (!was_pending_) static_cast<void>(sigtimedwait(&pipe_, nullptr, &now));
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutBrokenPipe(const WithoutBrokenPipe&) = delete;
  WithoutBrokenPipe& operator=(const WithoutBrokenPipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

// One timeout for all steps of making a group.
class TimeLeft {
 public:
  explicit TimeLeft(std::chrono::milliseconds timeout) : end_(Deadline::Clock::now() + timeout) {}
  std::chrono::milliseconds operator()() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Deadline::Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }
  bool passed() const { return Deadline::Clock::now() >= end_; }

 private:
  Deadline::Clock::time_point end_;
};

// Connections with all other ranks. Like gloo::rendezvous::Context, but `abort` also ends waits for connections.
class Mesh final : public gloo::Context {
 public:
  Mesh(int rank, int size, const std::shared_ptr<gloo::transport::Device>& device, const TimeLeft& left)
      : gloo::Context(rank, size) {
    device_ = device;
    transportContext_ = device_->createContext(rank, size);
    // gloo waits five times this long for a connection: until `left` has passed, or a little longer.
    transportContext_->setTimeout(left() / 5 + std::chrono::milliseconds(1));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::vector<char> address = transportContext_->createPair(peer)->address().bytes();
      addresses_.append(address.begin(), address.end());
    }
  }

  // The addresses at which the other ranks connect to this one, one after another, all of one length.
  const std::string& addresses() const { return addresses_; }
  // Connects with a rank, by its addresses.
  void connect(int peer, std::string_view addresses, const TimeLeft& left) {
    const std::size_t length = addresses.size() / static_cast<std::size_t>(size - 1);
    const std::string_view own =
        addresses.substr(length * static_cast<std::size_t>(rank < peer ? rank : rank - 1), length);
    try {
      getPair(peer)->connect({own.begin(), own.end()});
    } catch (const gloo::Exception& error) {
      const std::string text = fmt::format(
          "init_process_group: gloo: rank {} has no connection with rank {}: {}\n"
          "Both reach the store; gloo's own ports, any that are free, must be open between hosts, and to them alone",
          rank, peer, error.what());
      if (left.passed()) throw CommTimeout(text);
      throw CommError(text);
    }
  }

  // Starts a wait that times out, because a timeout closes every connection of a context and ends all waits for them.
  void abort() {
    char none = 0;
    const WithoutBrokenPipe guard;
    try {
      createUnboundBuffer(&none, sizeof(none))->waitRecv(nullptr, std::chrono::milliseconds(1));
    } catch (const gloo::Exception&) {
      // The timeout is intended.
    }
  }

 private:
  std::string addresses_;
};

constexpr std::chrono::hours kForever{24 * 365};

class GlooRequest final : public Request {
 public:
  GlooRequest(int peer, bool sending, std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
      : Request(peer), buffer_(std::move(buffer)), sending_(sending) {}
  gloo::transport::UnboundBuffer& buffer() { return *buffer_; }

  // Returns when the request is complete (true) or `abort` was called, before or meanwhile.
  bool finish() {
    if (!done_) done_ = sending_ ? buffer_->waitSend(nullptr, kForever) : buffer_->waitRecv(nullptr, kForever);
    return done_;
  }
  void abort() { sending_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv(); }

 private:
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool sending_, done_ = false;
};

// Aborts waits after a slice. An aborted wait can be repeated, but a wait that times out closes all connections.
class Alarm {
 public:
  Alarm() : thread_([this] { run(); }) {}
  ~Alarm() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void set(GlooRequest& request, std::chrono::milliseconds after) {
    const std::lock_guard lock(mutex_);
    const auto at = Deadline::Clock::now() + after;
    waits_.push_back({&request, at});
    if (at < next_) changed_.notify_one();
  }
  void clear(GlooRequest& request) {
    const std::lock_guard lock(mutex_);
    std::erase_if(waits_, [&](const Wait& wait) { return wait.request == &request; });
  }

 private:
  struct Wait {
    GlooRequest* request;
    Deadline::Clock::time_point at;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const auto now = Deadline::Clock::now();
      std::erase_if(waits_, [&](const Wait& wait) {
        if (wait.at <= now) wait.request->abort();
        return wait.at <= now;
      });
      next_ = now + kForever;
      for (const Wait& wait : waits_) next_ = std::min(next_, wait.at);
      changed_.wait_until(lock, next_);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Wait> waits_;
  Deadline::Clock::time_point next_;  // when the thread wakes up without a notification
  bool stopping_ = false;
  std::thread thread_;
};

constexpr const char* kLoopback = "127.0.0.1";

// The address at which a rank listens. Ranks of one host have loopback addresses of their own: the kernel takes long to
// find a free port for the thousandth socket of one address.
std::string address_of(const Rendezvous& place) {
  if (!place.address.empty() && place.address != kLoopback) return place.address;
  return fmt::format("127.0.{}.{}", place.rank / 254 % 256, 1 + place.rank % 254);
}

std::shared_ptr<gloo::transport::Device> device_at(const std::string& address, int rank) {
  try {
    return gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
  } catch (const std::exception& error) {
    if (address.starts_with("127.") && address != kLoopback) return device_at(kLoopback, rank);
    throw CommError(fmt::format(
        "init_process_group: gloo: rank {} finds no network interface with the address {}{}: {}\n"
        "Turn the interface on (ip link set NAME up), or use the backend shm, which needs none, if all ranks are on "
        "one host",
        rank, address, address.starts_with("127.") ? ", that of lo" : "", error.what()));
  }
}

constexpr const char* kClosed = "its connection is closed";
constexpr int kRanksWithResults = 8;  // most ranks that have connections of their own for results

class GlooTransport final : public Transport {
 public:
  GlooTransport(const InitOptions& options, const Rendezvous& place) : rank_(place.rank) {
    const WithoutBrokenPipe guard;  // gloo's thread inherits the signal mask
    for (int peer = 0; peer < place.size; ++peer) {
      if (peer != rank_) others_.push_back(peer);
    }
    const std::string address = address_of(place);
    const auto device = device_at(address, rank_);
    Digest secret = shared_secret(place);
    const TimeLeft left(options.timeout);
    const auto make_mesh = [&](const auto& on) { return std::make_shared<Mesh>(place.rank, place.size, on, left); };
    data_ = make_mesh(device);
    reports_ = make_mesh(device);
    // With a second thread, results are sent while parts are received.
    if (place.size <= kRanksWithResults) results_ = make_mesh(device_at(address, rank_));
    const std::jthread alarm = formation_alarm(place.watch.get(), [this] {
      for (Mesh* const mesh : meshes()) mesh->abort();
    });
    const std::vector<Digest> nonces = connect(place, left);
    exchange_proofs(secret, nonces, place, left);
    wipe(secret);
    watches_.resize(static_cast<std::size_t>(place.size));
    for (const int peer : others_) {
      auto buffer = data_->createUnboundBuffer(&never_, sizeof(never_));
      buffer->recv(peer, static_cast<std::uint64_t>(kWatchChannel));
      watches_[static_cast<std::size_t>(peer)] = std::make_unique<GlooRequest>(peer, false, std::move(buffer));
    }
  }
  ~GlooTransport() override {
    const WithoutBrokenPipe guard;
    watches_.clear();
    data_.reset();
    results_.reset();
    reports_.reset();
  }

  std::unique_ptr<Request> send(int to, Channel channel, const void* data, std::size_t bytes) override {
    return post(to, channel, const_cast<void*>(data), bytes, true);
  }
  std::unique_ptr<Request> receive(int from, Channel channel, void* data, std::size_t bytes) override {
    return post(from, channel, data, bytes, false);
  }

  bool finish(Request& request, Deadline* deadline) override {
    auto& waited = static_cast<GlooRequest&>(request);
    alarm_.set(waited, deadline ? deadline->slice() : std::chrono::milliseconds(1));
    bool done = false, closed = false;
    try {
      done = waited.finish();
    } catch (const gloo::Exception&) {
      closed = true;
    }
    alarm_.clear(waited);
    if (closed) throw PeerLost{request.peer(), kClosed, false};
    return done;
  }

  // Nothing is ever sent to the receive `watch`, so a wait for it fails only if the connection has ended.
  bool is_closed(int peer) override {
    GlooRequest& watch = *watches_[static_cast<std::size_t>(peer)];
    const std::lock_guard lock(watches_mutex_);
    watch.abort();
    try {
      watch.finish();
      return false;
    } catch (const gloo::Exception&) {
      return true;
    }
  }

  bool blocks() const override { return true; }
  std::unique_ptr<Request> start_native(const Call&) override { return nullptr; }

  void hang_up(bool) override {
    data_->abort();
    if (results_) results_->abort();
  }

 private:
  std::unique_ptr<Request> post(int peer, Channel channel, void* data, std::size_t bytes, bool sending) {
    const WithoutBrokenPipe guard;
    try {
      auto buffer = mesh_of(channel).createUnboundBuffer(data, bytes);
      if (peer == kAnyRank)
        buffer->recv(others_, static_cast<std::uint64_t>(channel), 0, bytes);
      else
        sending ? buffer->send(peer, static_cast<std::uint64_t>(channel))
                : buffer->recv(peer, static_cast<std::uint64_t>(channel));
      return std::make_unique<GlooRequest>(peer, sending, std::move(buffer));
    } catch (const gloo::Exception&) {
      throw PeerLost{peer, kClosed, false};
    }
  }

  gloo::Context& mesh_of(Channel channel) const {
    if (channel >= Channel::kFailures) return *reports_;
    return channel == Channel::kResults && results_ ? *results_ : *data_;
  }

  // Returns the random secret that rank 0 has drawn for this group, the MAC key of the handshake.
  Digest shared_secret(const Rendezvous& place) const {
    Digest secret;
    if (rank_ == 0) {
      secret = random_digest();
      place.store->set("gloo/secret", std::string(view(secret)));
      return secret;
    }
    const std::string given = place.store->get("gloo/secret");
    if (given.size() != secret.size()) throw CommError("gloo: rank 0 left no secret in the store");
    given.copy(secret.data(), secret.size());
    return secret;
  }

  std::vector<Mesh*> meshes() const {
    std::vector<Mesh*> all{data_.get(), reports_.get()};
    if (results_) all.push_back(results_.get());
    return all;
  }

  // Connects with all ranks by the addresses that they leave in the store. Each also leaves a fresh nonce; returns all.
  std::vector<Digest> connect(const Rendezvous& place, const TimeLeft& left) {
    PrefixStore store("gloo/rank/", place.store);
    std::vector<Digest> nonces(static_cast<std::size_t>(place.size));
    nonces[static_cast<std::size_t>(rank_)] = random_digest();
    std::string offer(view(nonces[static_cast<std::size_t>(rank_)]));
    for (const Mesh* const mesh : meshes()) offer += mesh->addresses();
    store.set(std::to_string(rank_), offer);
    for (const int peer : others_) {
      const std::string theirs = store.get(std::to_string(peer), left());
      if (theirs.size() != offer.size())
        throw CommError(fmt::format("gloo: rank {} left no addresses in the store", peer));
      theirs.copy(nonces[static_cast<std::size_t>(peer)].data(), kDigestBytes);
      std::string_view addresses = std::string_view(theirs).substr(kDigestBytes);
      for (Mesh* const mesh : meshes()) {
        mesh->connect(peer, addresses.substr(0, mesh->addresses().size()), left);
        addresses.remove_prefix(mesh->addresses().size());
      }
    }
    return nonces;
  }

  // Every rank proves to every other, on each connection, that it knows the secret: by a MAC over the other's nonce, both
  // ranks and the mesh, so that a proof cannot be replayed elsewhere.
  void exchange_proofs(const Digest& secret, const std::vector<Digest>& nonces, const Rendezvous& place,
                       const TimeLeft& left) {
    const auto proof = [&](int prover, int verifier, std::size_t mesh) {
      const std::int32_t ends[3] = {prover, verifier, static_cast<std::int32_t>(mesh)};
      std::string text = "lockstep gloo hello";
      text.append(reinterpret_cast<const char*>(ends), sizeof(ends));
      return hmac_sha256(view(secret), text.append(view(nonces[static_cast<std::size_t>(verifier)])));
    };
    const std::vector<Mesh*> on = meshes();
    const std::size_t count = others_.size() * on.size();
    std::vector<Digest> sent(count), received(count);
    std::vector<GlooRequest> requests;
    const auto post = [&](std::size_t i, bool sending, Digest& digest) {
      const int peer = others_[i / on.size()];
      auto buffer = on[i % on.size()]->createUnboundBuffer(&digest, kDigestBytes);
      sending ? buffer->send(peer, static_cast<std::uint64_t>(kProofChannel))
              : buffer->recv(peer, static_cast<std::uint64_t>(kProofChannel));
      requests.emplace_back(peer, sending, std::move(buffer));
    };
    for (std::size_t i = 0; i < count; ++i) {
      sent[i] = proof(rank_, others_[i / on.size()], i % on.size());
      post(i, false, received[i]);
      post(i, true, sent[i]);
    }
    for (GlooRequest& request : requests) finish_proof(request, left, place.watch.get());
    for (std::size_t i = 0; i < count; ++i) {
      const int peer = others_[i / on.size()];
      if (!same_secret(view(received[i]), view(proof(peer, rank_, i % on.size()))))
        throw CommError(fmt::format("init_process_group: gloo: an unauthenticated peer answered for rank {}", peer));
    }
  }

  // gloo does not complete a send whose connection ends meanwhile, so this checks the watch and the deadline.
  void finish_proof(GlooRequest& request, const TimeLeft& left, FormationWatch* watch) {
    const auto fail = [&](const std::string& why) {
      return fmt::format("init_process_group: gloo: rank {} does not prove who it is: {}", request.peer(), why);
    };
    Deadline deadline(left());
    try {
      while (!finish(request, &deadline)) {
        if (watch) watch->check();
        if (deadline.passed()) throw CommTimeout(fail("it does not answer in time"));
      }
    } catch (const PeerLost& lost) {
      throw CommError(fail(lost.why));
    }
  }

  int rank_;
  std::vector<int> others_;  // all ranks but this one
  // gloo does not send and receive on one connection at the same time, so with few ranks results and operands have
  // separate connections.
  std::shared_ptr<Mesh> data_, reports_, results_;
  Alarm alarm_;
  char never_ = 0;
  std::mutex watches_mutex_;
  std::vector<std::unique_ptr<GlooRequest>> watches_;  // by peer
};

std::unique_ptr<Backend> make_gloo(const InitOptions& options, const Rendezvous& place) {
  LOCKSTEP_CHECK(place.store, "init_process_group: the backend gloo needs a store; use env://");
  try {
    return std::make_unique<MessageGroup>(options, place, std::make_unique<GlooTransport>(options, place));
  } catch (const gloo::Exception& error) {
    throw CommError(fmt::format("init_process_group: gloo could not connect rank {} with the others: {}", place.rank,
                                error.what()));
  }
}

constexpr BackendModule kGlooModule{.version = LOCKSTEP_VERSION, .make = make_gloo, .needs = {.network_address = true}};

}  // namespace
}  // namespace lockstep::parallel

extern "C" const lockstep::parallel::BackendModule* lockstep_backend_gloo();
const lockstep::parallel::BackendModule* lockstep_backend_gloo() { return &lockstep::parallel::kGlooModule; }
