// The rank that errors name when ranks fail while they create a group: FormationWatch, over a store of threads.
#include <atomic>
#include <thread>

#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "tests/support/testing.h"

namespace par = ls::parallel;

namespace {

// Reports `error` on one rank, and returns the error that the rank throws.
template <class Error>
std::string explain(par::FormationWatch& rank, const char* error) {
  try {
    rank.explain(Error(error));
    return error;
  } catch (const ls::CommError& other) {
    return other.what();
  }
}

}  // namespace

TEST_CASE("a rank that waits elsewhere replies to one that times out") {
  const auto store = std::make_shared<par::InProcessStore>();
  par::FormationWatch first(store, "here", 0, 2, false), second(store, "here", 1, 2, false);
  SUBCASE("it replies") {
    const std::jthread answers = par::formation_answers(&first);
    CHECK(explain<ls::CommTimeout>(second, "late") == "late");
  }
  SUBCASE("it does not") { CHECK(contains(explain<ls::CommTimeout>(second, "late"), "rank 0 does not reply")); }
}

TEST_CASE("a rank that loses a connection with one that times out names the rank that both wait for") {
  // Says when a rank begins to wait for the reason.
  class Noticed final : public par::Store {
   public:
    std::string request(const par::StoreRequest& request, std::chrono::milliseconds timeout) override {
      if (request.op == par::StoreOp::kGet && !has_begun.test_and_set()) has_begun.notify_all();
      return store_.request(request, timeout);
    }
    std::atomic_flag has_begun;

   private:
    par::InProcessStore store_;
  };
  const auto store = std::make_shared<Noticed>();
  par::FormationWatch first(store, "here", 0, 3, false), second(store, "here", 1, 3, false);
  std::string of_second;
  {
    const std::jthread answers = par::formation_answers(&second);
    const std::jthread other([&] { of_second = explain<ls::CommError>(second, "rank 0 has closed"); });
    store->has_begun.wait(false);
    CHECK(contains(explain<ls::CommTimeout>(first, "late"), "rank 2 does not reply"));
  }
  CHECK(contains(of_second, "rank 2 does not reply"));
}
