// Jobs that start while others flood the port of rank 0 with connections. LOCKSTEP_FLOOD_TRIALS: the number of starts.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using std::chrono::seconds;

namespace {

// The ClientHello of a process with another token, but with the identity of this job.
std::string other_client_hello(int port, const std::string& job) {
  const par::TcpCredentials other =
      par::make_credentials({.token = "another0another0another0another0", .job = job}, port);
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const auto stream = other.tls->stream(ls::Descriptor(pair[0]), par::TlsRole::kClient);
  const ls::Descriptor end(pair[1]);
  std::string hello;
  std::size_t sent = 0;
  stream->send("hello", sent);
  par::receive_some(end, hello, 4096);
  return hello;
}

// A process whose threads connect as fast as they can: most connections close at once, some stay silent, some have another
// token.
class Flood {
 public:
  Flood(int threads, int port, const std::string& hello)
      : connections_(static_cast<std::atomic<long>*>(
            ::mmap(nullptr, sizeof(std::atomic<long>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(static_cast<void*>(connections_) != MAP_FAILED);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i)
      running.emplace_back([&, i] { run(par::resolve("127.0.0.1", port).at(0), hello, static_cast<unsigned>(i)); });
    running[0].join();
    ::_exit(1);
  }
  ~Flood() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::munmap(connections_, sizeof(*connections_));
  }
  long connections() const { return *connections_; }

 private:
  [[noreturn]] void run(const par::TcpAddress& address, const std::string& hello, unsigned seed) {
    std::mt19937 random(seed);
    std::deque<ls::Descriptor> silent;
    for (;;) {
      ls::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      // A queue that is full leaves the connection waiting, which is as good as silent.
      const int result = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size);
      if (result != 0 && errno != EINPROGRESS) {
        ::sched_yield();  // nobody listens yet
        continue;
      }
      ++*connections_;
      std::size_t sent = 0;
      if (random() % 8 == 1) par::send_some(socket, hello, sent);
      if (random() % 8 == 0) silent.push_back(std::move(socket));
      if (silent.size() > 200) silent.pop_front();
    }
  }

  std::atomic<long>* connections_;
  pid_t process_ = -1;
};

}  // namespace

TEST_CASE("jobs start while others flood rank 0's port") {
  const char* const given = std::getenv("LOCKSTEP_FLOOD_TRIALS");
  const int trials = given ? std::atoi(given) : 2;
  const std::string port = fresh_port();
  ls::on_warning([](const std::string&) {});
  int started = 0;
  long connections = 0;
  const auto began = std::chrono::steady_clock::now();
  for (int trial = 0; trial < trials; ++trial) {
    const Flood flood(LOCKSTEP_SLOWDOWN > 1 ? 1 : 2, std::stoi(port),  // an instrumented server accepts fewer
                      other_client_hello(std::stoi(port), "run run " + port + " restart 0 job none"));
    const auto results = run_processes(3, [&](int rank) {
      set_two_hosts(port, rank, 3);
      par::Rendezvous here = par::rendezvous({.backend = "gloo", .timeout = seconds(60)});
      here.store->set("left " + std::to_string(rank), "");
      if (rank == 0) here.store->wait({"left 1", "left 2"});
    });
    bool is_started = true;
    for (const ExitStatus& result : results) {
      CHECK_MESSAGE(result.ok(), result.to_string());
      is_started = is_started && result.ok();
    }
    started += is_started;
    connections += flood.connections();
  }
  ls::on_warning({});
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  MESSAGE(started, " of ", trials, " jobs of 3 ranks started within ", took / trials, " s each, under ",
          static_cast<long>(static_cast<double>(connections) / took), " connections a second");
}
