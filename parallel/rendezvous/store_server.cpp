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
#include <system_error>
#include <vector>

#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_frames_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::parallel {

namespace {

constexpr std::chrono::milliseconds kAcceptPause{10};
constexpr std::size_t kKeptBuffer = 64 << 10;  // a larger one gives its memory back

struct Connection {
  Connection(Descriptor accepted, std::unique_ptr<Handshake> with)
      : socket(std::move(accepted)), handshake(std::move(with)) {}

  Descriptor socket;
  std::unique_ptr<Handshake> handshake;  // until it is known
  std::optional<FrameGuard> guard;
  bool ending = false;  // closes when `out` has gone
  bool dead = false;
  Deadline hello_until{kHandshakeDeadline};
  std::string in, out;
  std::size_t sent = 0;                 // of `out`
  std::optional<StoreRequest> waiting;  // the request that waits for its keys
  std::vector<std::string> will_keys;
  std::string will_value;

  bool is_known() const { return !handshake; }
  bool is_busy() const { return waiting || !out.empty(); }  // nothing is read until it has its answer
};

bool is_stranger(const std::unique_ptr<Connection>& peer) { return !peer->is_known(); }

}  // namespace

// --- the thread's loop --------------------------------------------------------------------------------------------------

// One thread does everything here, except for `stop`.
class StoreServer::Loop {
 public:
  Loop(Descriptor listener, std::unique_ptr<StoreGate> gate)
      : listener_(std::move(listener)), gate_(std::move(gate)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_) reserve_spare();
    if (!wake_ || !spare_) throw CommError(fmt::format("store: no descriptors for its thread: {}", reason(errno)));
  }

  void run() {
    while (!stop_.load()) turn(next_timeout());
    turn(0);  // what has arrived is answered
  }

  void close() {
    peers_.clear();
    listener_.reset();
  }

  void stop() {
    stop_.store(true);
    const std::uint64_t one = 1;
    static_cast<void>(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));  // full means it wakes anyway
  }

 private:
  void turn(int timeout);
  int next_timeout() const;
  void accept_all();
  void reserve_spare() { spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  void refuse_one(int error);
  void limit_strangers();
  // False: there is none. `shortage` is told to the one that is dropped, where it is not empty.
  bool drop_oldest_stranger(const std::string& why, const std::string& shortage = "");
  void sweep();

  void read(Connection& peer);
  void take_frame(Connection& peer);
  void take_greeting(Connection& peer);
  void turn_away(Connection& peer, const std::string& why);
  void take_request(Connection& peer, StoreRequest request);
  std::optional<std::string> execute(Connection& peer, const StoreRequest& request);
  void answer(Connection& peer, StoreStatus status, const std::vector<std::string>& fields = {});
  void send(Connection& peer, std::string bytes);
  void flush(Connection& peer);
  void changed(const std::string& key);

  Descriptor listener_;
  std::unique_ptr<StoreGate> gate_;
  Descriptor wake_;
  Descriptor spare_;  // given up for a moment when descriptors run out, to accept a connection and refuse it
  std::optional<Deadline> pause_;  // nobody is let in before it: descriptors or memory ran out
  std::atomic<bool> stop_{false};
  const std::string name_ = std::string(view(random_digest()));
  StoreTable table_;
  std::vector<std::unique_ptr<Connection>> peers_;  // in the order they came
  std::vector<pollfd> polled_;
};

void StoreServer::Loop::turn(int timeout) {
  polled_.clear();
  polled_.push_back({wake_.get(), POLLIN, 0});
  if (pause_ && pause_->passed()) pause_.reset();
  polled_.push_back({listener_.get(), static_cast<short>(pause_ ? 0 : POLLIN), 0});
  for (const auto& peer : peers_) {
    const int events = !peer->out.empty() ? POLLOUT : !peer->waiting ? POLLIN : POLLRDHUP;
    polled_.push_back({peer->socket.get(), static_cast<short>(events), 0});
  }
  if (::poll(polled_.data(), polled_.size(), timeout) < 0) return;  // EINTR, or no memory for a moment

  const std::size_t known = peers_.size();
  for (std::size_t i = 0; i < known; ++i) {
    Connection& peer = *peers_[i];
    const short events = polled_[i + 2].revents;
    if (events & POLLOUT) flush(peer);
    if (events & POLLIN) {
      read(peer);
    } else if (events & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) {  // TCP does not tell half from wholly closed
      peer.dead = true;
    }
    if (!peer.is_known() && peer.hello_until.passed()) turn_away(peer, "it did not say in time who it is");
  }
  sweep();
  if (polled_[1].revents & POLLIN) accept_all();
}

// Until the first stranger's time is over, or the pause; for ever where there is neither.
int StoreServer::Loop::next_timeout() const {
  if (pause_) return static_cast<int>(kAcceptPause.count());
  for (const auto& peer : peers_) {
    if (!peer->is_known()) return static_cast<int>(Deadline(peer->hello_until).slice().count());
  }
  return -1;
}

void StoreServer::Loop::accept_all() {
  for (;;) {
    Descriptor socket(
        uninterrupted([&] { return ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (!socket && errno == ECONNABORTED) continue;
    // The connection that has been idle longest is the least likely to hold the token.
    if (!socket && is_out_of_descriptors(errno) && drop_oldest_stranger("descriptors ran out", reason(errno))) continue;
    if (!socket) return refuse_one(errno);
    if (auto handshake = gate_->greet(socket))
      peers_.push_back(std::make_unique<Connection>(std::move(socket), std::move(handshake)));
    limit_strangers();
  }
}

// Out of descriptors or memory: the first connection in the queue is told so instead of waiting until its
// deadline.
void StoreServer::Loop::refuse_one(int error) {
  const std::string why = reason(error);
  spare_.reset();
  Descriptor refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (refused) gate_->refuse(refused, why);
  refused.reset();  // its descriptor becomes the spare one again
  reserve_spare();
  try {
    warn("store: refused", fmt::format("store: this process cannot accept the connection of a rank: {}", why));
  } catch (...) {
    // A handler of the program's must not end the store.
  }
  pause_.emplace(kAcceptPause);
}

void StoreServer::Loop::limit_strangers() {
  const auto strangers = std::ranges::count_if(peers_, is_stranger);
  if (strangers > static_cast<std::ptrdiff_t>(kMaxUnauthenticated))
    drop_oldest_stranger("too many connections have not said who they are");
}

bool StoreServer::Loop::drop_oldest_stranger(const std::string& why, const std::string& shortage) {
  const auto oldest = std::ranges::find_if(peers_, is_stranger);
  if (oldest == peers_.end()) return false;
  if (!shortage.empty()) gate_->refuse((*oldest)->socket, shortage);
  turn_away(**oldest, why);
  peers_.erase(oldest);
  return true;
}

// Removes the dead and carries out their wills, which can wake others, whose sockets can turn out dead.
void StoreServer::Loop::sweep() {
  for (std::size_t i = 0; i < peers_.size();) {
    if (!peers_[i]->dead) {
      ++i;
      continue;
    }
    const std::unique_ptr<Connection> peer = std::move(peers_[i]);
    peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    for (const std::string& key : table_.set_missing(peer->will_keys, peer->will_value)) changed(key);
    if (!peer->will_keys.empty()) i = 0;
  }
}

// --- one peer -----------------------------------------------------------------------------------------------------------

// A frame, then what else is to be done: poll tells of more.
void StoreServer::Loop::read(Connection& peer) {
  const std::size_t most = peer.is_known() ? kMaxFrame + kFrameHeader + FrameGuard::kTrailer - peer.in.size()
                                           : peer.handshake->wanted(peer.in.size());
  const Transmission transfer = receive_some(peer.socket, peer.in, most);
  if (transfer == Transmission::kClosed) peer.dead = true;
  if (transfer != Transmission::kDone) return;
  try {
    peer.is_known() ? take_frame(peer) : take_greeting(peer);
  } catch (const CommError& error) {  // a stranger learns nothing, nor does who forges a frame
    turn_away(peer, error.what());
  } catch (const IoError& error) {
    if (!peer.is_known()) return turn_away(peer, error.what());
    peer.ending = true;
    answer(peer, StoreStatus::kMalformed, {error.what()});
  }
}

void StoreServer::Loop::turn_away(Connection& peer, const std::string& why) {
  peer.dead = true;
  gate_->turned_away(peer.socket, why);
}

void StoreServer::Loop::take_greeting(Connection& peer) {
  Handshake::Step step = peer.handshake->take(peer.in);
  if (step.state == Handshake::State::kKnown) {
    peer.handshake.reset();
    peer.guard = std::move(step.guard);
  }
  peer.ending = step.state == Handshake::State::kRefused;
  if (!step.reply.empty()) send(peer, std::move(step.reply));
}

// A client waits for the answer before it asks again, so nothing may follow a frame.
void StoreServer::Loop::take_frame(Connection& peer) {
  const auto content = first_opened(peer.guard, peer.in, kMaxFrame);
  if (!content) return;
  const std::size_t whole = static_cast<std::size_t>(content->data() - peer.in.data()) + content->size() +
                            (peer.guard ? FrameGuard::kTrailer : 0);
  if (peer.in.size() > whole) throw IoError(fmt::format("store: {} bytes follow a frame", peer.in.size() - whole));
  StoreMessage message = read_message(*content);
  peer.in.clear();
  if (peer.in.capacity() > kKeptBuffer) peer.in = {};
  take_request(peer, to_request(message.code, std::move(message.fields)));
}

void StoreServer::Loop::take_request(Connection& peer, StoreRequest request) {
  try {
    check_store_request(request);
    const auto result = execute(peer, request);
    if (!result) {
      peer.waiting = std::move(request);
      return;
    }
    answer(peer, StoreStatus::kDone, {*result});
  } catch (const InvalidArgument& error) {
    return answer(peer, StoreStatus::kInvalid, {error.what()});
  }
  if (changes_table(request.op)) changed(request.keys.at(0));
}

std::optional<std::string> StoreServer::Loop::execute(Connection& peer, const StoreRequest& request) {
  if (request.op == StoreOp::kServerId) return name_;
  if (request.op != StoreOp::kLastWill) return table_.execute(request);
  peer.will_keys = request.keys;
  peer.will_value = request.values.at(0);
  return "";
}

void StoreServer::Loop::answer(Connection& peer, StoreStatus status, const std::vector<std::string>& fields) {
  std::string reply = frame(status, fields);
  if (peer.guard) peer.guard->seal(reply);
  send(peer, std::move(reply));
}

void StoreServer::Loop::send(Connection& peer, std::string bytes) {
  peer.out = std::move(bytes);
  peer.sent = 0;
  flush(peer);
}

void StoreServer::Loop::flush(Connection& peer) {
  const Transmission transfer = send_some(peer.socket, peer.out, peer.sent);
  if (transfer == Transmission::kWouldBlock) return;
  peer.out = {};
  peer.dead = peer.dead || peer.ending || transfer == Transmission::kClosed;
}

// Answers the requests that waited for the key, and for no other.
void StoreServer::Loop::changed(const std::string& key) {
  for (const auto& peer : peers_) {
    if (!peer->waiting || std::ranges::find(peer->waiting->keys, key) == peer->waiting->keys.end()) continue;
    if (const auto result = table_.execute(*peer->waiting)) {
      peer->waiting.reset();
      answer(*peer, StoreStatus::kDone, {*result});
    }
  }
}

// --- the server ---------------------------------------------------------------------------------------------------------

// Its thread takes no signals: they are for the program's own threads.
StoreServer::StoreServer(Descriptor listener, std::unique_ptr<StoreGate> gate)
    : loop_(std::make_unique<Loop>(std::move(listener), std::move(gate))) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::exception_ptr failure;
  try {
    thread_ = std::thread([this] {
      try {
        loop_->run();
      } catch (const std::exception&) {
        // Out of memory. Closing all connections tells every rank.
      }
      loop_->close();
    });
  } catch (const std::system_error& error) {
    failure = std::make_exception_ptr(CommError(fmt::format("store: cannot start its thread: {}", error.what())));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure) std::rethrow_exception(failure);
}

StoreServer::~StoreServer() {
  loop_->stop();
  thread_.join();
}

}  // namespace lockstep::parallel
