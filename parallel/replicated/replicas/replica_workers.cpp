#include "lockstep/parallel/replicated/replicas/replica_workers_internal.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/step/replica_exchange_internal.h"

namespace lockstep::parallel {
namespace {

[[noreturn]] void rethrow(const std::exception_ptr& what, std::size_t replica, Device device) {
  const std::string where = fmt::format("DataParallel: replica {} on {}", replica, device.to_string());
  try {
    std::rethrow_exception(what);
  } catch (Error& error) {
    error.add_context(where);
    throw;
  } catch (const std::exception& error) {
    throw Error(where + ": " + error.what());
  }
}

// Returns the exception of `body`, null if there was none.
std::exception_ptr run_here(FunctionRef<void(int replica)> body, int replica) {
  try {
    body(replica);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

ReplicaWorkers::ReplicaWorkers(std::size_t replicas) {
  const bool spins = replicas <= static_cast<std::size_t>(usable_cores());
  for (std::size_t r = 1; r < replicas; ++r) workers_.push_back(std::make_unique<ReplicaWorker>(spins));
}

bool ReplicaWorkers::run(FunctionRef<void(int replica)> body, std::span<std::exception_ptr> errors) {
  if (busy_.test_and_set(std::memory_order_acquire)) return false;
  for (std::size_t r = 1; r < errors.size(); ++r) workers_[r - 1]->start(body, static_cast<int>(r));
  errors[0] = run_here(body, 0);
  const TraceSpan span(TraceKind::kWait, "replicas");
  for (std::size_t r = 1; r < errors.size(); ++r) errors[r] = workers_[r - 1]->wait();
  busy_.clear(std::memory_order_release);
  return true;
}

void run_replicas(ReplicaWorkers* workers, std::span<const Device> devices, FunctionRef<void(int replica)> body) {
  std::vector<std::exception_ptr> errors(devices.size());
  ReplicaExchange exchange(devices.size());
  RunningMicroBatches running{.exchange = &exchange};
  const auto traced = [&](int r) {
    const TraceTime begin = TraceTime::now();
    const RunningGuard guard({.in_turn = running.in_turn, .exchange = running.exchange, .replica = r});
    const Finally leave([&, before = std::uncaught_exceptions()] {
      exchange.leave(r, /*failed=*/std::uncaught_exceptions() > before);
    });
    body(r);
    trace_event(TraceKind::kReplica, "replica", begin, {.id = r});
  };
  if (!workers || !workers->run(traced, errors)) {
    running = {.in_turn = static_cast<int>(devices.size())};
    for (std::size_t r = 0; r < devices.size(); ++r) errors[r] = run_here(traced, static_cast<int>(r));
  }
  if (const int failed = exchange.failure(); failed >= 0) {
    const auto r = static_cast<std::size_t>(failed);
    rethrow(errors[r], r, devices[r]);
  }
}

}  // namespace lockstep::parallel
