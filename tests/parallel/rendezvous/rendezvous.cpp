// Processes that find each other by their environment.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

par::Rendezvous join(milliseconds timeout = seconds(30)) { return par::rendezvous({.timeout = timeout}); }

void check_all_fail(const std::vector<ExitStatus>& results, const std::vector<std::string>& parts) {
  for (const ExitStatus& result : results) {
    INFO(result.to_string());
    CHECK(result.code == 1);
    for (const std::string& part : parts) CHECK_MESSAGE(contains(result.error, part), part);
  }
}

}  // namespace

TEST_CASE("ranks meet in every way, again and again in the same processes") {
  const Way ways[] = {
      kUnix,
      kTcp,
      kUrl,
      kFile,
      {"mpirun", [](const std::string& id, int rank, int size, auto&) { set_mpirun(id, rank, size); }},
      {"mpirun with MASTER_PORT",
       [](const std::string& id, int rank, int size, auto&) {
         set_mpirun("same for all", rank, size);
         set_variable("MASTER_PORT", id);
       }},
      {"srun", [](const std::string& id, int rank, int size, auto&) { set_srun(id, rank, size); }},
      {"RANK, WORLD_SIZE and a loopback address, spelled in two ways",
       [](const std::string& id, int rank, int size, auto&) {
         set_torchrun(id, rank, size);
         unsetenv("LOCAL_WORLD_SIZE");
         set_variable("MASTER_ADDR", rank % 2 ? "localhost" : "127.0.0.1");
       }},
  };
  for (const Way& way : ways) {
    CAPTURE(way.name);
    const std::string port = fresh_port();
    check_processes(3, [&](int rank) {
      for (int round = 0; round < 10; ++round) {
        par::Rendezvous here = join(way, port, rank, 3);
        CHECK(here.rank == rank);
        CHECK(here.size == 3);
        CHECK(here.store->timeout() == seconds(30));
        CHECK(here.address == (way.name == kFile.name ? "" : "127.0.0.1"));
        check_together(here);
      }
    });
  }
}

TEST_CASE("rank 0 may leave as soon as it has joined: the others have, too") {
  const std::string port = fresh_port();
  check_processes(4, [&](int rank) {
    set_torchrun(port, rank, 4);
    for (int round = 0; round < 30; ++round) join();
  });
}

TEST_CASE("groups of different names live side by side") {
  const std::string port = fresh_port();
  check_processes(2, [&](int rank) {
    set_torchrun(port, rank, 2);
    par::Rendezvous a = par::rendezvous({.group_name = "a"}), b = par::rendezvous({.group_name = "b"});
    check_together(a);
    check_together(b);
  });
}

TEST_CASE("a second group of the same name, while the first lives, is refused with the way out") {
  for (const Way& way : {kUnix, kTcp}) {
    CAPTURE(way.name);
    const std::string port = fresh_port();
    check_processes(2, [&](int rank) {
      par::Rendezvous here = join(way, port, rank, 2);
      if (rank == 0) {
        const std::string text = error_of<ls::InvalidArgument>([] { join(); });
        CHECK_MESSAGE(contains(text, "this process has a group at "), text);
        CHECK(contains(text, ":" + port + " already\nDestroy it first, cut it with split"));
      } else {
        CHECK(contains(error_of<ls::CommTimeout>([] { join(seconds(2)); }), "still has the group"));
      }
      check_together(here);
    });
  }
}

TEST_CASE("options come before the environment, and a world of one needs no address") {
  const std::string port = fresh_port();
  check_processes(2, [&](int rank) {
    clear_environment();
    CHECK(par::rendezvous({.world_size = 1, .rank = 0}).size == 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    CHECK(join().size == 1);
    set_torchrun(port, 7, 9);
    set_variable("LOCAL_WORLD_SIZE", "2");
    par::Rendezvous here = par::rendezvous({.world_size = 2, .rank = rank});
    CHECK(here.rank == rank);
    check_together(here);
  });
}

TEST_CASE("a rank that was started twice is named with both processes, to all ranks") {
  for (const Way& way : {kUnix, kTcp, kFile}) {
    for (const int twice : {0, 1}) {
      CAPTURE(way.name);
      const std::string port = fresh_port();  // three processes for a world of three ranks that never gets its rank 2
      const auto results = run_processes(3, [&](int process) { join(way, port, process == 2 ? twice : process, 3); });
      check_all_fail(results, {"rank " + std::to_string(twice) + " was started twice: as process "});
    }
  }
}

TEST_CASE("ranks that never arrive are listed, to all who wait") {
  for (const Way& way : {kUnix, kTcp, kFile}) {
    CAPTURE(way.name);
    const std::string port = fresh_port();
    const auto results =
        run_processes(2, [&](int process) { join(way, port, process * 2, 4, {.timeout = seconds(1)}); });  // 0 and 2
    check_all_fail(results, {"ranks 1 and 3 of 4 did not arrive within 1000 ms; ranks 0 and 2 are here"});
  }
}

TEST_CASE("without rank 0 the others say so") {
  const std::string port = fresh_port();
  const auto results = run_processes(2, [&](int process) {
    set_torchrun(port, process + 1, 3);
    join(milliseconds(100));
  });
  check_all_fail(results, {": rank 0 did not arrive"});
}

TEST_CASE("a rank that dies while it waits for the others ends the rendezvous at once, with its name") {
  for (const int dies : {0, 1}) {
    const std::string port = fresh_port();
    const auto results = run_processes(2, [&](int rank) {
      set_torchrun(port, rank, 3);
      const pid_t child = rank == dies ? fork() : 0;
      if (child == 0) {
        join(seconds(60));
        _exit(0);
      }
      wait_until_entered(port, 1, 3);
      kill(child, SIGKILL);
    });
    const ExitStatus& other = results[static_cast<std::size_t>(1 - dies)];
    INFO(other.to_string());
    CHECK(other.code == 1);
    CHECK(contains(other.error, "rank " + std::to_string(dies) + " (process "));
    CHECK(contains(other.error, dies == 0 ? "has left or died" : ") ended before the group was made"));
  }
}

TEST_CASE("who comes late as another rank, job or world is refused with the reason, and the job is not disturbed") {
  const std::string port = fresh_port();
  const std::string twice = "was started twice: as process ", other = "another job uses this address: process ";
  struct Late {
    int rank, size;
    const char *token, *restart;
    std::vector<std::string> expected;
  };
  const std::vector<Late> all = {
      {0, 2, "secret one", "0", {twice}},
      {1, 2, "secret one", "0", {twice}},
      {0, 2, "secret two", "0", {other}},
      {1, 2, "secret two", "0", {other}},
      {0, 2, "secret one", "1", {other}},
      {2,
       5,
       "secret one",
       "0",
       {"ranks disagree about the number of ranks: rank ", ") has 2, rank 2 (process ",
        ") has 5\nGive all ranks the same WORLD_SIZE"}},
  };
  const NumberPipe together, refused;
  check_processes(2 + static_cast<int>(all.size()), [&](int process) {
    set_torchrun(port, process, 2);
    set_variable("LOCKSTEP_JOB_TOKEN", "secret one");
    if (process >= 2) {
      const Late& late = all[static_cast<std::size_t>(together.receive())];
      set_torchrun(port, late.rank, late.size);
      set_variable("LOCKSTEP_JOB_TOKEN", late.token);
      set_variable("TORCHELASTIC_RESTART_COUNT", late.restart);
      const std::string error = error_of<ls::Error>([] { join(); });
      refused.send(process);
      for (const std::string& part : late.expected) CHECK_MESSAGE(contains(error, part), error);
      CHECK_FALSE(contains(error, "secret"));
      CHECK_FALSE(contains(error, "(after "));  // it comes before the time-out
      return;
    }
    par::Rendezvous here = join();
    for (std::size_t i = 0; process == 0 && i < all.size(); ++i) {  // one after another
      together.send(static_cast<std::int64_t>(i));
      refused.receive();
    }
    here.store->set("done by " + std::to_string(process), "");
    here.store->get("done by 0");
    check_together(here);
  });
}

TEST_CASE("ranks with other world sizes or backends end at once, with both, on all ranks") {
  for (const Way& way : {kUnix, kTcp, kUrl, kFile}) {
    for (const bool is_size : {true, false}) {
      CAPTURE(way.name);
      const std::string port = fresh_port();
      const auto results = run_processes(2, [&](int rank) {
        join(way, port, rank, is_size ? 2 + rank : 2,
             {.backend = is_size || rank == 0 ? "shm" : "gloo", .timeout = seconds(60)});
      });
      check_all_fail(results,
                     {is_size ? "disagree about the number of ranks: rank " : "disagree about the backend: rank ",
                      "rank 0 (process ", is_size ? ") has 2" : ") has \"shm\"", "rank 1 (process ",
                      is_size ? ") has 3" : ") has \"gloo\""});
    }
  }
}

// A process with a network of its own is on another host, as far as the rendezvous can tell.
TEST_CASE("over a file, ranks of two hosts have an address on the network if their backend needs one") {
  const std::string path = std::filesystem::current_path().string() + "/networks" + fresh_port();
  check_processes(2, [&](int rank) {
    if (rank == 1 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return;
    par::RendezvousOptions options{.init_method = "file://" + path, .world_size = 2, .rank = rank};
    CHECK(par::rendezvous(options).address.empty());
    options.needs = [](const std::string&) { return par::BackendNeeds{.network_address = true}; };
    CHECK(par::rendezvous(options).address == par::address_on_network());
  });
}

TEST_CASE("an address that another program squats is an error before the time-out") {
  const std::string port = fresh_port();
  set_torchrun(port, 0, 2);
  const std::string name = par::membership_from_environment({}).local.socket;
  ls::Descriptor squatter(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(bind(squatter.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  std::string why = "does not listen";
  std::vector<ls::Descriptor> waiting;
  SUBCASE("without listening") {}
  SUBCASE("with a full queue") {
    why = "accepts no connection";
    REQUIRE(listen(squatter.get(), 1) == 0);
    while (ls::Descriptor next = par::connect_abstract(name)) waiting.push_back(std::move(next));
    REQUIRE(errno == EAGAIN);
  }
  const auto results = run_processes(2, [&](int rank) {
    set_torchrun(port, rank, 2);
    join(seconds(3600));
  });
  check_all_fail(results, {"a process holds the address and " + why + ": another program, or ", ": socket @" + name,
                           "choose another MASTER_PORT"});
  clear_environment();
}

// UBSan needs a file descriptor of its own to check the type of an object.
TEST_CASE("a rank without a file descriptor names the limit" * doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {
  std::string method = "env://";
  SUBCASE("env://") {}
  SUBCASE("tcp://") { method = "tcp://192.0.2.1:1234?rank=1&world_size=2"; }
  SUBCASE("file://") { method = "file://" + std::filesystem::current_path().string() + "/full?rank=1&world_size=2"; }
  const std::string port = fresh_port();
  const auto results = run_processes(1, [&](int) {
    set_torchrun(port, 1, 2);
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 0;  // for new ones
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    par::rendezvous({.backend = "gloo", .init_method = method, .timeout = seconds(3600), .authenticate = false});
  });
  check_all_fail(results, {"Too many open files"});
}

TEST_CASE("a run that ends lets the next one in") {
  const std::string port = fresh_port();
  const auto both = [&](const char* token) {
    check_processes(2, [&](int rank) {
      set_torchrun(port, rank, 2);
      setenv("LOCKSTEP_JOB_TOKEN", token, 1);
      join();
    });
  };
  both("one");
  both("two");
}

TEST_CASE("another program at the address is no store") {
  const std::string port = fresh_port();
  const auto results = run_processes(1, [&](int) {
    set_torchrun(port, 1, 2);
    const ls::Descriptor listener = par::listen_abstract(par::membership_from_environment({}).local.socket);
    REQUIRE(listener);
    check_processes(
        1, [](int) { CHECK(contains(error_of<ls::CommTimeout>([] { join(milliseconds(200)); }), "does not reply")); });
  });
  CHECK(results[0].ok());
}
