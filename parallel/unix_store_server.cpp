#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <system_error>

#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/store_table_internal.h"
#include "lockstep/parallel/unix_store.h"
#include "lockstep/tensor/byte_reader.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

struct Connection {
  explicit Connection(Descriptor accepted) : socket(std::move(accepted)) {}

  Descriptor socket;
  bool known = false;   // has said hello
  bool ending = false;  // closes when `out` has gone
  bool dead = false;
  Deadline hello_until{kHandshakeDeadline};
  std::string in, out;
  std::size_t sent = 0;              // of `out`
  std::vector<std::string> awaited;  // the keys its get or wait still waits for
  bool wants_value = false;          // a get, not a wait
  std::vector<std::string> will_keys;
  std::string will_value;

  bool is_busy() const { return !awaited.empty() || !out.empty(); }  // nothing is read until it has its answer
};

// Fields of a message whose number is fixed.
void expect_fields(const StoreMessage& message, std::size_t count) {
  if (message.fields.size() != count)
    throw IoError(fmt::format("store: operation {} has {} fields, not {}", message.code, message.fields.size(), count));
}

std::int64_t to_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw IoError(fmt::format("store: add: the amount {} is not a number", quoted(text)));
  return value;
}

}  // namespace

// --- the thread's loop --------------------------------------------------------------------------------------------------

// One thread does everything here, except for `stop`.
class UnixStoreServer::Loop {
 public:
  Loop(Descriptor listener, const JobId& job, int size)
      : listener_(std::move(listener)), job_(job), size_(size), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw CommError(fmt::format("store: no descriptor for its thread: {}", reason(errno)));
    reserve_spare();
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
  void limit_strangers();
  void sweep();

  void read(Connection& peer);
  void take_frame(Connection& peer);
  void take_hello(Connection& peer, const StoreHello& hello);
  void take_message(Connection& peer, StoreMessage message);
  void send(Connection& peer, std::string bytes);
  void flush(Connection& peer);
  void answer_if_there(Connection& peer);
  void changed(const std::string& key);

  Descriptor listener_;
  JobId job_;
  int size_;
  Descriptor wake_;
  Descriptor spare_;  // given up for a moment when descriptors run out, to be able to turn a peer away
  std::atomic<bool> stop_{false};
  StoreTable table_;
  std::vector<std::unique_ptr<Connection>> peers_;  // in the order they came
  std::vector<pollfd> polled_;
};

void UnixStoreServer::Loop::turn(int timeout) {
  polled_.clear();
  polled_.push_back({wake_.get(), POLLIN, 0});
  polled_.push_back({listener_.get(), POLLIN, 0});
  for (const auto& peer : peers_) {
    const int events = !peer->out.empty() ? POLLOUT : peer->awaited.empty() ? POLLIN : 0;
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
    } else if (events & (POLLHUP | POLLERR | POLLNVAL)) {
      peer.dead = true;
    }
    if (!peer.known && peer.hello_until.passed()) peer.dead = true;
  }
  sweep();
  if (polled_[1].revents & POLLIN) accept_all();
}

// Until the first stranger's time is over; for ever where there is none.
int UnixStoreServer::Loop::next_timeout() const {
  for (const auto& peer : peers_) {
    if (!peer->known) return static_cast<int>(Deadline(peer->hello_until).slice().count());
  }
  return -1;
}

void UnixStoreServer::Loop::accept_all() {
  for (;;) {
    Descriptor socket(
        uninterrupted([&] { return ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
    if (!socket && (errno == EMFILE || errno == ENFILE) && spare_) {
      spare_.reset();
      const Descriptor refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      reserve_spare();
      return;
    }
    if (!socket) return;
    if (!is_trusted(peer_of(socket))) continue;  // closed, without a word
    peers_.push_back(std::make_unique<Connection>(std::move(socket)));
    limit_strangers();
  }
}

void UnixStoreServer::Loop::limit_strangers() {
  const auto is_stranger = [](const auto& peer) { return !peer->known; };
  if (std::count_if(peers_.begin(), peers_.end(), is_stranger) > static_cast<std::ptrdiff_t>(kMaxUnauthenticated))
    peers_.erase(std::find_if(peers_.begin(), peers_.end(), is_stranger));
}

// Removes the dead and carries out their wills, which can wake others, whose sockets can turn out dead.
void UnixStoreServer::Loop::sweep() {
  for (std::size_t i = 0; i < peers_.size();) {
    if (!peers_[i]->dead) {
      ++i;
      continue;
    }
    const std::unique_ptr<Connection> peer = std::move(peers_[i]);
    peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    for (const std::string& key : peer->will_keys) {
      if (table_.find(key) || !table_.has_room(key, peer->will_value)) continue;
      table_.set(key, peer->will_value);
      changed(key);
    }
    if (!peer->will_keys.empty()) i = 0;
  }
}

// --- one peer -----------------------------------------------------------------------------------------------------------

void UnixStoreServer::Loop::read(Connection& peer) {
  Transfer transfer = Transfer::kDone;
  while (transfer == Transfer::kDone && !peer.dead && !peer.ending && !peer.is_busy()) {
    const std::size_t most = peer.known ? kMaxFrame + kFrameHeader : kMaxHelloBytes;
    transfer = receive_some(peer.socket, peer.in, most - peer.in.size());
    try {
      take_frame(peer);
    } catch (const IoError& error) {
      // A stranger learns nothing.
      if (peer.known) send(peer, frame(StoreStatus::kMalformed, {error.what()}));
      peer.ending = true;
      peer.dead = !peer.known || peer.out.empty();
    }
  }
  if (transfer == Transfer::kClosed) peer.dead = true;
}

// A client waits for the answer before it asks again, so nothing may follow a frame.
void UnixStoreServer::Loop::take_frame(Connection& peer) {
  const std::size_t most = peer.known ? kMaxFrame : kMaxHelloBytes - kFrameHeader;
  const auto content = first_frame(peer.in, most);
  if (!content) return;
  if (peer.in.size() > kFrameHeader + content->size())
    throw IoError(fmt::format("store: {} bytes follow a frame", peer.in.size() - kFrameHeader - content->size()));
  if (peer.known) {
    StoreMessage message = read_message(*content);
    peer.in = {};  // a large one gives its memory back
    take_message(peer, std::move(message));
  } else {
    const StoreHello hello = read_hello(*content);
    peer.in.clear();
    take_hello(peer, hello);
  }
}

void UnixStoreServer::Loop::take_hello(Connection& peer, const StoreHello& hello) {
  if (hello.version == StoreHello::kVersion && hello.job == job_ && hello.size == static_cast<std::uint32_t>(size_) &&
      hello.rank < hello.size) {
    peer.known = true;
    return send(peer, frame(StoreStatus::kWelcome));
  }
  peer.ending = true;
  if (hello.version != StoreHello::kVersion)
    return send(peer, frame(StoreStatus::kOtherVersion, {std::to_string(StoreHello::kVersion)}));
  if (hello.job == job_) return send(peer, frame(StoreStatus::kOtherSize, {std::to_string(size_)}));
  send(peer, frame(StoreStatus::kOtherJob));
}

void UnixStoreServer::Loop::take_message(Connection& peer, StoreMessage message) {
  std::vector<std::string>& fields = message.fields;
  const auto done = [&](std::vector<std::string> result) { send(peer, frame(StoreStatus::kDone, result)); };
  try {
    switch (static_cast<StoreOp>(message.code)) {
      case StoreOp::kSet:
        expect_fields(message, 2);
        table_.set(fields[0], fields[1]);
        done({});
        return changed(fields[0]);
      case StoreOp::kGet:
        expect_fields(message, 1);
        [[fallthrough]];
      case StoreOp::kWait:
        check_store_keys(fields);
        peer.wants_value = static_cast<StoreOp>(message.code) == StoreOp::kGet;
        peer.awaited = std::move(fields);
        return answer_if_there(peer);
      case StoreOp::kAdd:
        expect_fields(message, 2);
        done({std::to_string(table_.add(fields[0], to_number(fields[1])))});
        return changed(fields[0]);
      case StoreOp::kCompareSet:
        expect_fields(message, 3);
        done({table_.compare_set(fields[0], fields[1], fields[2])});
        return changed(fields[0]);
      case StoreOp::kDelete:
        expect_fields(message, 1);
        return done({table_.delete_key(fields[0]) ? "1" : "0"});
      case StoreOp::kWill:
        if (fields.empty()) throw IoError("store: a will without its value");
        check_store_keys(fields);
        peer.will_value = std::move(fields[0]);
        peer.will_keys.assign(fields.begin() + 1, fields.end());
        return done({});
    }
  } catch (const InvalidArgument& error) {
    return send(peer, frame(StoreStatus::kInvalid, {error.what()}));
  }
  throw IoError(fmt::format("store: there is no operation {}", message.code));
}

void UnixStoreServer::Loop::send(Connection& peer, std::string bytes) {
  peer.out = std::move(bytes);
  peer.sent = 0;
  flush(peer);
}

void UnixStoreServer::Loop::flush(Connection& peer) {
  const Transfer transfer = send_some(peer.socket, peer.out, peer.sent);
  if (transfer == Transfer::kWouldBlock) return;
  peer.out = {};
  peer.dead = peer.dead || peer.ending || transfer == Transfer::kClosed;
}

void UnixStoreServer::Loop::answer_if_there(Connection& peer) {
  if (table_.first_missing(peer.awaited)) return;
  const std::vector<std::string> keys = std::exchange(peer.awaited, {});
  if (peer.wants_value) {
    send(peer, frame(StoreStatus::kDone, {*table_.find(keys.at(0))}));
  } else {
    send(peer, frame(StoreStatus::kDone));
  }
}

void UnixStoreServer::Loop::changed(const std::string& key) {
  for (const auto& peer : peers_) {
    const auto& awaited = peer->awaited;
    if (std::find(awaited.begin(), awaited.end(), key) != awaited.end()) answer_if_there(*peer);
  }
}

// --- the server ---------------------------------------------------------------------------------------------------------

// Its thread takes no signals: they are for the program's own threads.
UnixStoreServer::UnixStoreServer(Descriptor listener, const JobId& job, int size)
    : loop_(std::make_unique<Loop>(std::move(listener), job, size)) {
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

UnixStoreServer::~UnixStoreServer() {
  loop_->stop();
  thread_.join();
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
