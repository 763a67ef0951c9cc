#include "lockstep/data/prefetch.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/autocast.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::data {

struct Prefetcher::State {
  struct Result {
    std::shared_ptr<void> value;
    std::exception_ptr error;
    bool ready = false;
  };

  void work();
  bool may_start() const { return started < last && started - consumed < ahead; }
  Result& result_of(std::int64_t job_number) { return results[static_cast<std::size_t>(job_number % ahead)]; }

  Job job;
  std::int64_t last, ahead;
  // The modes of the creating thread, for the workers:
  const std::optional<DType> autocast = autocast_dtype();
  const std::shared_ptr<random::RankState> rank = random::rank_state();

  std::mutex mutex;
  std::condition_variable room, arrived;  // room: a worker may start a job; arrived: the next result is ready
  std::int64_t started, consumed;         // numbers of the next job to start and of the next result to return
  std::vector<Result> results;            // ring buffer: the result of job i is at i % ahead
  bool stop = false;
  std::vector<std::thread> threads;

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
};

void Prefetcher::State::work() {
  const AutocastGuard autocast_mode(autocast);
  const random::RankStateGuard of_rank(rank);
  std::unique_lock lock(mutex);
  while (true) {
    room.wait(lock, [&] { return stop || may_start() || started == last; });
    if (stop || started == last) return;
    const std::int64_t number = started++;
    lock.unlock();
    Result result;
    try {
      result.value = job(number);
    } catch (...) {
      result.error = std::current_exception();
    }
    result.ready = true;
    lock.lock();
    result_of(number) = std::move(result);  // under the lock, so that only the consumer owns the exception afterwards
    if (number == consumed) arrived.notify_one();
    if (started == last) room.notify_all();
  }
}

Prefetcher::Prefetcher(int workers, std::int64_t ahead, std::int64_t first, std::int64_t last, Job job)
    : state_(std::make_unique<State>()) {
  state_->job = std::move(job);
  state_->last = std::max(first, last);
  state_->ahead = std::clamp<std::int64_t>(ahead, 1, std::max<std::int64_t>(1, last - first));
  state_->started = state_->consumed = first;
  state_->results.resize(static_cast<std::size_t>(state_->ahead));
  const auto count = static_cast<int>(std::min<std::int64_t>(workers, last - first));
  for (int i = 0; i < count; ++i) {
    try {
      state_->threads.emplace_back([state = state_.get()] { state->work(); });
    } catch (const std::system_error& error) {
      throw DeviceError(
          fmt::format("DataLoader: cannot start worker thread {} of {}: {}; lower .num_workers, or raise "
                      "the limit on processes (ulimit -u)",
                      i + 1, count, error.what()));
    }
  }
}

Prefetcher::~Prefetcher() = default;

std::shared_ptr<void> Prefetcher::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  LOCKSTEP_CHECK(state.consumed < state.last, "Prefetcher: next was called more often than there are jobs");
  State::Result& place = state.result_of(state.consumed);
  state.arrived.wait(lock, [&] { return place.ready; });
  State::Result result = std::exchange(place, {});
  ++state.consumed;
  lock.unlock();
  state.room.notify_one();
  if (result.error) std::rethrow_exception(std::move(result.error));
  return std::move(result.value);
}

}  // namespace lockstep::data
