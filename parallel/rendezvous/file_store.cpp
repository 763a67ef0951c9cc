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
#include "lockstep/parallel/rendezvous/store_file_internal.h"
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
  pid_t owner = ::getpid();
  int world_size = -1;

  // Runs `work` on the file while no other user accesses it.
  template <class Work>
  auto with_file(milliseconds timeout, Work work) {
    const std::lock_guard guard(mutex);
    file->lock(Deadline(timeout));
    struct Unlock {
      StoreFile& file;
      ~Unlock() { file.unlock(); }
    } unlock{*file};
    LOCKSTEP_CHECK_IO(file->is_current(), "FileStore: {}: it was removed, or replaced by another", file->path());
    return work(*file);
  }

  void open(const std::string& path, milliseconds timeout);
};

// Between opening and locking the last user may have removed the file; then the next try creates another.
void FileStore::State::open(const std::string& path, milliseconds timeout) {
  Deadline deadline(timeout);
  for (;;) {
    file.emplace(path);
    file->lock(deadline);
    if (file->is_current()) break;
    LOCKSTEP_CHECK_IO(!deadline.passed(), "FileStore: {}: it was removed again and again for {} ms", path,
                      timeout.count());
  }
  file->join();
  file->unlock();
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
  if (::getpid() != state_->owner) return;  // a fork has not joined
  try {
    state_->with_file(kLeaveDeadline, [&](StoreFile& file) { file.leave(state_->world_size); });
  } catch (const std::exception&) {
    // A file that is broken or locked stays; the next run replaces it or reports it.
  }
}

std::string FileStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  check_store_request(request);
  Deadline deadline(timeout);
  const auto end = Deadline::Clock::now() + timeout;
  std::optional<FileEvents> events;
  if (waits_for_keys(request.op)) events.emplace(*state_->file);  // before the first try, so that no change is missed
  for (;;) {
    std::string missing;
    const auto left = std::chrono::ceil<milliseconds>(end - Deadline::Clock::now());
    auto result = state_->with_file(std::max(left, kAttempt), [&](StoreFile& file) {
      auto out = file.execute(request);
      if (!out) missing = *file.table().first_missing(request.keys);
      return out;
    });
    if (result) return std::move(*result);
    const milliseconds slice = deadline.slice();  // first: it may move the deadline
    if (deadline.passed())
      throw CommTimeout(fmt::format("FileStore: {}: nobody has set {} within {} ms", state_->file->path(),
                                    in_quotes(missing), timeout.count()));
    events->wait(slice);
  }
}

}  // namespace lockstep::parallel
