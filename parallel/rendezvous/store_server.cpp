#include "lockstep/parallel/rendezvous/store_server_internal.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::chrono::milliseconds kAcceptPause{10};
constexpr std::chrono::milliseconds kUntilMade{
    1000};                                     // for the other ranks, to make a group that this process has made
constexpr std::size_t kKeptBuffer = 64 << 10;  // a larger buffer is freed after use

struct Connection {
  std::unique_ptr<Stream> stream;
  bool is_known = false;  // a valid hello has arrived
  bool ending = false;    // closes when `out` has been sent
  bool dead = false;
  Deadline hello_until{kHandshakeDeadline};
  std::string in, out;
  std::size_t sent = 0;                 // bytes of `out` that were sent
  std::optional<StoreRequest> waiting;  // the request that waits for its keys
  std::vector<std::string> last_will_keys;
  std::string last_will_value;
};

using Peers = std::vector<std::unique_ptr<Connection>>;

bool is_unauthenticated(const std::unique_ptr<Connection>& peer) { return !peer->is_known; }

// A program's handler that throws must not end the store.
template <class... Arguments>
void try_to_warn(const Arguments&... arguments) {
  try {
    warn(arguments...);
  } catch (...) {
  }
}

}  // namespace

// --- the thread's loop ----------------------------------------------------------------------------------------------

// One thread runs all methods except `stop`, `wake` and `table`.
class StoreServer::Loop {
 public:
  Loop(Descriptor listener, StoreServerOptions options)
      : listener_(std::move(listener)), options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_) reserve_spare();
    if (!wake_ || !spare_)
      throw CommError(fmt::format("store: cannot create the descriptors of its thread: {}", reason(errno)));
  }

  void run();
  void stop() {
    stop_.store(true);
    wake();
  }
  // After a change of the table by another thread.
  void wake() {
    const std::uint64_t one = 1;
    static_cast<void>(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));  // if full, it wakes anyway
  }
  // Executes a last-will entry of another thread.
  void set_missing(const std::vector<std::string>& keys, const std::string& value) {
    has_failed_.store(true);
    table_.set_missing(keys, value);
    wake();
  }
  // Throws CommError if the thread has ended.
  SharedTable& table() {
    if (has_ended_.load()) throw CommError("store: its server in this process has ended: no memory");
    return table_;
  }

 private:
  void turn(int timeout);
  int next_timeout() const;
  // A rank has a last-will entry until it has made its group.
  bool serves_formation() const {
    return std::ranges::any_of(peers_, [](const auto& peer) { return !peer->last_will_keys.empty(); });
  }
  void serve(Connection& peer, short events);
  void accept_some();
  bool accept_one();
  void reserve_spare() { spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  void refuse_one(int error);
  void send_exhausted(const Descriptor& socket, const std::string& why) const;
  // Returns false if there is none. A non-empty `shortage` is sent to the dropped peer.
  bool drop_unauthenticated(const std::string& why, const std::string& shortage = "");
  void sweep();

  void read(Connection& peer);
  void take_frame(Connection& peer, std::string_view content);
  void take_hello(Connection& peer, std::string_view content);
  void reject(Connection& peer, const std::string& why);
  std::optional<std::string> execute(Connection& peer, const StoreRequest& request);
  void answer(Connection& peer, StoreStatus status, const std::vector<std::string>& fields = {});
  void flush(Connection& peer);
  void answer_waiting();

  Descriptor listener_;
  StoreServerOptions options_;
  Descriptor wake_;
  Descriptor spare_;               // released briefly when descriptors run out, to accept and reject a connection
  std::optional<Deadline> pause_;  // no connection is accepted before it ends: descriptors or memory ran out
  std::atomic<bool> stop_{false}, has_ended_{false};
  std::atomic<bool> has_failed_{false};  // whether this process has sent its error in the rendezvous
  const std::string id_ = random_hex(kDigestBytes);
  SharedTable table_;
  std::uint64_t seen_changes_ = 0;  // changes of the table after which waiting requests were tried
  Peers peers_;                     // in the order in which they connected
  bool has_warned_ = false;         // whether a warning of a rejected connection was printed
  std::vector<pollfd> polled_;
};

void StoreServer::Loop::run() {
  try {
    while (!stop_.load()) turn(next_timeout());
    // This process may end while a slow rank still makes the group, and would read here which rank has failed.
    for (Deadline deadline(kUntilMade); !has_failed_.load() && serves_formation() && !deadline.passed();)
      turn(static_cast<int>(deadline.slice().count()));
    turn(0);  // replies to the requests that have arrived
  } catch (const std::exception&) {
    // Out of memory. Closing all connections tells every rank.
  }
  has_ended_.store(true);
  peers_.clear();
  listener_.reset();
}

void StoreServer::Loop::turn(int timeout) {
  polled_.clear();
  polled_.push_back({wake_.get(), POLLIN, 0});
  if (pause_ && pause_->passed()) pause_.reset();
  polled_.push_back({listener_.get(), static_cast<short>(pause_ ? 0 : POLLIN), 0});
  for (const auto& peer : peers_) {  // a peer is not read until it has received its reply
    const int wanted = !peer->out.empty() ? POLLOUT : !peer->waiting ? POLLIN : POLLRDHUP;
    polled_.push_back({peer->stream->socket().get(), peer->stream->events(static_cast<short>(wanted)), 0});
  }
  if (::poll(polled_.data(), polled_.size(), timeout) < 0) return;  // EINTR, or temporarily no memory

  const std::size_t present = peers_.size();
  for (std::size_t i = 0; i < present; ++i) serve(*peers_[i], polled_[i + 2].revents);
  sweep();
  std::uint64_t count = 0;
  if (polled_[0].revents & POLLIN) static_cast<void>(::read(wake_.get(), &count, sizeof(count)) == sizeof(count));
  answer_waiting();
  if (polled_[1].revents & POLLIN) accept_some();
}

void StoreServer::Loop::serve(Connection& peer, short events) {
  if (events & POLLOUT) flush(peer);
  if (events & POLLIN) {
    read(peer);
  } else if (events & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) {  // on TCP also half-closed
    peer.dead = true;
  }
  if (!peer.is_known && !peer.dead && peer.hello_until.passed()) reject(peer, "it did not authenticate itself in time");
}

// Milliseconds until the first unauthenticated peer times out, or the pause ends; -1 if there is neither.
int StoreServer::Loop::next_timeout() const {
  if (pause_) return static_cast<int>(kAcceptPause.count());
  for (const auto& peer : peers_) {
    if (!peer->is_known) return static_cast<int>(Deadline(peer->hello_until).slice().count());
  }
  return -1;
}

// Accepts waiting connections up to a limit, so that existing clients are served during a flood.
void StoreServer::Loop::accept_some() {
  for (std::size_t i = 0; i < kMaxAccepted && accept_one();) ++i;
}

// Returns false if no connection waits, or none can be accepted at present.
bool StoreServer::Loop::accept_one() {
  Descriptor socket(
      uninterrupted([&] { return ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
  if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (!socket && errno == ECONNABORTED) return true;
  if (!socket && is_out_of_descriptors(errno) && drop_unauthenticated("descriptors ran out", reason(errno)))
    return true;
  if (!socket) {
    refuse_one(errno);
    return false;
  }
  if (options_.is_one_host && !is_trusted(peer_of(socket))) return true;
  if (!options_.is_one_host) tune_tcp(socket);
  auto stream = options_.tls ? options_.tls->stream(std::move(socket), TlsRole::kServer)
                             : std::make_unique<Stream>(std::move(socket));
  peers_.push_back(std::make_unique<Connection>());
  peers_.back()->stream = std::move(stream);
  read(*peers_.back());  // reads its first bytes before another connection can replace it
  if (peers_.back()->dead) peers_.pop_back();
  if (std::ranges::count_if(peers_, is_unauthenticated) > static_cast<std::ptrdiff_t>(kMaxUnauthenticated))
    drop_unauthenticated("too many connections have not authenticated themselves");
  return true;
}

// Out of descriptors or memory: sends the reason to the first connection in the queue, which would otherwise wait
// until its deadline.
void StoreServer::Loop::refuse_one(int error) {
  const std::string why = reason(error);
  spare_.reset();
  Descriptor refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (refused) send_exhausted(refused, why);
  refused.reset();  // its descriptor becomes the spare one
  reserve_spare();
  try_to_warn("store: refused", fmt::format("store: this process cannot accept the connection of a rank: {}", why));
  pause_.emplace(kAcceptPause);
}

// Over TCP the reason is not sent, as the peer is unauthenticated.
void StoreServer::Loop::send_exhausted(const Descriptor& socket, const std::string& why) const {
  std::size_t sent = 0;  // a few bytes always fit into a new socket's buffer
  if (options_.is_one_host && is_trusted(peer_of(socket)))
    static_cast<void>(send_some(socket, frame(StoreStatus::kExhausted, {why}), sent));
}

bool StoreServer::Loop::drop_unauthenticated(const std::string& why, const std::string& shortage) {
  auto oldest = std::ranges::find_if(
      peers_, [](const auto& peer) { return is_unauthenticated(peer) && !peer->stream->has_proof(); });
  if (oldest == peers_.end()) oldest = std::ranges::find_if(peers_, is_unauthenticated);
  if (oldest == peers_.end()) return false;
  if (!shortage.empty()) send_exhausted((*oldest)->stream->socket(), shortage);
  reject(**oldest, why);
  peers_.erase(oldest);
  return true;
}

// Removes dead peers and executes their last-will entries, whose replies can reveal further dead peers.
void StoreServer::Loop::sweep() {
  for (;;) {
    const auto at = std::ranges::find_if(peers_, [](const auto& peer) { return peer->dead; });
    if (at == peers_.end()) return;
    const std::unique_ptr<Connection> peer = std::move(*at);
    peers_.erase(at);
    table_.set_missing(peer->last_will_keys, peer->last_will_value);
    answer_waiting();
  }
}

// --- one peer -------------------------------------------------------------------------------------------------------

// Handles one frame. A client waits for the reply before it sends another, so no bytes may follow.
void StoreServer::Loop::read(Connection& peer) {
  const std::size_t most = peer.is_known ? kMaxFrame : kMaxHelloBytes;
  try {
    const Transmission transfer = peer.stream->receive(peer.in, kFrameHeader + most + 1 - peer.in.size());
    if (transfer == Transmission::kClosed) peer.dead = true;
    if (transfer != Transmission::kDone) return;
    const auto content = first_frame(peer.in, most);
    if (!content) return;
    if (peer.in.size() > kFrameHeader + content->size()) throw IoError("store: more bytes follow a frame");
    peer.is_known ? take_frame(peer, *content) : take_hello(peer, *content);
  } catch (const CommError& error) {  // no reply to a peer whose bytes are not a client's
    reject(peer, error.what());
  } catch (const IoError& error) {
    if (!peer.is_known) return reject(peer, error.what());
    peer.ending = true;
    answer(peer, StoreStatus::kMalformed, {error.what()});
  }
}

void StoreServer::Loop::reject(Connection& peer, const std::string& why) {
  peer.dead = true;
  if (options_.is_one_host || std::exchange(has_warned_, true)) return;
  try_to_warn("TcpStore: rejected",
              fmt::format("store: {}: rejected a connection from {}: {}", address_of(listener_).to_string(),
                          peer_address_of(peer.stream->socket()).to_string(), why),
              /*limit=*/1);
}

void StoreServer::Loop::take_hello(Connection& peer, std::string_view content) {
  const StoreHello hello = read_hello(content);
  peer.in.clear();
  const bool is_version = hello.version == StoreHello::kVersion;
  peer.is_known = is_version && hello.job == options_.job;
  peer.ending = !peer.is_known;
  if (!is_version) return answer(peer, StoreStatus::kOtherVersion, {std::to_string(StoreHello::kVersion)});
  if (!peer.is_known) return answer(peer, StoreStatus::kOtherJob);
  answer(peer, StoreStatus::kAccepted, {id_});
}

void StoreServer::Loop::take_frame(Connection& peer, std::string_view content) {
  StoreMessage message = read_message(content);
  peer.in.clear();
  if (peer.in.capacity() > kKeptBuffer) peer.in = {};
  StoreRequest request = to_request(message.code, std::move(message.fields));
  try {
    check_store_request(request);
    if (const auto result = execute(peer, request)) {
      answer(peer, StoreStatus::kDone, {*result});
    } else {
      peer.waiting = std::move(request);
    }
  } catch (const InvalidArgument& error) {
    answer(peer, StoreStatus::kInvalid, {error.what()});
  }
  answer_waiting();
}

std::optional<std::string> StoreServer::Loop::execute(Connection& peer, const StoreRequest& request) {
  if (request.op != StoreOp::kLastWill) return table_.execute(request);
  peer.last_will_keys = request.keys;
  peer.last_will_value = request.values.at(0);
  return "";
}

void StoreServer::Loop::answer(Connection& peer, StoreStatus status, const std::vector<std::string>& fields) {
  peer.out = frame(status, fields);
  peer.sent = 0;
  flush(peer);
}

void StoreServer::Loop::flush(Connection& peer) {
  try {
    const Transmission transfer = peer.stream->send(peer.out, peer.sent);
    if (transfer == Transmission::kWouldBlock) return;
    peer.out = {};
    peer.dead = peer.dead || peer.ending || transfer == Transmission::kClosed;
  } catch (const CommError&) {
    peer.dead = true;
  }
}

// Replies to the waiting requests whose keys exist, if the table has changed.
void StoreServer::Loop::answer_waiting() {
  const std::uint64_t changes = table_.changes();
  if (changes == seen_changes_) return;
  seen_changes_ = changes;
  for (const auto& peer : peers_) {
    if (!peer->waiting) continue;
    if (const auto result = table_.execute(*peer->waiting)) {
      peer->waiting.reset();
      answer(*peer, StoreStatus::kDone, {*result});
    }
  }
}

// --- the server -----------------------------------------------------------------------------------------------------

StoreServer::StoreServer(Descriptor listener, StoreServerOptions options)
    : loop_(std::make_shared<Loop>(std::move(listener), std::move(options))) {
  try {
    thread_ = std::thread([loop = loop_] {
      sigset_t all;  // signals are for the program's own threads
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      loop->run();
    });
  } catch (const std::system_error& error) {
    throw CommError(fmt::format("store: cannot start its thread: {}", error.what()));
  }
}

StoreServer::~StoreServer() {
  loop_->stop();
  thread_.join();
}

std::string StoreServer::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  std::string result = loop_->table().request(request, timeout);
  loop_->wake();
  return result;
}

std::unique_ptr<LastWill> StoreServer::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  return std::make_unique<ThreadLastWill>(
      keys, value, [loop = loop_](const auto& missing, const auto& text) { loop->set_missing(missing, text); });
}

}  // namespace lockstep::parallel
