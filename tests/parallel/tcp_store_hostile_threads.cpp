// What anybody on the network can do to a TCP store and its clients, while honest clients go on.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store_internal.h"
#include "lockstep/tensor/warning.h"
#include "tests/parallel/store_support.h"

namespace ls = lockstep;
using par::Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// A peer that says what it likes.
class Stranger {
 public:
  explicit Stranger(int port) {
    std::string error;
    par::Deadline deadline(seconds(30));
    socket_ = par::connect_tcp(par::resolve("127.0.0.1", port).at(0), deadline, error);
    REQUIRE_MESSAGE(socket_, error);
  }
  void say(const std::string& bytes) {
    par::Deadline deadline(seconds(30));
    REQUIRE(par::send_all(socket_, bytes, deadline) == Outcome::kAnswered);
  }
  // `count` bytes, or fewer where the server closes.
  std::string hear(std::size_t count) {
    std::string bytes;
    par::Deadline deadline(seconds(30));
    Outcome outcome = Outcome::kAnswered;
    while (bytes.size() < count && outcome == Outcome::kAnswered)
      outcome = par::read_some(socket_, bytes, count - bytes.size(), deadline);
    REQUIRE(outcome != Outcome::kTimeout);
    return bytes;
  }
  bool is_closed() { return hear(1).empty(); }
  void finish() { REQUIRE(::shutdown(socket_.get(), SHUT_WR) == 0); }

 protected:
  par::Descriptor socket_;
};

// One that has the token, and keeps what was said.
class Insider : public Stranger {
 public:
  explicit Insider(int port, par::TcpIdentity identity = par::identity_of(tcp_options(false)))
      : Stranger(port), identity_(std::move(identity)) {
    par::TcpClientHandshake handshake(identity_);
    tell(hello = handshake.start());
    server_hello = hear(par::kTcpHelloBytes);
    std::string in = server_hello;
    tell(proof = handshake.take(in).reply);
    in = server_proof = hear(par::kDigestBytes);
    if (in.empty()) return;  // refused
    guard_ = std::move(handshake.take(in).guard);
  }
  bool is_known() const { return guard_.has_value(); }
  std::string seal(par::StoreOp op, const std::vector<std::string>& fields) {
    std::string bytes = par::frame(static_cast<std::uint8_t>(op), fields);
    guard_->seal(bytes);
    return bytes;
  }
  // A whole frame, as it came.
  std::string hear_frame() {
    std::string bytes = hear(par::kFrameHeader);
    if (bytes.size() < par::kFrameHeader) return bytes;
    const auto low = static_cast<unsigned char>(bytes[0]), high = static_cast<unsigned char>(bytes[1]);
    return bytes += hear(static_cast<std::size_t>(low + 256 * high));
  }
  par::StoreMessage answer() { return par::read_message(guard_->open(hear_frame())); }
  void tell(const std::string& bytes) {
    if (!bytes.empty()) say(bytes);
  }

  std::string hello, server_hello, proof, server_proof;

 private:
  par::TcpIdentity identity_;
  std::optional<par::FrameGuard> guard_;
};

// A store with one value, and a client from before the trouble. Afterwards both must be right, and so must a new client.
struct Honest {
  std::shared_ptr<par::TcpStore> server = tcp_server(), client = tcp_client(*server);
  int port = server->port();

  Honest() { server->set("k", "v"); }
  void check() {
    CHECK(client->get("k") == "v");
    CHECK(client->add("n", 0) == 0);
    CHECK(tcp_client(*server)->get("k") == "v");
  }
};

std::string flip(std::string bytes, std::size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

// A server that answers whatever it hears as `reply` says.
class FakeMaster {
 public:
  using Reply = std::function<std::string(const std::string& heard)>;
  explicit FakeMaster(Reply reply) {
    std::string error;
    par::Descriptor listener = par::listen_tcp(par::resolve("127.0.0.1", 0), error);
    address = par::address_of(listener);
    server_ = std::make_unique<par::StoreServer>(std::move(listener), std::make_unique<Gate>(std::move(reply)));
  }
  par::Greeting greet() const {
    return par::greet_tcp(address, par::identity_of(tcp_options(false)), par::Deadline(seconds(30)));
  }
  par::TcpAddress address;

 private:
  struct Talk final : par::Handshake {
    explicit Talk(Reply reply) : reply(std::move(reply)) {}
    std::size_t wanted(std::size_t) const override { return par::kMaxHelloBytes; }
    Step take(std::string& in) override { return {State::kMore, reply(std::exchange(in, {}))}; }
    Reply reply;
  };
  struct Gate final : par::StoreGate {
    explicit Gate(Reply reply) : reply(std::move(reply)) {}
    std::unique_ptr<par::Handshake> greet(const par::Descriptor&) override { return std::make_unique<Talk>(reply); }
    Reply reply;
  };
  std::unique_ptr<par::StoreServer> server_;
};

}  // namespace

TEST_CASE("what is no hello is closed at its first wrong byte, without an answer") {
  Honest honest;
  const std::string hello = Insider(honest.port).hello;
  for (std::size_t i = 0; i < par::kTcpPrefixBytes; ++i) {
    Stranger stranger(honest.port);
    stranger.say(flip(hello, 8 * i).substr(0, i + 1));
    CHECK(stranger.is_closed());
  }
  for (const char* text : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "lockstep\x02", "\n"}) {
    Stranger stranger(honest.port);
    stranger.say(text);
    CHECK(stranger.is_closed());
  }
  honest.check();
}

TEST_CASE("random bytes do no harm") {
  Honest honest;
  std::mt19937 random(7);
  for (int trial = 0; trial < 100; ++trial) {
    Stranger stranger(honest.port);
    std::string bytes(random() % 400 + 1, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    stranger.say(bytes);
    if (trial % 2) CHECK(stranger.is_closed());
  }
  honest.check();
}

TEST_CASE("a handshake that breaks off anywhere does no harm") {
  Honest honest;
  const std::size_t whole = par::kTcpHelloBytes + par::kDigestBytes;
  for (std::size_t size = 0; size < whole; ++size) {
    const par::TcpIdentity identity = par::identity_of(tcp_options(false));
    par::TcpClientHandshake handshake(identity);
    Stranger stranger(honest.port);
    const std::string hello = handshake.start();
    stranger.say(hello.substr(0, std::min(size, hello.size())));
    if (size > hello.size()) {
      std::string in = stranger.hear(par::kTcpHelloBytes);
      stranger.say(handshake.take(in).reply.substr(0, size - hello.size()));
    }
    stranger.finish();
    CHECK(stranger.hear(1000).size() == (size == hello.size() ? par::kTcpHelloBytes : 0));
  }
  honest.check();
}

TEST_CASE("another token, job, mode or a changed hello is refused") {
  Honest honest;
  const auto refused = [&](const par::TcpStoreOptions& options) {
    const par::Greeting greeting = par::greet_tcp(par::resolve("127.0.0.1", honest.port).at(0),
                                                  par::identity_of(options), par::Deadline(seconds(30)));
    return greeting.welcome;
  };
  par::TcpStoreOptions options = tcp_options(false);
  CHECK(refused(options) == par::Welcome::kYes);
  options.token[31] = 'e';
  CHECK(refused(options) == par::Welcome::kOtherJob);
  options = tcp_options(false);
  options.job = "run 1/1/2";
  CHECK(refused(options) == par::Welcome::kOtherJob);
  options = tcp_options(false);
  options.authenticate = false;
  CHECK(refused(options) == par::Welcome::kGone);

  // Bits of nonce and proof that change on their way.
  const par::TcpIdentity identity = par::identity_of(tcp_options(false));
  for (std::size_t bit = 0; bit < 8 * 2 * par::kDigestBytes; bit += 5) {
    const bool is_nonce = bit < 8 * par::kDigestBytes;
    par::TcpClientHandshake handshake(identity);
    Stranger stranger(honest.port);
    stranger.say(is_nonce ? flip(handshake.start(), 8 * par::kTcpPrefixBytes + bit) : handshake.start());
    std::string in = stranger.hear(par::kTcpHelloBytes);
    const std::string proof = handshake.take(in).reply;
    stranger.say(is_nonce ? proof : flip(proof, bit - 8 * par::kDigestBytes));
    CHECK(stranger.is_closed());
  }
  honest.check();
}

TEST_CASE("stores without authentication keep jobs apart") {
  const par::TcpStoreOptions options{.is_server = true, .authenticate = false, .job = "a"};
  par::TcpStore server("127.0.0.1", 0, options);
  const auto welcome = [&](const par::TcpStoreOptions& other) {
    return par::greet_tcp(par::resolve("127.0.0.1", server.port()).at(0), par::identity_of(other),
                          par::Deadline(seconds(30)))
        .welcome;
  };
  CHECK(welcome(options) == par::Welcome::kYes);
  CHECK(welcome({.authenticate = false, .job = "b"}) == par::Welcome::kGone);
  CHECK(welcome(tcp_options(false)) == par::Welcome::kGone);
}

TEST_CASE("a recorded session is refused when it is played again") {
  Honest honest;
  Insider insider(honest.port);
  const std::string request = insider.seal(par::StoreOp::kAdd, {"m", "1"});
  insider.say(request);
  CHECK(insider.answer().fields.at(0) == "1");

  Stranger replay(honest.port);
  replay.say(insider.hello);
  CHECK(replay.hear(par::kTcpHelloBytes) != insider.server_hello);
  replay.say(insider.proof + request);
  CHECK(replay.is_closed());
  // The same frame once more in its own session, too.
  insider.say(request);
  CHECK(insider.is_closed());
  // And one left out.
  Insider hasty(honest.port);
  hasty.seal(par::StoreOp::kAdd, {"m", "1"});
  hasty.say(hasty.seal(par::StoreOp::kAdd, {"m", "1"}));
  CHECK(hasty.is_closed());
  CHECK(honest.client->add("m", 0) == 1);
  honest.check();
}

TEST_CASE("what the server said is refused when it comes back") {
  Honest honest;
  Insider insider(honest.port);
  insider.say(insider.seal(par::StoreOp::kAdd, {"m", "1"}));
  const std::string answer = insider.hear_frame();
  insider.say(answer);
  CHECK(insider.is_closed());
  Stranger mirror(honest.port);
  mirror.say(insider.server_hello);
  CHECK(mirror.is_closed());
  Stranger second(honest.port);
  second.say(insider.hello);
  second.hear(par::kTcpHelloBytes);
  second.say(insider.server_proof);
  CHECK(second.is_closed());
  honest.check();
}

TEST_CASE("a frame with one flipped bit, any of them, ends its connection and changes nothing") {
  Honest honest;
  const std::size_t size = Insider(honest.port).seal(par::StoreOp::kAdd, {"n", "1"}).size();
  for (std::size_t bit = 0; bit < 8 * size; ++bit) {
    Insider insider(honest.port);
    insider.say(flip(insider.seal(par::StoreOp::kAdd, {"n", "1"}), bit));
    insider.finish();  // a length that grew makes the server wait for more
    // Only a length past the limit is answered, with an error.
    const std::string reply = insider.hear_frame();
    if (bit >= 32) CHECK(reply.empty());
  }
  honest.check();
}

TEST_CASE("a client notices a flipped bit as well") {
  const par::Digest a = par::random_digest(), b = par::random_digest();
  std::optional<par::FrameGuard> sender(std::in_place, a, b), fresh(std::in_place, b, a);
  std::string bytes = par::frame(par::StoreStatus::kDone, {"1"});
  sender->seal(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bool is_opened = false;
    try {
      is_opened = par::first_opened(fresh, flip(bytes, bit), 1000).has_value();
    } catch (const ls::CommError&) {
    } catch (const ls::IoError&) {  // a length past the limit
    }
    CHECK_FALSE(is_opened);
  }
  for (std::size_t cut = 0; cut < bytes.size(); ++cut)
    CHECK_FALSE(par::first_opened(fresh, bytes.substr(0, cut), 1000));
  CHECK_THROWS_AS(par::first_opened(fresh, par::frame(par::StoreStatus::kDone), 1000), par::FrameGuard::Forged);
  CHECK(par::read_message(*par::first_opened(fresh, bytes, 1000)).fields.at(0) == "1");
  CHECK_THROWS_AS(par::first_opened(fresh, bytes, 1000), par::FrameGuard::Forged);  // once
}

TEST_CASE("a master without the token is not believed") {
  Honest honest;
  const Insider insider(honest.port);
  const auto welcome = [](FakeMaster::Reply reply) { return FakeMaster(std::move(reply)).greet().welcome; };
  CHECK(welcome([](const std::string& heard) { return heard; }) == par::Welcome::kOtherJob);  // a mirror
  CHECK(welcome([](const std::string&) { return "SSH-2.0-OpenSSH_9.2\r\n"; }) == par::Welcome::kOtherJob);
  // One that recorded a session of the true master.
  CHECK(welcome([&](const std::string& heard) {
          return heard.size() == par::kTcpHelloBytes ? insider.server_hello : insider.server_proof;
        }) == par::Welcome::kOtherJob);
  // One that hands on the client's own proof.
  CHECK(welcome([&](const std::string& heard) {
          return heard.size() == par::kTcpHelloBytes ? insider.server_hello : heard;
        }) == par::Welcome::kOtherJob);
  honest.check();
}

TEST_CASE("a client with the token that claims too much, or writes nonsense, hears why and loses its connection") {
  Honest honest;
  Insider large(honest.port);
  large.say(std::string("\xff\xff\xff\x7f", 4));
  const par::StoreMessage refusal = large.answer();
  CHECK(refusal.code == static_cast<int>(par::StoreStatus::kMalformed));
  CHECK_MESSAGE(refusal.fields.at(0).find("at most") != std::string::npos, refusal.fields.at(0));
  CHECK(large.is_closed());
  Insider odd(honest.port);
  odd.say(odd.seal(static_cast<par::StoreOp>(99), {}));
  CHECK(odd.answer().fields.at(0).find("no operation 99") != std::string::npos);
  CHECK(odd.is_closed());
  honest.check();
}

TEST_CASE("two hundred silent connections and a slow one keep nobody out, and are closed in time") {
  Honest honest;
  std::vector<Stranger> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(honest.port);
  honest.check();
  for (std::size_t i = 0; i < 200 - par::kMaxUnauthenticated; ++i) CHECK(silent[i].is_closed());

  // A byte now and then does not win time.
  Stranger slow(honest.port);
  const std::string hello = Insider(honest.port).hello;
  for (const char byte : hello.substr(0, hello.size() - 1)) {
    slow.say(std::string(1, byte));
    CHECK(honest.client->get("k") == "v");
  }
  CHECK(slow.is_closed());
  for (Stranger& stranger : silent) CHECK(stranger.is_closed());
  honest.check();
}

TEST_CASE("strangers make one warning, which has no secrets, and a handler that throws does no harm") {
  std::vector<std::string> warnings;
  ls::on_warning([&](const std::string& message) {
    warnings.push_back(message);
    throw 1;
  });
  {
    Honest honest;
    for (int i = 0; i < 10; ++i) {
      Stranger stranger(honest.port);
      stranger.say("?");
      CHECK(stranger.is_closed());
    }
    honest.check();
  }
  ls::on_warning({});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("turned a connection from 127.0.0.1:") != std::string::npos);
  CHECK(warnings[0].find(kToken) == std::string::npos);
}
