// Processes that find each other over TCP, as those of several hosts do; here the hosts are one.
#include <doctest/doctest.h>
#include <poll.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Has a store at `port`, tells `ranks` processes its own number, and ends when they are done.
void be_agent(const std::string& port, const NumberPipe& listening, const NumberPipe& done, int ranks) {
  ls::on_warning([](const std::string&) {});
  const par::TcpStore store("127.0.0.1", std::stoi(port), {.is_server = true, .authenticate = false});
  for (int rank = 0; rank < ranks; ++rank) listening.send(getpid());
  for (int rank = 0; rank < ranks; ++rank) done.receive();
}

}  // namespace

TEST_CASE("torchrun's agent has MASTER_PORT: ranks meet at LOCKSTEP_PORT, by default the port above it") {
  const std::string port = fresh_port();
  std::string lockstep_port;
  SUBCASE("by default") {}
  SUBCASE("as given") { lockstep_port = fresh_port(); }
  const NumberPipe listening, done;
  check_processes(3, [&](int process) {
    if (process == 2) return be_agent(port, listening, done, 2);
    set_two_hosts(port, process, 2);
    set_variable("TORCHELASTIC_USE_AGENT_STORE", "True");
    if (!lockstep_port.empty()) set_variable("LOCKSTEP_PORT", lockstep_port);
    listening.receive();
    par::Rendezvous here = par::rendezvous({.backend = "gloo", .timeout = seconds(30)});
    check_together(here);
    done.send(process);
  });
}

TEST_CASE("a MASTER_PORT that another process has is an error of rank 0 that names both") {
  const std::string port = fresh_port(), port_below = std::to_string(std::stoi(port) - 1);
  bool is_torchrun = false;
  SUBCASE("the port that all ranks were given") {}
  SUBCASE("the port above torchrun's agent") { is_torchrun = true; }
  const std::string name = is_torchrun ? "LOCKSTEP_PORT " + port +
                                             ", by default MASTER_PORT + 1 (torchrun's agent has MASTER_PORT " +
                                             port_below + ") of 127.0.0.1"
                                       : "MASTER_PORT " + port + " of 127.0.0.1";
  const NumberPipe listening, done;
  check_processes(2, [&](int process) {
    if (process == 1) return be_agent(port, listening, done, 1);
    set_two_hosts(is_torchrun ? port_below : port, 0, 2);
    if (is_torchrun) set_variable("TORCHELASTIC_USE_AGENT_STORE", "True");
    const std::int64_t agent = listening.receive();
    const std::string error = error_of<ls::Error>([] { par::rendezvous({.backend = "gloo", .timeout = seconds(30)}); });
    done.send(0);
    CHECK_MESSAGE(contains(error, "rank 0 cannot listen at " + name), error);
    CHECK_MESSAGE(contains(error, "Address already in use; process " + std::to_string(agent) + " ("), error);
  });
}

TEST_CASE("several hosts need a token, or the word that they do without") {
  const std::string port = fresh_port();
  set_two_hosts(port, 0, 2, "");
  const std::string text = error_of([] { par::rendezvous({.backend = "gloo"}); });
  CHECK(contains(text, "lockstep-run --new-token"));
  CHECK(contains(text, ".authenticate = false"));
  check_processes(2, [&](int rank) {
    set_two_hosts(port, rank, 2, "");
    par::Rendezvous here = par::rendezvous({.backend = "gloo", .timeout = seconds(30), .authenticate = false});
    check_together(here);
  });
  clear_environment();
}

TEST_CASE("who has another token is told so") {
  const std::string port = fresh_port();
  const auto results = run_processes(2, [&](int rank) {
    set_two_hosts(port, rank, 2, rank == 0 ? kJobToken : "another0another0another0another0");
    par::rendezvous({.backend = "gloo", .timeout = seconds(2)});
  });
  CHECK(contains(results[0].error, "rank 1 of 2 did not arrive"));
  CHECK(contains(results[1].error, "no rank 0 of this job at MASTER_PORT"));
  CHECK(contains(results[1].error, "LOCKSTEP_JOB_TOKEN"));
  for (const ExitStatus& result : results) CHECK_FALSE(contains(result.error, "another0"));
}

TEST_CASE("a master address that is not rank 0's is an error of rank 0") {
  const auto results = run_processes(1, [&](int) {
    set_two_hosts(fresh_port(), 0, 2);
    set_variable("MASTER_ADDR", "192.0.2.1");  // documentation only: nobody has it
    par::rendezvous({.backend = "gloo", .timeout = seconds(2)});
  });
  CHECK(contains(results[0].error, "MASTER_ADDR has to be an address of its host"));
}

TEST_CASE("a master whose name has no address yet is looked up until the time-out") {
  const auto results = run_processes(2, [&](int rank) {
    set_two_hosts(fresh_port(), rank, 2);
    set_variable("MASTER_ADDR", "no-such-host.invalid");
    const std::string text =
        error_of<ls::CommTimeout>([] { par::rendezvous({.backend = "gloo", .timeout = milliseconds(200)}); });
    CHECK_MESSAGE(contains(text, "rendezvous at no-such-host.invalid:"), text);
    CHECK_MESSAGE(contains(text, "the host \"no-such-host.invalid\" has no address: "), text);
    CHECK_MESSAGE(contains(text, "(after 200 ms)"), text);
  });
  for (const ExitStatus& result : results) CHECK_MESSAGE(result.ok(), result.to_string());
}

// Each process has an /etc/hosts of its own, one file for both. Rank 0 announces its name there when rank 1
// has read the file.
TEST_CASE("a name that is announced while ranks wait for it lets them meet") {
  const std::string port = fresh_port();
  std::ofstream("hosts") << "127.0.0.1 localhost\n";
  std::ofstream("nsswitch.conf") << "hosts: files\n";
  const auto results = run_processes(2, [&](int rank) {
    const auto mount_over = [](const char* file, const char* target) {
      return mount(file, target, nullptr, MS_BIND, nullptr) == 0;
    };
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !mount_over("hosts", "/etc/hosts") ||
        !mount_over("nsswitch.conf", "/etc/nsswitch.conf"))
      _exit(77);
    set_two_hosts(port, rank, 2);
    set_variable("MASTER_ADDR", "late-host");
    if (rank == 0) {
      const ls::Descriptor events(inotify_init1(IN_CLOEXEC));
      REQUIRE(inotify_add_watch(events.get(), "hosts", IN_CLOSE_NOWRITE) >= 0);
      pollfd entry{events.get(), POLLIN, 0};
      REQUIRE(poll(&entry, 1, 60'000) == 1);
      std::ofstream("hosts", std::ios::app) << "127.0.0.1 late-host\n";
    }
    par::Rendezvous here = par::rendezvous({.backend = "gloo", .timeout = seconds(60)});
    check_together(here);
  });
  for (const ExitStatus& result : results) {
    if (result.code == 77) {
      MESSAGE("skipped: needs user namespaces");
      return;
    }
    CHECK_MESSAGE(result.ok(), result.to_string());
  }
}
