// Deadlines of a process that works, waits, or is stopped for a while.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::hours;
using std::chrono::milliseconds;

TEST_CASE("a pause between two checks extends the deadline; a wait that had its own deadline does not") {
  par::Deadline paused(milliseconds(1000)), waited(milliseconds(1000));
  usleep(1'300'000);  // as if the process had been stopped
  waited.waited(hours(1));
  CHECK(waited.passed());
  CHECK(waited.left() == milliseconds(0));
  CHECK(waited.slice() == milliseconds(1));
  CHECK_FALSE(paused.passed());
  CHECK(paused.left() > milliseconds(0));
}

TEST_CASE("a connection to a dead host fails after 30 seconds, idle or with bytes in flight") {
  std::string error;
  const ls::Descriptor socket = par::listen_tcp(par::resolve("127.0.0.1", 0), error);
  REQUIRE_MESSAGE(socket, error);
  par::tune_tcp(socket);
  const auto option = [&](int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    CHECK(::getsockopt(socket.get(), IPPROTO_TCP, name, &value, &size) == 0);
    return value;
  };
  CHECK(option(TCP_KEEPIDLE) + option(TCP_KEEPCNT) * option(TCP_KEEPINTVL) == 30);
  CHECK(option(TCP_USER_TIMEOUT) == 30'000);
}
