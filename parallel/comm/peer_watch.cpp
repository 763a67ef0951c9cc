#include "lockstep/parallel/comm/peer_watch_internal.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/comm/backend_internal.h"

namespace lockstep::parallel {
namespace {

constexpr const char* kFailure = "watch/failure";
constexpr const char* kLeftInOrder = "left";
constexpr int kShownRanks = 8;

std::string key_of(const char* what, int rank) { return fmt::format("watch/{}/{}", what, rank); }

}  // namespace

// The last heartbeat of a rank: "17 4" are the numbers of heartbeats and of started collectives; "left" is appended at
// the rank's end.
struct PeerWatch::Heartbeat {
  std::string text;
  bool has_left() const { return text.ends_with(kLeftInOrder); }
  std::string collectives() const {
    const std::size_t from = text.find(' ');
    if (from == std::string::npos) return "no";
    const std::string count = text.substr(from + 1, text.find(' ', from + 1) - from - 1);
    const bool is_number = count.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? count : lockstep::in_quotes(count);
  }
};

PeerWatch::PeerWatch(PeerWatchOptions options, Callback<void()> on_failure)
    : options_(std::move(options)), on_failure_(std::move(on_failure)), next_((options_.rank + 1) % options_.size),
      heard_at_(std::chrono::steady_clock::now()) {
  options_.store->set(key_of("process", options_.rank), process_identity(::getpid()));
  beat();
  thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  try {
    if (has_failed() && options_.rank == 0) wait_for_hearers();
    options_.store->set(key_of("sign", options_.rank),
                        fmt::format("{} {} {}", beats_, collectives_.load(), kLeftInOrder));
  } catch (const Error&) {  // the store has ended, so no rank reads the heartbeat
  }
}

void PeerWatch::wait_for_hearers() {
  std::vector<std::string> keys;
  for (int r = 1; r < options_.size; ++r) {
    if (!has_ended(value_of(key_of("process", r)))) keys.push_back(key_of("heard", r));
  }
  options_.store->wait(keys, 2 * options_.beat);
}

std::string PeerWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void PeerWatch::remember_holder() {
  std::string mark = options_.store->get(key_of("process", 0));
  const std::lock_guard lock(mutex_);
  holder_ = std::move(mark);
}

void PeerWatch::take(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = why.empty() ? "the group has failed" : why;
    failed_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  on_failure_();
  try {
    options_.store->set(key_of("heard", options_.rank), "1");
  } catch (const Error&) {  // no rank waits for the key any more
  }
}

void PeerWatch::fail(const std::string& why) {
  std::string first = why;
  try {
    first = options_.store->compare_set(kFailure, "", why);
  } catch (const Error&) {  // without the store each rank has its own text
  }
  take(first);
}

std::string PeerWatch::fail_of_transport(const std::string& why) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 3 * options_.beat, [this] { return stopping_ || !failure_.empty(); });
  }
  fail(why);
  return failure();
}

// Returns the value of the key, or "" if it does not exist.
std::string PeerWatch::value_of(const std::string& key) {
  return options_.store->check({key}) ? options_.store->get(key) : "";
}

PeerWatch::Heartbeat PeerWatch::heartbeat_of(int rank) { return {value_of(key_of("sign", rank)).substr(0, 64)}; }

std::string PeerWatch::progress() {
  std::string text;
  try {
    for (int r = 0; r < std::min(options_.size, kShownRanks); ++r) {
      const Heartbeat heartbeat = heartbeat_of(r);
      const std::string count = r == options_.rank ? std::to_string(collectives_.load()) : heartbeat.collectives();
      text += fmt::format("{}{} has started {}{}", r == 0 ? "" : ", ", rank_text(r, options_.members), count,
                          heartbeat.has_left() ? " and left" : "");
    }
  } catch (const Error& error) {
    return fmt::format("the progress of the other ranks is unknown: {}", error.what());
  }
  return text + " collectives";
}

void PeerWatch::beat() {
  options_.store->set(key_of("sign", options_.rank), fmt::format("{} {}", ++beats_, collectives_.load()));
}

void PeerWatch::run() {
  auto looked = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_ && failure_.empty()) {
    lock.unlock();
    const auto now = std::chrono::steady_clock::now();
    // This process was suspended meanwhile, so the age of the other rank's heartbeat means nothing.
    if (now - looked > options_.beat + std::chrono::seconds(2)) heard_at_ = now;
    looked = now;
    try {
      beat();
      look_at_next();
      beats_missed_ = 0;
    } catch (const Error& error) {
      miss_store(error.what());
    }
    lock.lock();
    if (!stopping_ && failure_.empty()) changed_.wait_for(lock, options_.beat);
  }
}

// Rank 0 may have left in order and ended the store, which is not a failure yet.
void PeerWatch::miss_store(const std::string& why) {
  const std::string holder = [&] {
    const std::lock_guard lock(mutex_);
    return holder_;
  }();
  if (++beats_missed_ >= 2 && has_ended(holder)) orphaned_.store(true, std::memory_order_release);
  if (std::chrono::steady_clock::now() - heard_at_ > options_.silence)
    take(fmt::format("the store does not answer: {}", why));
}

void PeerWatch::look_at_next() {
  const auto now = std::chrono::steady_clock::now();
  if (const std::string failure = value_of(kFailure); !failure.empty()) return take(failure);
  if (next_ == options_.rank) return;  // all others have left
  const Heartbeat heartbeat = heartbeat_of(next_);
  if (heartbeat.has_left()) {
    next_ = (next_ + 1) % options_.size;
    heard_.clear();
    heard_at_ = now;
    return;
  }
  if (heartbeat.text != heard_) {
    heard_ = heartbeat.text;
    heard_at_ = now;
  }
  if (has_ended(value_of(key_of("process", next_))))
    return fail(rank_text(next_, options_.members) + " is gone: its process has ended");
  if (now - heard_at_ > options_.silence)
    fail(fmt::format("{} is gone: it sent no heartbeat for {} ms", rank_text(next_, options_.members),
                     options_.silence.count()));
}

}  // namespace lockstep::parallel
