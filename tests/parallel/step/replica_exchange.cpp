#include "lockstep/parallel/step/replica_exchange_internal.h"

#include "tests/support/testing.h"

namespace {

using ls::parallel::ReplicaExchange;

std::string waiting(ReplicaExchange& exchange, int replica) {
  return error_of<ls::Error>([&] { exchange.all_gather("test", replica, numbers({1})); });
}

}  // namespace

TEST_CASE("the failure that is reported is the lowest replica's, in whatever order replicas fail") {
  ReplicaExchange exchange(3);
  exchange.leave(2, /*failed=*/true);
  CHECK(exchange.failure() == 2);
  exchange.leave(0, /*failed=*/false);
  exchange.leave(1, /*failed=*/true);
  CHECK(exchange.failure() == 1);
}

TEST_CASE("a replica that fails because another has ended is reported only if none failed by itself") {
  ReplicaExchange failed(3);
  failed.leave(2, /*failed=*/true);
  CHECK(contains(waiting(failed, 0), "replica 0 waits for replica 2"));
  failed.leave(0, /*failed=*/true);
  failed.leave(1, /*failed=*/false);
  CHECK(failed.failure() == 2);

  ReplicaExchange returned(2);
  returned.leave(0, /*failed=*/false);
  CHECK(contains(waiting(returned, 1), "replica 1 waits for replica 0"));
  returned.leave(1, /*failed=*/true);
  CHECK(returned.failure() == 1);
}
