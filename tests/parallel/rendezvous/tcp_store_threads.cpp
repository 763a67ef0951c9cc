// What TcpStore does beyond the calls that every store has (store_threads.cpp).
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "lockstep/base/warning.h"
#include "tests/parallel/rendezvous/store_peers.h"
#include "tests/support/ports.h"
#include "tests/support/ranks.h"
#include "tests/support/testing.h"

namespace ls = lockstep;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// The text of the error of a client with these options, which comes before the time-out.
std::string error_of_client(int port, const par::TcpStoreOptions& options) {
  const std::string text = error_of<ls::CommError>([&] { par::TcpStore("127.0.0.1", port, options); });
  CHECK_MESSAGE(!contains(text, "(after "), text);
  return text;
}

// Sets the job's token in the environment while it lives.
struct TokenVariable {
  explicit TokenVariable(const char* token) { setenv("LOCKSTEP_JOB_TOKEN", token, 1); }
  ~TokenVariable() { unsetenv("LOCKSTEP_JOB_TOKEN"); }
};

bool reaches(const std::string& host, int port) {
  std::string error;
  par::Deadline deadline(seconds(5));
  return bool(par::connect_tcp(par::resolve(host, port).at(0), deadline, error));
}

}  // namespace

TEST_CASE("a client may come before its server, and waits for it") {
  const int port = free_port();
  run_threads(2, [&](int rank) {
    par::TcpStore store("localhost", port, tcp_options(rank == 0));
    CHECK(store.port() == port);
    store.set("from " + std::to_string(rank), "here");
    store.wait({"from 0", "from 1"});
    // The server stays until the other has heard of it.
    if (rank == 1) store.set("bye", "");
    if (rank == 0) store.wait({"bye"});
  });
}

TEST_CASE("a server listens on the address of its host alone") {
  const auto server = tcp_server();
  CHECK(reaches("127.0.0.1", server->port()));
  CHECK_FALSE(reaches("127.0.0.2", server->port()));
}

TEST_CASE("IPv6 addresses do as well") {
  std::string error;
  if (!par::listen_tcp(par::resolve("::1", 0), error)) {
    MESSAGE("skipped: no IPv6 loopback: ", error);
    return;
  }
  par::TcpStore server("::1", 0, tcp_options(true));
  par::TcpStore client("::1", server.port(), tcp_options(false));
  client.set("k", "v");
  CHECK(server.get("k") == "v");
}

TEST_CASE("an address that cannot be listened on is an error that names it and why") {
  const auto server = tcp_server();
  const std::string address = "127.0.0.1:" + std::to_string(server->port());
  CHECK_THROWS_WITH_AS(par::TcpStore("127.0.0.1", server->port(), tcp_options(true)),
                       ("TcpStore: cannot listen at " + address + ": " + address + ": Address already in use").c_str(),
                       ls::CommError);
  CHECK_THROWS_WITH_AS(par::TcpStore("192.0.2.1", 0, tcp_options(true)),
                       doctest::Contains("192.0.2.1:0: Cannot assign requested address"), ls::CommError);
}

TEST_CASE("a name without an address is looked up until the time-out, by server and client") {
  for (const bool is_server : {true, false}) {
    par::TcpStoreOptions options = tcp_options(is_server);
    options.timeout = milliseconds(20);
    const std::string text = error_of<ls::CommTimeout>([&] { par::TcpStore("no-such-host.invalid", 1, options); });
    CHECK_MESSAGE(
        text.find("TcpStore: no-such-host.invalid:1: the host \"no-such-host.invalid\" has no address: ") == 0, text);
    CHECK_MESSAGE(text.find("(after 20 ms)") != std::string::npos, text);
  }
}

TEST_CASE("where nobody listens a client gives up at its deadline and names every address that it tried") {
  const int port = free_port();
  par::TcpStoreOptions options = tcp_options(false);
  options.timeout = milliseconds(20);
  const std::string address = "127.0.0.1:" + std::to_string(port);
  CHECK_THROWS_WITH_AS(par::TcpStore("127.0.0.1", port, options),
                       doctest::Contains(("TcpStore: " + address + ": no process listens there (" + address).c_str()),
                       ls::CommTimeout);
}

TEST_CASE("without a token the error names both ways out") {
  for (const bool is_server : {true, false}) {
    const auto construct = [&] { par::TcpStore("127.0.0.1", 1, {.is_server = is_server}); };
    CHECK_THROWS_WITH_AS(construct(), doctest::Contains("lockstep-run --new-token"), ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(construct(), doctest::Contains(".authenticate = false"), ls::InvalidArgument);
  }
  CHECK_THROWS_AS(par::TcpStore("127.0.0.1", 0, tcp_options(false)), ls::InvalidArgument);
  CHECK_THROWS_AS(par::TcpStore("127.0.0.1", 65536, tcp_options(true)), ls::InvalidArgument);
  CHECK_THROWS_AS(par::TcpStore("", 1, tcp_options(true)), ls::InvalidArgument);
  par::TcpStoreOptions no_time = tcp_options(true);
  no_time.timeout = milliseconds(0);
  CHECK_THROWS_AS(par::TcpStore("127.0.0.1", 0, no_time), ls::InvalidArgument);
}

TEST_CASE("the token comes from the environment where the options have none") {
  const auto server = tcp_server();
  {
    const TokenVariable token(kToken.c_str());
    par::TcpStoreOptions options = tcp_options(false);
    options.token = "";
    par::TcpStore client("127.0.0.1", server->port(), options);
    client.set("k", "v");
  }
  CHECK(server->get("k") == "v");
}

TEST_CASE("another token or another job is an error that says so, and where the token came from, and not the token") {
  const auto server = tcp_server();
  par::TcpStoreOptions other_token = tcp_options(false), other_job = tcp_options(false);
  other_token.token = "";
  other_job.job = "run 2";
  std::string text;
  {
    const TokenVariable token("not the token of the server at all");
    text = error_of_client(server->port(), other_token);
  }
  CHECK_MESSAGE(text.find("Token or job differs") != std::string::npos, text);
  CHECK_MESSAGE(text.find("the variable LOCKSTEP_JOB_TOKEN") != std::string::npos, text);
  CHECK_MESSAGE(text.find("not the token") == std::string::npos, text);
  text = error_of_client(server->port(), other_job);
  CHECK_MESSAGE(text.find("Token or job differs") != std::string::npos, text);
  CHECK_MESSAGE(text.find("job \"run 2\"") != std::string::npos, text);
  CHECK_MESSAGE(text.find(kToken) == std::string::npos, text);
}

TEST_CASE("a short token is used, with a warning that does not show it") {
  std::string warning;
  ls::on_warning([&](const std::string& message) { warning = message; });
  par::TcpStoreOptions options = tcp_options(true);
  options.token = "guess me";
  const par::TcpStore server("127.0.0.1", 0, options);
  ls::on_warning({});
  CHECK(warning.find("8 bytes") != std::string::npos);
  CHECK(warning.find("guess me") == std::string::npos);
}

namespace {

par::ConnectResult connect_to(int port) {
  return par::connect_tcp_store(par::resolve("127.0.0.1", port).at(0), credentials_for(port),
                                par::Deadline(seconds(30)));
}

// A client whose first connection the test can end. `connect` makes the next ones.
struct HeldClient {
  HeldClient(int port, par::StoreClient::Connect connect) {
    par::ConnectResult result = connect_to(port);
    REQUIRE(result.outcome == par::ConnectOutcome::kConnected);
    first = ls::Descriptor(::dup(result.stream->socket().get()));
    store.emplace("127.0.0.1:" + std::to_string(port), "rank 0", std::move(result), std::move(connect));
  }
  void cut() { REQUIRE(::shutdown(first.get(), SHUT_RDWR) == 0); }

  ls::Descriptor first;
  std::optional<par::StoreClient> store;
};

}  // namespace

TEST_CASE("a client whose idle connection ended connects again, and recognises its store by the server's id") {
  const auto own = tcp_server(), other = tcp_server();
  for (const bool has_asked : {true, false}) {
    for (const auto& next : {own, other}) {
      int connected = 0;
      HeldClient held(own->port(), [&](par::Deadline) {
        ++connected;
        return connect_to(next->port());
      });
      if (has_asked) held.store->set("k", "v");
      CHECK(connected == 0);
      held.cut();
      const auto ask = [&] { held.store->set("k", "w"); };
      if (next == own)
        CHECK_NOTHROW(ask());
      else
        CHECK_THROWS_WITH_AS(ask(), doctest::Contains("another store has its place"), ls::CommError);
      CHECK(connected == 1);
    }
  }
}

TEST_CASE("a server that does not answer a new connection within the caller's time is late, and not lost") {
  const auto server = tcp_server();
  std::string error;
  const ls::Descriptor mute = par::listen_tcp(par::resolve("127.0.0.1", 0), error);
  REQUIRE(mute);
  const par::TcpAddress address = par::address_of(mute);
  HeldClient held(server->port(), [&](par::Deadline deadline) {
    return par::connect_tcp_store(address, credentials_for(address.port()), deadline);
  });
  held.store->set("k", "v");
  held.cut();
  CHECK_THROWS_WITH_AS(held.store->get("k", milliseconds(20)),
                       doctest::Contains("store: get \"k\": rank 0, which holds the store at"), ls::CommTimeout);
}
