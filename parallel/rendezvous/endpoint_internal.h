// The endpoint at which rank 0 serves a store: an abstract Unix socket on one host, a TCP port of rank 0 between hosts.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"

namespace lockstep::parallel {

// One attempt to get a store.
struct Attempt {
  std::shared_ptr<Store> store = nullptr;
  bool is_host = false;                                    // the store is in this process
  std::string failure = {};                                // the reason, if there is no store; empty: unknown
  bool is_foreign = false;                                 // the endpoint belongs to another job, which may be ending
  std::chrono::milliseconds longest = kHandshakeDeadline;  // longest duration of the attempt
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // Both throw UnknownHost if a retry may succeed, CommError if the address cannot be used at all.
  // For rank 0: serves a store at the endpoint and joins it. No store if another process has the address.
  virtual Attempt host() = 0;
  // Tries once to join the store at the endpoint.
  virtual Attempt join(Deadline deadline) = 0;
  // This host's address on the network to the other ranks.
  virtual std::string own_address() = 0;
};
std::unique_ptr<Endpoint> make_endpoint(const Membership& own);

// The time for attempts to get a store, and the pauses between them.
class RetryBudget {
 public:
  // `where` begins the messages. On one host the pauses stay short.
  RetryBudget(std::string where, std::chrono::milliseconds timeout, bool is_one_host);
  // Calls `attempt` until it returns a store. Throws CommError or CommTimeout if the budget is spent. A host name without
  // an address may get one, and an endpoint of another run may be about to end: kStaleRun is granted to that run.
  std::shared_ptr<Store> retry(Callback<Attempt()> attempt);
  // The rest of the timeout, but at least kAttempt, so that a request just before the end receives its reply.
  std::chrono::milliseconds time_left() const;

 private:
  void pause(const Attempt& failed);

  std::string where_, failure_ = "rank 0 did not arrive";  // failure_: of the last attempt
  std::chrono::milliseconds timeout_, pause_ = kConnectPoll, longest_pause_;
  Deadline::Clock::time_point end_;
  Deadline deadline_;
  std::optional<Deadline::Clock::time_point> foreign_since_;
};

}  // namespace lockstep::parallel
