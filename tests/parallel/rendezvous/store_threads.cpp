// Every store does the same: threads of one process, clients of a Unix or TCP store, a file, and a prefix over any.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "tests/parallel/rendezvous/store_support.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;
using std::chrono::milliseconds;

namespace {

// Runs `test` with a function that gives thread i its handle of one shared store.
void with_each_store(const std::function<void(std::function<std::shared_ptr<par::Store>()>)>& test) {
  SUBCASE("InProcessStore") {
    const auto store = std::make_shared<par::InProcessStore>();
    test([=] { return store; });
  }
  SUBCASE("UnixStore, a client each") {
    const auto options = fresh_store();
    const auto server = serve(options);
    test([=] { return client_of(options); });
  }
  SUBCASE("UnixStore, one client for all") {
    const auto options = fresh_store();
    const auto server = serve(options);
    const std::shared_ptr<par::Store> client = client_of(options);
    test([=] { return client; });
  }
  SUBCASE("TcpStore, a client each") {
    const auto server = tcp_server();
    test([=] { return tcp_client(*server); });
  }
  SUBCASE("TcpStore, the server's for all") {
    const auto server = tcp_server();
    test([=] { return server; });
  }
  SUBCASE("TcpStore, the server's and clients in turn") {
    const auto server = tcp_server();
    const auto count = std::make_shared<std::atomic<int>>(0);
    test([=] { return ++*count % 2 ? server : tcp_client(*server); });
  }
  SUBCASE("TcpStore, without authentication") {
    par::TcpStoreOptions options{.is_server = true, .authenticate = false};
    const auto server = std::make_shared<par::TcpStore>("127.0.0.1", 0, options);
    options.is_server = false;
    test([=] { return std::make_shared<par::TcpStore>("localhost", server->port(), options); });
  }
  SUBCASE("FileStore, an open file each") {
    const std::string path = fresh_path();
    // The first keeps the file while the others come and go.
    const auto first = std::make_shared<par::FileStore>(path);
    test([=] { return first ? std::make_shared<par::FileStore>(path) : nullptr; });
  }
  SUBCASE("FileStore, one for all") {
    const auto store = std::make_shared<par::FileStore>(fresh_path());
    test([=] { return store; });
  }
  SUBCASE("PrefixStore") {
    const auto store = std::make_shared<par::InProcessStore>();
    test([=] { return std::make_shared<par::PrefixStore>("a/", store); });
  }
}

}  // namespace

TEST_CASE("values are bytes, and every call gives what its comment says") {
  with_each_store([](auto handle) {
    const std::shared_ptr<par::Store> store = handle();
    const std::string bytes("\0\xff\n", 3);
    store->set("k", bytes);
    CHECK(store->get("k") == bytes);
    store->set("k", "");
    CHECK(store->get("k") == "");

    CHECK(store->add("n", 5) == 5);
    CHECK(store->add("n", -7) == -2);
    CHECK(store->get("n") == "-2");
    store->set("n", "40");
    CHECK(store->add("n", 2) == 42);

    CHECK(store->compare_set("c", "x", "y") == "x");  // as torch.distributed's stores, here and below
    CHECK_FALSE(store->check({"c"}));
    CHECK(store->compare_set("c", "", "y") == "y");
    CHECK(store->compare_set("c", "", "z") == "y");
    CHECK(store->compare_set("c", "x", "z") == "y");
    CHECK(store->compare_set("c", "y", "") == "");
    CHECK(store->compare_set("c", "", "z") == "z");

    CHECK(store->delete_key("c"));
    CHECK_FALSE(store->delete_key("c"));
    store->wait({"k", "n"});
    store->wait({});

    CHECK(store->check({"k"}));
    CHECK(store->check({"k", "n"}));
    CHECK(store->check({}));
    CHECK_FALSE(store->check({"c"}));
    CHECK_FALSE(store->check({"k", "c", "n"}));
    CHECK_FALSE(store->check({"c"}));  // asking does not create it
    const std::string large(par::kMaxStoreValue, 'x');
    store->set("large", large);
    CHECK(store->get("large") == large);
  });
}

TEST_CASE("what is past a limit, or no number, is InvalidArgument, and the store goes on") {
  with_each_store([](auto handle) {
    const std::shared_ptr<par::Store> store = handle();
    CHECK_THROWS_AS(store->set(std::string(par::kMaxStoreKey + 1, 'k'), ""), ls::InvalidArgument);
    CHECK_THROWS_AS(store->set("k", std::string(par::kMaxStoreValue + 1, 'v')), ls::InvalidArgument);
    CHECK_THROWS_AS(store->wait(std::vector<std::string>(par::kMaxWaitKeys + 1, "k")), ls::InvalidArgument);
    CHECK_THROWS_AS(store->check(std::vector<std::string>(par::kMaxWaitKeys + 1, "k")), ls::InvalidArgument);
    CHECK_THROWS_AS(store->check({std::string(par::kMaxStoreKey + 1, 'k')}), ls::InvalidArgument);
    store->set("text", "4x");
    CHECK_THROWS_WITH_AS(store->add("text", 1), doctest::Contains("holds \"4x\", which is not a number"),
                         ls::InvalidArgument);
    store->set("most", "9223372036854775807");
    CHECK_THROWS_AS(store->add("most", 1), ls::InvalidArgument);
    CHECK(store->add("most", 0) == 9223372036854775807);
  });
}

TEST_CASE("check does not wait, and sees what other threads have set") {
  with_each_store([](auto handle) {
    run_threads(2, [&](int rank) {
      const std::shared_ptr<par::Store> store = handle();
      if (rank == 0) {
        CHECK_FALSE(store->check({"never", "from 1"}));
        store->set("asked", "");
        store->wait({"from 1"});
        CHECK(store->check({"from 1", "asked"}));
      } else {
        store->wait({"asked"});
        store->set("from 1", "one");
      }
    });
  });
}

TEST_CASE("get and wait return when another thread has set the keys") {
  with_each_store([](auto handle) {
    run_threads(3, [&](int rank) {
      const std::shared_ptr<par::Store> store = handle();
      if (rank == 0) CHECK(store->get("from 1") == "one");
      if (rank == 0) store->set("from 0", "zero");
      if (rank == 1) store->set("from 1", "one");
      if (rank == 1) store->wait({"from 2", "from 0"});
      if (rank == 2) store->wait({"from 0", "from 1"});
      if (rank == 2) store->set("from 2", "two");
    });
  });
}

TEST_CASE("additions of many threads all count, and one of them wins a compare_set") {
  with_each_store([](auto handle) {
    constexpr int kThreads = 4, kTimes = 50;
    std::atomic<int> winners{0};
    run_threads(kThreads, [&](int rank) {
      const std::shared_ptr<par::Store> store = handle();
      for (int i = 0; i < kTimes; ++i) store->add("sum", rank + 1);
      const std::string own = std::to_string(rank);
      if (store->compare_set("winner", "", own) == own) ++winners;
      store->add("done", 1);
    });
    CHECK(handle()->add("sum", 0) == kTimes * (1 + 2 + 3 + 4));
    CHECK(winners == 1);
  });
}

TEST_CASE("a wait that is over is a CommTimeout naming the key, and the store can be used again") {
  with_each_store([](auto handle) {
    const std::shared_ptr<par::Store> store = handle();
    CHECK_THROWS_WITH_AS(store->get("never", milliseconds(5)), doctest::Contains("never"), ls::CommTimeout);
    store->set("there", "1");
    CHECK_THROWS_WITH_AS(store->wait({"there", "never"}, milliseconds(5)), doctest::Contains("5 ms"), ls::CommTimeout);
    store->set_timeout(milliseconds(7));
    CHECK_THROWS_WITH_AS(store->get("never"), doctest::Contains("7 ms"), ls::CommTimeout);
    store->set_timeout(std::chrono::seconds(30));
    store->set("never", "now");
    CHECK(store->get("never") == "now");
  });
}

TEST_CASE("prefixes keep two users of one store apart") {
  const auto store = std::make_shared<par::InProcessStore>();
  par::PrefixStore a("a/", store), b("b/", store);
  a.set("k", "1");
  b.set("k", "2");
  CHECK(a.get("k") == "1");
  CHECK(store->get("b/k") == "2");
  CHECK_THROWS_AS(par::PrefixStore("p", nullptr), ls::InvalidArgument);
}

TEST_CASE("a last will sets the keys that are not there when it is destroyed, unless it was cancelled") {
  with_each_store([](const auto& open) {
    const auto dying = open(), other = open();
    other->set("known", "alive");
    auto will = dying->leave_last_will({"known", "unknown"}, "lost");
    if (!will) {
      CHECK(std::dynamic_pointer_cast<par::FileStore>(dying) != nullptr);  // which does not notice the end of a process
      return;
    }
    auto cancelled = dying->leave_last_will({"cancelled"}, "lost");
    CHECK_THROWS_AS(other->get("unknown", milliseconds(1)), ls::CommTimeout);
    cancelled->cancel();
    cancelled.reset();
    will.reset();
    CHECK(other->get("unknown") == "lost");
    CHECK(other->get("known") == "alive");
    CHECK_THROWS_AS(other->get("cancelled", milliseconds(1)), ls::CommTimeout);
  });
}

TEST_CASE("a server replies until the ranks have made their group, unless its own process could not") {
  for (const bool has_failed : {false, true}) {
    const auto options = fresh_store();
    auto server = serve(options);
    const auto slow = client_of(options);
    auto will = slow->leave_last_will({"failure"}, "lost");
    auto own = server->leave_last_will({"failure"}, "rank 0 has failed");
    if (!has_failed) own->cancel();
    own.reset();
    std::atomic<bool> has_ended{false};
    std::jthread end([&] {
      server.reset();
      has_ended = true;
    });
    const auto ask = [&] { slow->check({"key"}); };
    if (has_failed) {
      end.join();
      CHECK_THROWS_AS(ask(), ls::CommError);
      continue;
    }
    for (int i = 0; i < 100; ++i) ask();
    CHECK_FALSE(has_ended);
    will->cancel();
    end.join();
    CHECK_THROWS_AS(ask(), ls::CommError);
  }
}

namespace {

// Ends the server while one client waits, one is idle, and one has not asked yet.
template <class Server, class Client>
void check_end(Server server, const std::function<Client()>& client, const std::string& holder) {
  const auto waiting = client(), idle = client(), fresh = client();
  const std::string lost = ": " + holder + ", has left or died";
  run_threads(2, [&](int rank) {
    if (rank == 0) {
      // Whether it waits by then, or has yet to ask: the error is the same.
      CHECK_THROWS_WITH_AS(waiting->get("never", std::chrono::hours(1)),
                           doctest::Contains(("store: get \"never\"" + lost).c_str()), ls::CommError);
    } else {
      idle->set("here", "1");
      server.reset();
    }
  });
  for (const auto& each : {waiting, idle, fresh})
    CHECK_THROWS_WITH_AS(each->set("k", "v"), doctest::Contains(("store: set \"k\"" + lost).c_str()), ls::CommError);
}

}  // namespace

TEST_CASE("the end of the server ends a wait at once, and names the question, rank 0 and the address") {
  const auto options = fresh_store();
  check_end<std::unique_ptr<par::StoreServer>, std::shared_ptr<par::StoreClient>>(
      serve(options), [&] { return client_of(options); },
      "rank 0 (process " + std::to_string(getpid()) + "), which holds the store at test:1");
  auto server = tcp_server();
  const int port = server->port();
  check_end<std::shared_ptr<par::TcpStore>, std::shared_ptr<par::TcpStore>>(
      std::move(server), [&] { return std::make_shared<par::TcpStore>("127.0.0.1", port, tcp_options(false)); },
      "rank 0, which holds the store at 127.0.0.1:" + std::to_string(port));
}
