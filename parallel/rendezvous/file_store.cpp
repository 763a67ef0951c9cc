#include "lockstep/parallel/rendezvous/file_store.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/frame_guard_internal.h"
#include "lockstep/parallel/rendezvous/store_file_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollWithoutEvents{10};
constexpr std::chrono::seconds kLeaveDeadline{1};

// Says when a file is written to. The kernel has few of these for each user; without one the time just passes.
class FileEvents {
 public:
  explicit FileEvents(const StoreFile& file) : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    const std::string path = fmt::format("/proc/self/fd/{}", file.descriptor());
    if (events_ && ::inotify_add_watch(events_.get(), path.c_str(), IN_MODIFY | IN_ATTRIB) < 0) events_.reset();
  }
  void wait(milliseconds slice) {
    pollfd ready{events_.get(), POLLIN, 0};  // without events: a descriptor that poll leaves out
    const milliseconds time = events_ ? slice : std::min(slice, kPollWithoutEvents);
    if (::poll(&ready, 1, static_cast<int>(time.count())) <= 0) return;
    char buffer[4096];
    while (::read(events_.get(), buffer, sizeof(buffer)) > 0) {
    }
  }

 private:
  Descriptor events_;
};

}  // namespace

struct FileStore::State {
  std::mutex mutex;
  std::optional<StoreFile> file;
  std::string user;  // a name of its own
  pid_t owner = ::getpid();
  int world_size = -1;
  int wills = 0;  // so far

  // Runs `work` on the file as it is now, alone among all its users.
  template <class Work>
  auto with_file(milliseconds timeout, Work work) {
    const std::lock_guard guard(mutex);
    file->lock(Deadline(timeout));
    struct Unlock {
      StoreFile& file;
      ~Unlock() { file.unlock(); }
    } unlock{*file};
    LOCKSTEP_CHECK_IO(file->is_current(), "FileStore: {}: it was removed, or replaced by another", file->path());
    file->catch_up();
    file->carry_out_wills();
    return work(*file);
  }

  void open(const std::string& path, milliseconds timeout);
  void leave();
  std::string wait(const std::vector<std::string>& keys, milliseconds timeout);
};

// Between opening and locking the last user may have removed the file; then the next try makes another.
void FileStore::State::open(const std::string& path, milliseconds timeout) {
  Deadline deadline(timeout);
  for (;;) {
    file.emplace(path);
    file->lock(deadline);
    if (file->is_current()) break;
    LOCKSTEP_CHECK_IO(!deadline.passed(), "FileStore: {}: it was removed again and again for {} ms", path,
                      timeout.count());
  }
  file->begin();
  const Digest random = random_digest();
  user.assign(random.data(), 16);
  file->join(user);
  file->unlock();
}

void FileStore::State::leave() {
  if (::getpid() != owner) return;  // a fork has not joined
  with_file(kLeaveDeadline, [&](StoreFile& the_file) {
    the_file.leave(user);
    if (!the_file.has_living_users() && the_file.joined() >= world_size) the_file.remove();
  });
}

// The value of the first key.
std::string FileStore::State::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  Deadline deadline(timeout);
  const auto end = Deadline::Clock::now() + timeout;
  FileEvents events(*file);  // before the first look, so that no change is missed
  for (;;) {
    std::string missing, value;
    const auto left = std::chrono::ceil<milliseconds>(end - Deadline::Clock::now());
    const bool is_there = with_file(std::max(left, kAttempt), [&](StoreFile& the_file) {
      const std::string* first = the_file.table().first_missing(keys);
      if (first) missing = *first;
      if (!first) value = *the_file.table().find(keys.at(0));
      return !first;
    });
    if (is_there) return value;
    const milliseconds slice = deadline.slice();  // first: it may move the deadline
    if (deadline.passed())
      throw CommTimeout(fmt::format("FileStore: {}: nobody has set {} within {} ms", file->path(), in_quotes(missing),
                                    timeout.count()));
    events.wait(slice);
  }
}

FileStore::FileStore(const std::string& path, const FileStoreOptions& options) : state_(std::make_unique<State>()) {
  LOCKSTEP_CHECK(options.timeout.count() > 0, "FileStore: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  LOCKSTEP_CHECK(options.world_size >= 1 || options.world_size == -1,
                 "FileStore: the world size is {}, expected 1 or more, or -1 for any number", options.world_size);
  set_timeout(options.timeout);
  state_->world_size = options.world_size;
  state_->open(path, options.timeout);
}

FileStore::~FileStore() {
  try {
    state_->leave();
  } catch (const std::exception&) {
    // A file that somebody broke or keeps locked stays, for the next run to begin anew or to complain about.
  }
}

void FileStore::set(const std::string& key, const std::string& value) {
  check_store_value(key, value);
  state_->with_file(timeout(), [&](StoreFile& file) { file.set(key, value); });
}

std::string FileStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  check_store_key(key);
  return state_->wait({key}, timeout);
}

std::int64_t FileStore::add(const std::string& key, std::int64_t amount) {
  check_store_key(key);
  return state_->with_file(timeout(), [&](StoreFile& file) { return file.add(key, amount); });
}

std::string FileStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return state_->with_file(timeout(), [&](StoreFile& file) { return file.compare_set(key, expected, desired); });
}

void FileStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  check_store_keys(keys);
  if (!keys.empty()) state_->wait(keys, timeout);
}

bool FileStore::delete_key(const std::string& key) {
  check_store_key(key);
  return state_->with_file(timeout(), [&](StoreFile& file) { return file.delete_key(key); });
}

class FileStore::Will final : public LastWill {
 public:
  Will(State& state, std::string name) : state_(state), name_(std::move(name)) {}
  ~Will() override {
    end([&](StoreFile& file) { file.carry_out_will(name_); });
  }
  void cancel() override {
    end([&](StoreFile& file) { file.cancel_will(name_); });
  }

 private:
  template <class Work>
  void end(Work work) {
    if (::getpid() != state_.owner) return;
    try {
      state_.with_file(kLeaveDeadline, work);
    } catch (const std::exception&) {
      // The file is broken, gone or locked: the end of the process remains.
    }
  }

  State& state_;
  std::string name_;
};

std::unique_ptr<LastWill> FileStore::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  check_store_keys(keys);
  for (const std::string& key : keys) check_store_value(key, value);
  const std::string name = state_->with_file(timeout(), [&](StoreFile& file) {
    std::string own = fmt::format("{}/{}", state_->user, state_->wills++);
    file.leave_will(own, keys, value);
    return own;
  });
  return std::make_unique<Will>(*state_, name);
}

}  // namespace lockstep::parallel
