// Peers of a store that do what they like: with and without the token, and with a hand in the bytes of others.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "tests/parallel/rendezvous/store_support.h"

inline par::TcpCredentials credentials_for(int port, const par::TcpStoreOptions& options = tcp_options(false)) {
  return par::make_credentials(options, port);
}

inline par::ConnectOutcome outcome_at(int port, const par::TcpCredentials& credentials) {
  return par::connect_tcp_store(par::resolve("127.0.0.1", port).at(0), credentials,
                                par::Deadline(std::chrono::seconds(30)))
      .outcome;
}

// One that sends any bytes, and reads what comes back: over TCP, or from a Unix socket.
class RawPeer {
 public:
  explicit RawPeer(int port, const char* host = "127.0.0.1") : stream_(connect(port, host)) {}
  explicit RawPeer(const std::string& socket) : stream_(par::connect_abstract(socket)) { REQUIRE(stream_.socket()); }

  // A server that has closed loses the rest.
  void say(const std::string& bytes) {
    par::Deadline deadline(std::chrono::seconds(30));
    REQUIRE(par::send_all(stream_, bytes, deadline) != par::Transmission::kWouldBlock);
  }
  // `count` bytes, or fewer where the server closes.
  std::string hear(std::size_t count) {
    std::string bytes;
    par::Deadline deadline(std::chrono::seconds(30));
    par::Transmission transfer = par::Transmission::kDone;
    while (bytes.size() < count && transfer == par::Transmission::kDone)
      transfer = par::read_some(stream_, bytes, count - bytes.size(), deadline);
    REQUIRE(transfer != par::Transmission::kWouldBlock);
    return bytes;
  }
  std::string hear_all() { return hear(1 << 20); }
  par::StoreMessage answer() {
    std::string bytes = hear(par::kFrameHeader);
    while (!par::first_frame(bytes, 1 << 20)) {
      const std::string next = hear(1);
      REQUIRE(!next.empty());
      bytes += next;
    }
    return par::read_message(bytes.substr(par::kFrameHeader));
  }
  void introduce(const par::JobId& job) {
    say(par::frame(par::StoreHello{.job = job}));
    REQUIRE(answer().code == static_cast<int>(par::StoreStatus::kAccepted));
  }
  bool is_closed() { return hear(1).empty(); }
  void finish() { ::shutdown(stream_.socket().get(), SHUT_WR); }
  const ls::Descriptor& socket() const { return stream_.socket(); }

  static ls::Descriptor connect(int port, const char* host = "127.0.0.1") {
    std::string error;
    par::Deadline deadline(std::chrono::seconds(30));
    ls::Descriptor socket = par::connect_tcp(par::resolve(host, port).at(0), deadline, error);
    REQUIRE_MESSAGE(socket, error);
    return socket;
  }

 private:
  par::Stream stream_;
};

// The alert that a server sends to every client whose ClientHello does not authenticate it.
inline const std::string kRefusal("\x15\x03\x03\x00\x02\x02\x28", 7);

// A client whose bytes pass through the test, which keeps them and may change them.
class Relayed {
 public:
  using Change = std::function<void(std::string& piece, std::size_t before)>;  // `before`: bytes that went this way

  Relayed(int port, const par::TcpCredentials& credentials, const char* host = "127.0.0.1")
      : server_(RawPeer::connect(port, host)), job_(credentials.id) {
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    client_ = ls::Descriptor(pair[0]);
    stream_ = credentials.tls->stream(ls::Descriptor(pair[1]), par::TlsRole::kClient);
  }

  // Whether the server has welcomed the client.
  bool say_hello() { return send(par::frame(par::StoreHello{.job = job_})) && !receive_frame().empty(); }
  // The answer to one request; empty where the connection has ended.
  std::string ask(const par::StoreRequest& request) { return send(par::frame(request)) ? receive_frame() : ""; }

  bool send(const std::string& bytes) {
    std::size_t sent = 0;
    try {
      for (;;) {
        const par::Transmission transfer = stream_->send(bytes, sent);
        bool has_moved = false;
        if (!pump(0, has_moved)) return false;
        if (transfer == par::Transmission::kDone) return true;
        if (transfer == par::Transmission::kClosed || (!has_moved && !pump(30'000, has_moved))) return false;
      }
    } catch (const lockstep::CommError& caught) {
      error = caught.what();
      return false;
    }
  }
  std::string receive_frame() {
    std::string bytes;
    try {
      while (!par::first_frame(bytes, 1 << 20)) {
        const par::Transmission transfer = stream_->receive(bytes, 1 << 20);
        if (transfer == par::Transmission::kClosed) return "";
        bool has_moved = false;
        if (transfer == par::Transmission::kWouldBlock && !pump(30'000, has_moved)) return "";
      }
    } catch (const lockstep::CommError& caught) {
      error = caught.what();
      return "";
    }
    return bytes;
  }
  // Sends bytes to the server in the client's place.
  void inject(const std::string& bytes) {
    std::size_t sent = 0;
    CHECK(par::send_some(server_, bytes, sent) != par::Transmission::kWouldBlock);
  }
  void finish() { ::shutdown(server_.get(), SHUT_WR); }
  bool is_closed() {
    pollfd ready{server_.get(), POLLIN, 0};
    std::string ignored;
    while (::poll(&ready, 1, 30'000) == 1) {
      if (par::receive_some(server_, ignored, 1 << 20) == par::Transmission::kClosed) return true;
    }
    return false;
  }

  std::string up, down;  // what has passed
  Change change_up = [](std::string&, std::size_t) {}, change_down = change_up;
  std::string error;

 private:
  // Moves what is there in both directions, after a wait for anything; false where nothing comes, or the server has closed.
  bool pump(int milliseconds, bool& has_moved) {
    pollfd ready[2] = {{server_.get(), POLLIN, 0}, {client_.get(), POLLIN, 0}};
    if (::poll(ready, 2, milliseconds) == 0) return milliseconds == 0;
    has_moved = true;
    pass(client_, server_, up, change_up);
    if (pass(server_, client_, down, change_down)) return true;
    client_.reset();
    return false;
  }
  static bool pass(const ls::Descriptor& from, const ls::Descriptor& to, std::string& passed, const Change& change) {
    std::string piece;
    const par::Transmission transfer = par::receive_some(from, piece, 1 << 20);
    if (transfer != par::Transmission::kDone) return transfer == par::Transmission::kWouldBlock;
    change(piece, passed.size());
    passed += piece;
    std::size_t sent = 0;
    par::send_some(to, piece, sent);
    return true;
  }

  ls::Descriptor server_, client_;
  par::JobId job_;
  std::unique_ptr<par::Stream> stream_;
};

// A master that answers each piece that it receives as `reply` says, one connection after another.
class FakeMaster {
 public:
  using Reply = std::function<std::string(const std::string& heard, int number)>;
  explicit FakeMaster(Reply reply) : reply_(std::move(reply)) {
    std::string error;
    listener_ = par::listen_tcp(par::resolve("127.0.0.1", 0), error);
    REQUIRE_MESSAGE(listener_, error);
    port = par::address_of(listener_).port();
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeMaster() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // ends its accept
    thread_.join();
  }
  int port = 0;

 private:
  void serve() {
    for (;;) {
      pollfd ready{listener_.get(), POLLIN, 0};
      ::poll(&ready, 1, -1);
      const ls::Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      char buffer[4096];
      for (int number = 0;; ++number) {
        const ssize_t count = ::recv(client.get(), buffer, sizeof(buffer), 0);
        if (count <= 0) break;
        const std::string answer = reply_({buffer, static_cast<std::size_t>(count)}, number);
        if (::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
      }
    }
  }

  Reply reply_;
  ls::Descriptor listener_;
  std::thread thread_;
};
