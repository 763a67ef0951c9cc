// What anybody on the network can do to a TCP store and its clients, while honest clients go on.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "tests/parallel/rendezvous/store_peers.h"

namespace ls = lockstep;
using par::ConnectOutcome;
using std::chrono::seconds;

namespace {

// A store with one value, and a client from before the trouble. At the end both must be right, and so must a new client.
struct Honest {
  std::shared_ptr<par::TcpStore> server = tcp_server(), client = tcp_client(*server);
  int port = server->port();

  Honest() { server->set("k", "v"); }
  ~Honest() { check(); }
  void check() {
    CHECK(client->get("k") == "v");
    CHECK(client->add("n", 0) == 0);
    CHECK(tcp_client(*server)->get("k") == "v");
  }
};

const par::StoreRequest kAddOne{.op = par::StoreOp::kAdd, .keys = {"n"}, .values = {"1"}};

std::string flip(std::string bytes, std::size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

// The first piece of a client's bytes: its ClientHello.
std::string client_hello(int port) {
  Relayed client(port, credentials_for(port));
  std::string hello;
  client.change_up = [&](std::string& piece, std::size_t before) {
    if (before == 0) hello = piece;
  };
  REQUIRE(client.say_hello());
  return hello;
}

std::string bytes_of(std::initializer_list<int> bytes) {
  std::string out;
  for (const int byte : bytes) out += static_cast<char>(byte);
  return out;
}

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    out += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

}  // namespace

TEST_CASE("identity and key are those of RFC 9258, and differ in every part of what a connection is for") {
  const par::TlsBinding binding{.job = "run 1/0/2", .store = "other", .port = 29500};
  const par::PreSharedKey psk = par::derive_psk(kToken, binding);
  // By a program of its own: hashlib and hmac of Python 3.11.
  CHECK(hex(psk.identity) ==
        "00106c6f636b737465702073746f72652031002002334759403da1a5b95ddf082a86b5f77434050e6ef773bfb4eb035238a8e76b"
        "03040001");
  CHECK(hex(par::view(psk.key)) == "c114aa738e814bf3866d7df72ffe454f6748b327a0cbf836f9dabbfd3da2f0cd");
  par::TlsBinding job = binding, store = binding, port = binding, role = binding, moved = binding;
  job.job = "run 1/1/2";
  store.store = "another";
  port.port = 29501;
  role.role = par::TlsRole::kServer;
  moved.job += "other";
  moved.store = "";
  for (const par::TlsBinding& changed : {job, store, port, role, moved}) {
    const par::PreSharedKey other = par::derive_psk(kToken, changed);
    CHECK(other.identity != psk.identity);
    CHECK(other.key != psk.key);
  }
  const par::PreSharedKey other_token = par::derive_psk("0123456789abcdef0123456789abcdee", binding);
  CHECK(other_token.identity == psk.identity);  // which is sent in the clear, and tells nothing of the token
  CHECK(other_token.key != psk.key);
}

TEST_CASE("a handshake and its hello leave room below the limit of bytes") {
  Honest honest;
  Relayed client(honest.port, credentials_for(honest.port));
  REQUIRE(client.say_hello());
  MESSAGE("handshake with hello: ", client.up.size(), " bytes up, ", client.down.size(), " bytes down");
  CHECK(client.up.size() <= par::kMaxHandshakeBytes * 4 / 5);
  CHECK(client.down.size() <= par::kMaxHandshakeBytes * 4 / 5);
}

TEST_CASE("what is no ClientHello is closed at its first wrong byte, without an answer") {
  Honest honest;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\n"), std::string("SSH-2.0-x\r\n"), bytes_of({21}),
        bytes_of({22, 2}), bytes_of({22, 3, 4}), bytes_of({22, 3, 1, 64}), bytes_of({22, 3, 1, 2, 255}),
        bytes_of({22, 3, 1, 0, 0}), bytes_of({22, 3, 1, 0, 200, 2}), bytes_of({22, 3, 1, 0, 200, 1, 1}),
        bytes_of({22, 3, 1, 0, 200, 1, 0, 0, 197}), client_hello(honest.port) + "x",
        par::frame(par::StoreHello{}) /* of a client that does not authenticate */}) {
    RawPeer peer(honest.port);
    peer.say(bytes);
    CHECK(peer.hear_all().empty());
  }
}

TEST_CASE("a ClientHello with one flipped bit, any of them, is refused with the one alert or none") {
  Honest honest;
  const std::string hello = client_hello(honest.port);
  for (std::size_t bit = 0; bit < 8 * hello.size(); bit += 3) {
    CAPTURE(bit);
    RawPeer peer(honest.port);
    peer.say(flip(hello, bit));
    peer.finish();  // a length that grew makes the server wait for more
    const std::string answer = peer.hear_all();
    CHECK((answer.empty() || answer == kRefusal));
  }
}

TEST_CASE("random bytes do no harm, before the handshake and within it") {
  Honest honest;
  const std::string hello = client_hello(honest.port);
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    RawPeer peer(honest.port);
    std::string bytes(random() % 400 + 1, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    if (trial % 4 == 0) bytes = hello.substr(0, 9) + bytes;  // looks right from outside
    if (trial % 4 == 1) bytes = hello + bytes;
    peer.say(bytes);
    peer.finish();
    if (trial % 2) CHECK(peer.hear_all().size() < 1000);
  }
}

TEST_CASE("a handshake that breaks off anywhere does no harm") {
  Honest honest;
  const std::string hello = client_hello(honest.port);
  for (std::size_t size = 0; size <= hello.size(); ++size) {
    RawPeer peer(honest.port);
    peer.say(hello.substr(0, size));
    peer.finish();
    CHECK(peer.hear_all().empty() == (size < hello.size()));
  }
}

TEST_CASE("more bytes than a handshake has are refused, in one record or in many, before and after an answer") {
  Honest honest;
  const std::string hello = client_hello(honest.port);
  RawPeer large(honest.port);
  large.say(bytes_of({22, 3, 1, 2, 0}) + std::string(600, 'x'));
  CHECK(large.hear_all().empty());
  RawPeer many(honest.port);  // a recorded ClientHello, and then records of nothing but length
  many.say(hello);
  CHECK_FALSE(many.hear(5).empty());
  for (int i = 0; i < 40; ++i) many.say(bytes_of({23, 3, 3, 0, 20}) + std::string(20, 'x'));
  many.hear_all();
  CHECK(many.is_closed());
}

TEST_CASE("another token, job, store, port, role or mode is refused") {
  Honest honest;
  CHECK(outcome_at(honest.port, credentials_for(honest.port)) == ConnectOutcome::kConnected);
  par::TcpStoreOptions token = tcp_options(false), job = token, store = token, plain = token;
  token.token[31] = 'e';
  job.job = "run 1/1/2";
  store.name = "another";
  plain.authenticate = false;
  for (const par::TcpStoreOptions& options : {token, job, store})
    CHECK(outcome_at(honest.port, credentials_for(honest.port, options)) == ConnectOutcome::kOtherJob);
  CHECK(outcome_at(honest.port, credentials_for(honest.port + 1)) == ConnectOutcome::kOtherJob);
  CHECK(outcome_at(honest.port, credentials_for(honest.port, plain)) == ConnectOutcome::kClosed);
  par::TcpCredentials role = credentials_for(honest.port);
  role.tls = par::TlsContext::make(
      par::derive_psk(kToken, {.job = "run 1/0/2", .store = "", .port = honest.port, .role = par::TlsRole::kServer}));
  CHECK(outcome_at(honest.port, role) == ConnectOutcome::kOtherJob);
}

TEST_CASE("stores without authentication keep jobs apart, and refuse clients that authenticate") {
  ls::on_warning([](const std::string&) {});
  const par::TcpStoreOptions options{.is_server = true, .authenticate = false, .job = "a"};
  par::TcpStore server("127.0.0.1", 0, options);
  const auto outcome = [&](const par::TcpStoreOptions& other) {
    return outcome_at(server.port(), credentials_for(server.port(), other));
  };
  CHECK(outcome(options) == ConnectOutcome::kConnected);
  CHECK(outcome({.authenticate = false, .job = "b"}) == ConnectOutcome::kOtherJob);
  CHECK(outcome({.authenticate = false, .job = "a", .name = "b"}) == ConnectOutcome::kOtherJob);
  CHECK(outcome(tcp_options(false)) == ConnectOutcome::kClosed);
  ls::on_warning({});
}

TEST_CASE("a recorded session is refused when it is played again") {
  Honest honest;
  Relayed client(honest.port, credentials_for(honest.port));
  REQUIRE(client.say_hello());
  const std::size_t before = client.up.size();
  REQUIRE_FALSE(client.ask({.op = par::StoreOp::kAdd, .keys = {"m"}, .values = {"1"}}).empty());
  const std::string record = client.up.substr(before), hello = client_hello(honest.port);

  RawPeer all(honest.port);  // at once
  all.say(client.up);
  all.hear_all();
  RawPeer replay(honest.port);  // or as the client did
  replay.say(client.up.substr(0, hello.size()));
  CHECK_FALSE(replay.hear(5).empty());
  replay.say(client.up.substr(hello.size()));
  replay.hear_all();
  // The same record once more in its own session, too.
  client.inject(record);
  CHECK(client.is_closed());
  CHECK(honest.client->add("m", 0) == 1);
}

TEST_CASE("what the server has sent is refused when it comes back") {
  Honest honest;
  Relayed client(honest.port, credentials_for(honest.port));
  REQUIRE(client.say_hello());
  const std::size_t before = client.down.size();
  REQUIRE_FALSE(client.ask({.op = par::StoreOp::kCheck, .keys = {"k"}}).empty());
  client.inject(client.down.substr(before));
  CHECK(client.is_closed());
  RawPeer mirror(honest.port);
  mirror.say(client.down);
  CHECK(mirror.hear_all().empty());
  RawPeer second(honest.port);
  second.say(client_hello(honest.port));
  second.say(second.hear(5));
  second.finish();
  second.hear_all();
  CHECK(second.is_closed());
}

TEST_CASE("a connection that is relayed to another store of the job is refused") {
  Honest honest;
  par::TcpStoreOptions options = tcp_options(true);
  const auto other_port = std::make_shared<par::TcpStore>("127.0.0.1", 0, options);
  options.name = "of another group";
  const auto other_name = std::make_shared<par::TcpStore>("127.0.0.2", honest.port, options);
  const par::TcpCredentials meant = credentials_for(honest.port);
  CHECK(Relayed(honest.port, meant).say_hello());
  for (auto [port, host] : {std::pair(other_port->port(), "127.0.0.1"), std::pair(honest.port, "127.0.0.2")}) {
    Relayed client(port, meant, host);
    CHECK_FALSE(client.say_hello());
    CHECK(client.down == kRefusal);
  }
}

TEST_CASE("a flipped bit of a request, any of them, ends its connection and changes nothing") {
  Honest honest;
  const par::TcpCredentials credentials = credentials_for(honest.port);
  const std::size_t size = [&] {
    Relayed client(honest.port, credentials);
    REQUIRE(client.say_hello());
    const std::size_t before = client.up.size();
    client.ask({.op = par::StoreOp::kAdd, .keys = {"n"}, .values = {"0"}});
    return client.up.size() - before;
  }();
  for (std::size_t bit = 0; bit < 8 * size; bit += 3) {
    CAPTURE(bit);
    Relayed client(honest.port, credentials);
    REQUIRE(client.say_hello());
    const std::size_t start = client.up.size();
    client.change_up = [&](std::string& piece, std::size_t before) {
      if (before == start) piece = flip(piece, bit);
    };
    client.send(par::frame(kAddOne));
    client.finish();  // a length that grew makes the server wait for more
    CHECK(client.is_closed());
  }
}

TEST_CASE("a client notices a flipped bit of an answer, any of them") {
  Honest honest;
  const par::TcpCredentials credentials = credentials_for(honest.port);
  for (std::size_t bit = 0; bit < 8 * 30; bit += 5) {
    if (bit / 8 == 3 || bit / 8 == 4) continue;  // a length, which makes it wait
    CAPTURE(bit);
    Relayed client(honest.port, credentials);
    REQUIRE(client.say_hello());
    const std::size_t start = client.down.size();
    client.change_down = [&](std::string& piece, std::size_t before) {
      if (before == start) piece = flip(piece, bit);
    };
    CHECK(client.ask({.op = par::StoreOp::kCheck, .keys = {"k"}}).empty());
    CHECK(client.error.find("TLS record: ") == 0);
  }
}

TEST_CASE("a master without the token is not believed") {
  Honest honest;
  Relayed recorded(honest.port, credentials_for(honest.port));
  REQUIRE(recorded.say_hello());
  const auto outcome = [](FakeMaster::Reply reply) {
    FakeMaster master(std::move(reply));
    return outcome_at(master.port, credentials_for(master.port));
  };
  CHECK(outcome([](const std::string& heard, int) { return heard; }) == ConnectOutcome::kOtherJob);  // a mirror
  CHECK(outcome([](const std::string&, int) { return "SSH-2.0-OpenSSH_9.2\r\n"; }) == ConnectOutcome::kOtherJob);
  CHECK(outcome([](const std::string&, int) { return kRefusal; }) == ConnectOutcome::kOtherJob);
  // One that recorded a session of the true master.
  CHECK(outcome([&](const std::string&, int number) { return number == 0 ? recorded.down : std::string("x"); }) ==
        ConnectOutcome::kOtherJob);
  // One that has the token of another job, or holds another store: see the relayed connections.
}

TEST_CASE("a client with the token that claims too much, or writes nonsense, is told why and loses its connection") {
  Honest honest;
  const auto answer_to = [&](const std::string& bytes) {
    Relayed client(honest.port, credentials_for(honest.port));
    REQUIRE(client.say_hello());
    REQUIRE(client.send(bytes));
    const std::string answer = client.receive_frame();
    CHECK(client.is_closed());
    REQUIRE(answer.size() > par::kFrameHeader);
    return par::read_message(answer.substr(par::kFrameHeader));
  };
  const par::StoreMessage large = answer_to(bytes_of({255, 255, 255, 127}));
  CHECK(large.code == static_cast<int>(par::StoreStatus::kMalformed));
  CHECK_MESSAGE(large.fields.at(0).find("at most") != std::string::npos, large.fields.at(0));
  CHECK(answer_to(par::frame(99, {})).fields.at(0).find("no operation 99") != std::string::npos);
}

TEST_CASE("two hundred silent connections and a slow one keep nobody out, and are closed in time") {
  Honest honest;
  std::deque<RawPeer> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(honest.port);
  honest.check();
  for (std::size_t i = 0; i < 200 - par::kMaxUnauthenticated; ++i) CHECK(silent[i].is_closed());

  // A byte now and then does not win time.
  RawPeer slow(honest.port);
  const std::string hello = client_hello(honest.port);
  for (const char byte : hello.substr(0, hello.size() - 1)) {
    slow.say(std::string(1, byte));
    CHECK(honest.client->get("k") == "v");
  }
  CHECK(slow.is_closed());
  for (RawPeer& peer : silent) CHECK(peer.is_closed());
}

TEST_CASE("a peer that has shown the token in its ClientHello keeps its place while others are silent") {
  Honest honest;
  Relayed client(honest.port, credentials_for(honest.port));
  REQUIRE(client.send(""));  // the handshake alone; the hello is to come
  std::deque<RawPeer> silent;
  for (std::size_t i = 0; i < 3 * par::kMaxUnauthenticated; ++i) silent.emplace_back(honest.port);
  honest.check();
  CHECK(client.say_hello());
  for (std::size_t i = 0; i < par::kMaxUnauthenticated; ++i) CHECK(silent[i].is_closed());
}

TEST_CASE("rejected connections make one warning, which has no secrets, and a handler that throws does no harm") {
  std::vector<std::string> warnings;
  ls::on_warning([&](const std::string& message) {
    warnings.push_back(message);
    throw 1;
  });
  {
    Honest honest;
    for (int i = 0; i < 10; ++i) {
      RawPeer peer(honest.port);
      peer.say("?");
      CHECK(peer.is_closed());
    }
  }
  ls::on_warning({});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("rejected a connection from 127.0.0.1:") != std::string::npos);
  CHECK(warnings[0].find(kToken) == std::string::npos);
}
