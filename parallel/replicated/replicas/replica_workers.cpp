#include "lockstep/parallel/replicated/replicas/replica_workers_internal.h"

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/trace.h"

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

}  // namespace

ReplicaWorkers::ReplicaWorkers(std::size_t count) {
  for (std::size_t r = 0; r < count; ++r) workers_.push_back(std::make_unique<ReplicaWorker>());
}

bool ReplicaWorkers::run(FunctionRef<void(int replica)> body, std::span<std::exception_ptr> errors) {
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock) return false;
  std::vector<Callback<void()>> tasks;
  for (std::size_t r = 0; r < errors.size(); ++r) tasks.emplace_back([&body, r] { body(static_cast<int>(r)); });
  const TraceSpan span(TraceKind::kWait, "replicas");  // includes the time to wake the threads
  for (std::size_t r = 0; r < tasks.size(); ++r) workers_[r]->start(&tasks[r]);
  for (std::size_t r = 0; r < tasks.size(); ++r) errors[r] = workers_[r]->wait();
  return true;
}

void run_replicas(ReplicaWorkers* workers, std::span<const Device> devices, FunctionRef<void(int replica)> body) {
  std::vector<std::exception_ptr> errors(devices.size());
  const auto traced = [&](int r) {
    const TraceTime begin = TraceTime::now();
    body(r);
    trace_event(TraceKind::kReplica, "replica", begin, {.id = r});
  };
  if (!workers || !workers->run(traced, errors)) {
    for (std::size_t r = 0; r < devices.size(); ++r) {
      try {
        traced(static_cast<int>(r));
      } catch (...) {
        errors[r] = std::current_exception();
      }
    }
  }
  for (std::size_t r = 0; r < errors.size(); ++r) {
    if (errors[r]) rethrow(errors[r], r, devices[r]);
  }
}

}  // namespace lockstep::parallel
