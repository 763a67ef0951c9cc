// A store and a rendezvous over a network that misbehaves (tests/support/proxy.h): what comes late, in pieces or together is
// right; what is altered or lost is an error in time, never another value; nobody else notices. LOCKSTEP_CHAOS_TRIALS and
// LOCKSTEP_CHAOS_SEED ask for more seeds, or for one again (scripts/chaos.sh).
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"
#include "tests/parallel/rendezvous/store_support.h"
#include "tests/support/ports.h"
#include "tests/support/proxy.h"
#include "tests/support/ranks.h"
#include "tests/support/testing.h"

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr milliseconds kPatient = seconds(30), kHasty(1000);
constexpr milliseconds kHang = seconds(20);  // past time-out + 1 s even on a loaded machine

int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

void for_each_seed(int trials, const std::function<void(const ProxyPlan& plan)>& check) {
  const int first = from_environment("LOCKSTEP_CHAOS_SEED", 1);
  trials = from_environment("LOCKSTEP_CHAOS_TRIALS", trials);
  for (int seed = first; seed < first + trials; ++seed) {
    CAPTURE(seed);
    check(ProxyPlan(static_cast<unsigned>(seed)));
  }
}

// Whether `work` was done; if not, by a CommError, and in time.
bool succeeds(const ProxyPlan& plan, const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  std::string error;
  try {
    work();
  } catch (const ls::CommError& caught) {
    error = caught.what();
  }
  CHECK(std::chrono::steady_clock::now() - began < kHang);
  if (plan.harm == Harm::kNone) CHECK_MESSAGE(error.empty(), error);
  return error.empty();
}

// Clients on both sides of the proxy. An `add` whose answer was lost may have been carried out.
void check_store(const ProxyPlan& plan) {
  const auto server = tcp_server(), beside = tcp_client(*server);
  Proxy proxy(server->port(), plan);
  par::TcpStoreOptions options = tcp_options(false);
  options.timeout = plan.harm == Harm::kNone ? kPatient : kHasty;

  std::shared_ptr<par::TcpStore> client;
  for (int tries = 0; !client && tries < 20; ++tries)
    succeeds(plan, [&] { client = std::make_shared<par::TcpStore>("127.0.0.2", proxy.port(), options); });
  REQUIRE(client);

  const std::string large(300, 'x');
  std::int64_t least = 0, most = 0;
  bool was_served = false;
  for (int round = 0; round < 12; ++round) {
    const std::string key = "k" + std::to_string(round), value = large + std::to_string(round);
    beside->set(key, value);
    was_served = succeeds(plan, [&] {
      const std::string got = client->get(key, options.timeout);
      CHECK(got == value);
    });
    ++most;
    was_served &= succeeds(plan, [&] {
      const std::int64_t sum = client->add("sum", 1);
      CHECK(sum > least);
      CHECK(sum <= most);
      least = most = sum;
    });
    was_served &= succeeds(plan, [&] {
      client->set("from client", value);
      CHECK(beside->get("from client") == value);
      const std::string left = client->compare_set("from client", value, "");
      CHECK(left.empty());
    });
    const std::int64_t sum = beside->add("sum", 0);
    CHECK(sum >= least);
    CHECK(sum <= most);
    least = most = sum;
  }
  CHECK(was_served);  // only one of the first connections is harmed, and the client has made another
  if (plan.harm != Harm::kNone && plan.harmed == 0) CHECK(proxy.has_harmed());
  CHECK(tcp_client(*server)->get("k0") == large + "0");
}

void check_rendezvous(const ProxyPlan& plan) {
  const int port = free_port();
  const milliseconds timeout = plan.harm == Harm::kNone ? kPatient : seconds(1);
  Proxy proxy(port, plan);
  bool has_met[2] = {false, false};
  run_threads(2, [&](int rank) {
    const par::Membership own{.rank = rank,
                              .size = 2,
                              .address = "the test",
                              .is_one_host = false,
                              .host = rank == 0 ? "127.0.0.1" : "127.0.0.2",
                              .port = port,
                              .store = {.token = kToken, .job = "job"}};
    has_met[rank] = succeeds(plan, [&] {
      const par::Rendezvous here = par::join_at_endpoint({.timeout = timeout}, own);
      here.store->set("from " + std::to_string(rank), std::to_string(rank));
      if (rank == 1) return;
      const std::string got = here.store->get("from 1", timeout);
      CHECK(got == "1");
    });
  });
  if (plan.harm == Harm::kNone) CHECK((has_met[0] && has_met[1]));
}

}  // namespace

TEST_CASE("a store over a network that misbehaves: right answers, or an error in time") {
  for_each_seed(25, check_store);
}

TEST_CASE("ranks meet over a network that misbehaves, or hear so in time") {
  ls::on_warning([](const std::string&) {});
  for_each_seed(15, check_rendezvous);
  ls::on_warning({});
}
