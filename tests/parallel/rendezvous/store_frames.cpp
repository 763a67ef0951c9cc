// The frames of the Unix store, and the sockets below.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

TEST_CASE("frames come back as they were, and a part of one is no frame") {
  const par::StoreHello hello{.job = {0x1234, ~std::uint64_t(0)}};
  const std::string bytes = par::frame(hello);
  const auto content = par::first_frame(bytes, 256);
  REQUIRE(content);
  const par::StoreHello back = par::read_hello(*content);
  CHECK(back.job == hello.job);

  const std::string binary("\0\xff", 2);
  const std::string message = par::frame({.op = par::StoreOp::kSet, .keys = {""}, .values = {binary}});
  const par::StoreMessage read = par::read_message(*par::first_frame(message, 256));
  CHECK(read.code == static_cast<int>(par::StoreOp::kSet));
  CHECK(read.fields == std::vector<std::string>{"", binary});
  const par::StoreRequest request = par::to_request(read.code, read.fields);
  CHECK(request.op == par::StoreOp::kSet);
  CHECK(request.keys == std::vector<std::string>{""});
  CHECK(request.values == std::vector<std::string>{binary});
  for (std::size_t size = 0; size < message.size(); ++size) CHECK_FALSE(par::first_frame(message.substr(0, size), 256));
  for (std::size_t size = 0; size + 4 < message.size(); ++size)
    CHECK_THROWS_AS(par::read_message(message.substr(4, size)), ls::IoError);
  CHECK_THROWS_AS(par::first_frame(message, message.size() - 5), ls::IoError);
}

TEST_CASE("an abstract socket has no file, says who is there, and its name is free when it closes") {
  const std::string name = "lockstep-test-socket-" + std::to_string(getpid());
  errno = 0;
  CHECK_FALSE(par::connect_abstract(name));
  CHECK(errno == ECONNREFUSED);
  for (int round = 0; round < 3; ++round) {
    const ls::Descriptor listener = par::listen_abstract(name);
    REQUIRE(listener);
    CHECK_FALSE(par::listen_abstract(name));
    CHECK(errno == EADDRINUSE);
    const ls::Descriptor client = par::connect_abstract(name);
    REQUIRE(client);
    CHECK(par::peer_of(client).pid == getpid());
    CHECK(par::is_trusted(par::peer_of(client)));
    CHECK_FALSE(par::is_trusted({.pid = 1, .uid = geteuid() + 1}));
    CHECK(par::is_trusted({.pid = 1, .uid = 0}));
  }
  CHECK_THROWS_AS(par::listen_abstract(""), ls::InvalidArgument);
  CHECK_THROWS_AS(par::listen_abstract(std::string(108, 'x')), ls::InvalidArgument);
}
