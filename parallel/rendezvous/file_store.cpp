#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

namespace {

using std::chrono::milliseconds;

// The header: this text, and the offset, the length and the checksum of the table (u64 each, little-endian).
constexpr std::string_view kMagic = "lockstep FileStore 4\n";
constexpr std::uint64_t kHeaderBytes = kMagic.size() + 3 * sizeof(std::uint64_t);

// The lock on the first byte guards reading and writing; every user holds a lock on the second byte.
constexpr off_t kAccessByte = 0, kUserByte = 1;

// Keys that count the users that have joined and left the run. The caller's keys never begin like this.
constexpr std::string_view kJoinedKey("\0joined", 7), kLeftKey("\0left", 5);

constexpr std::chrono::microseconds kShortestLockPause{100}, kLongestLockPause{5000};
constexpr milliseconds kPollWithoutEvents{10};
constexpr std::chrono::seconds kLeaveDeadline{1};

int set_lock(const Descriptor& file, off_t byte, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return uninterrupted([&] { return ::fcntl(file.get(), F_OFD_SETLK, &range); });
}

// Reports writes to a file. The kernel limits these objects per user; without one, the waits end by time alone.
class FileEvents {
 public:
  explicit FileEvents(const Descriptor& file) : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    const std::string path = fmt::format("/proc/self/fd/{}", file.get());
    if (events_ && ::inotify_add_watch(events_.get(), path.c_str(), IN_MODIFY | IN_ATTRIB) < 0) events_.reset();
  }
  void wait(milliseconds slice) {
    pollfd ready{events_.get(), POLLIN, 0};  // without events_ the descriptor is -1, which poll ignores
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

// Under an exclusive lock a request reads the table and, if it changes the table, writes it to another place in the file
// and then the header. A process that is killed, or a full disk, thus leaves the old table or the new one.
//
// Every user holds a shared lock on one byte for its lifetime. The kernel releases the lock when the process ends, so
// a process that can lock the byte exclusively has opened the file of a run that has ended.
struct FileStore::State {
  // The right to read and write the file.
  class Access {
   public:
    // Throws CommTimeout if another process holds the lock until the deadline.
    Access(const State& state, Deadline deadline);
    ~Access() { static_cast<void>(set_lock(file_, kAccessByte, F_UNLCK)); }  // closing the file would also unlock it

   private:
    const Descriptor& file_;
  };

  State(std::string file_path, int users, milliseconds timeout);
  void leave();

  // Runs `work` on the table while no other user accesses the file, and writes the table if `work` has changed it.
  template <class Work>
  void use(milliseconds timeout, Work work) {
    const std::lock_guard guard(mutex);
    const Access access(*this, Deadline(timeout));
    if (!is_current()) fail("it was removed, or replaced by another");
    StoreTable table = read_table();
    const std::uint64_t before = table.changes();
    work(table);
    if (table.changes() != before) write_table(table);
  }

  void open();
  bool is_current() const;
  void join();
  std::int64_t count(StoreTable& table, std::string_view key, int more) const;
  bool is_only_user() const { return set_lock(file, kUserByte, F_WRLCK) == 0; }
  std::uint64_t size() const;
  std::string read_bytes(std::uint64_t from, std::uint64_t count) const;
  void read_header();
  StoreTable read_table();
  void write_table(const StoreTable& table);
  void write_bytes(const std::string& bytes, std::uint64_t from) const;
  [[noreturn]] void fail(const std::string& why) const { throw IoError(fmt::format("FileStore: {}: {}", path, why)); }
  [[noreturn]] void fail_broken(std::uint64_t at, const std::string& why) const {
    fail(fmt::format("byte {}: {}\nIt is not a FileStore's file, or a broken one: remove it", at, why));
  }

  const std::string path;
  const int world_size;
  const pid_t owner = ::getpid();
  std::mutex mutex;
  Descriptor file;
  std::uint64_t offset = 0, length = 0, checksum = 0;  // of the table in the file
};

// --- access and users -----------------------------------------------------------------------------------------------

FileStore::State::Access::Access(const State& state, Deadline deadline) : file_(state.file) {
  std::chrono::microseconds pause = kShortestLockPause;
  while (set_lock(file_, kAccessByte, F_WRLCK) != 0) {
    if (errno != EAGAIN && errno != EACCES) state.fail(fmt::format("cannot lock it: {}", reason(errno)));
    static_cast<void>(deadline.slice());  // moves the deadline if this process was stopped
    if (deadline.passed())
      throw CommTimeout(
          fmt::format("FileStore: {}: another process holds its lock: is that process stopped?", state.path));
    std::this_thread::sleep_for(pause);  // a blocking lock call has no deadline
    pause = std::min(2 * pause, kLongestLockPause);
  }
}

// The last user may remove the file between opening and locking; then the next attempt creates a new file.
FileStore::State::State(std::string file_path, int users, milliseconds timeout)
    : path(std::move(file_path)), world_size(users) {
  for (Deadline deadline(timeout); !deadline.passed();) {
    open();
    const Access access(*this, deadline);
    if (is_current()) {
      join();
      return;
    }
  }
  fail(fmt::format("other processes kept removing it for {} ms", timeout.count()));
}

void FileStore::State::open() {
  file = Descriptor(uninterrupted(
      [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600); }));
  if (!file) fail(errno == ELOOP ? "it is a symbolic link, which is not followed" : reason(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(reason(errno));
  if (!S_ISREG(status.st_mode)) fail("it is not a regular file");
  if (status.st_uid != ::geteuid()) fail(fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid()));
  if ((status.st_mode & 07777) != 0600)
    fail(fmt::format("its mode is {:04o}, not 0600: others may have written to it\nRemove it, or give another path",
                     status.st_mode & 07777));
  if (status.st_nlink > 1) fail("it has a second name (hard link)\nRemove it, or give another path");
}

// Whether the path still names this file.
bool FileStore::State::is_current() const {
  struct stat here {
  }, there{};
  return ::fstat(file.get(), &here) == 0 && ::lstat(path.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

// Joins the run as a user. Begins a new run if the file is empty or none of its users is alive.
void FileStore::State::join() {
  if (size() > 0) read_header();  // throws if the file is not a FileStore's: it is not overwritten
  if (is_only_user()) {
    if (::ftruncate(file.get(), 0) != 0) fail(fmt::format("cannot begin a new run: {}", reason(errno)));
    offset = length = 0;
  }
  if (set_lock(file, kUserByte, F_RDLCK) != 0) fail(fmt::format("cannot lock it: {}", reason(errno)));
  StoreTable table = size() > 0 ? read_table() : StoreTable();
  count(table, kJoinedKey, 1);
  write_table(table);
}

// Adds to the number under the key and returns the sum.
std::int64_t FileStore::State::count(StoreTable& table, std::string_view key, int more) const {
  try {
    const auto sum = table.execute({.op = StoreOp::kAdd, .keys = {std::string(key)}, .values = {std::to_string(more)}});
    return whole_number<std::int64_t>(sum.value_or("")).value_or(0);
  } catch (const InvalidArgument& error) {
    fail_broken(offset, error.what());
  }
}

// The last user removes the file if at least `world_size` users have joined the run.
void FileStore::State::leave() {
  use(kLeaveDeadline, [&](StoreTable& table) {
    const std::int64_t left = count(table, kLeftKey, 1), joined = count(table, kJoinedKey, 0);
    if (joined < world_size) {
      // The open descriptor keeps the run from ending before its other users have joined.
      static_cast<void>(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
    } else if (left >= joined || is_only_user()) {
      static_cast<void>(::unlink(path.c_str()));
    }
  });
}

// --- reading and writing --------------------------------------------------------------------------------------------

std::uint64_t FileStore::State::size() const {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(reason(errno));
  return static_cast<std::uint64_t>(status.st_size);
}

std::string FileStore::State::read_bytes(std::uint64_t from, std::uint64_t count) const {
  std::string bytes(count, '\0');
  for (std::uint64_t done = 0; done < count;) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(from + done)); });
    if (got < 0) fail(reason(errno));
    if (got == 0) fail_broken(from + done, fmt::format("the file ends before byte {}", from + count));
    done += static_cast<std::uint64_t>(got);
  }
  return bytes;
}

void FileStore::State::read_header() {
  const std::uint64_t end = size();
  const std::string header = read_bytes(0, std::min(end, kHeaderBytes));
  if (header.size() < kHeaderBytes || !header.starts_with(kMagic))
    fail_broken(0, "it does not begin like a FileStore's file");
  ByteReader reader(std::as_bytes(std::span(header)), path);
  reader.skip(kMagic.size(), "magic number");
  offset = reader.little<std::uint64_t>("offset");
  length = reader.little<std::uint64_t>("length");
  checksum = reader.little<std::uint64_t>("checksum");
  if (offset < kHeaderBytes || offset > end || length > end - offset)
    fail_broken(kMagic.size(), fmt::format("a table of {} bytes at byte {}, but the file has {}", length, offset, end));
  if (length > kMaxStoreFile)
    fail(fmt::format("its table has {} bytes, at most {} are allowed", length, kMaxStoreFile));
}

StoreTable FileStore::State::read_table() {
  read_header();
  const std::string bytes = read_bytes(offset, length);
  if (XXH3_64bits(bytes.data(), bytes.size()) != checksum) fail_broken(offset, "the table's checksum is wrong");
  ByteReader reader(std::as_bytes(std::span(bytes)), "FileStore: " + path, offset);
  const auto text = [&](const char* what) {
    return std::string(reader.text(reader.little<std::uint32_t>("length"), what));
  };
  StoreTable table;
  try {
    while (reader.remaining() > 0) {
      StoreRequest entry{.op = StoreOp::kSet, .keys = {text("key")}};
      entry.values = {text("value")};
      check_store_request(entry);
      table.execute(entry);
    }
  } catch (const InvalidArgument& error) {  // a limit is exceeded
    fail_broken(reader.offset(), error.what());
  }
  return table;
}

void FileStore::State::write_table(const StoreTable& table) {
  std::string bytes;
  for (const auto& [key, value] : table.values()) {
    for (const std::string* text : {&key, &value}) {
      put_little(bytes, static_cast<std::uint32_t>(text->size()));
      bytes += *text;
    }
  }
  const bool fits_before = offset == 0 || offset >= kHeaderBytes + bytes.size();
  const std::uint64_t place = fits_before ? kHeaderBytes : offset + length;
  write_bytes(bytes, place);
  std::string header(kMagic);
  put_little(header, place);
  put_little(header, static_cast<std::uint64_t>(bytes.size()));
  put_little(header, static_cast<std::uint64_t>(XXH3_64bits(bytes.data(), bytes.size())));
  write_bytes(header, 0);
}

void FileStore::State::write_bytes(const std::string& bytes, std::uint64_t from) const {
  const std::uint64_t most = std::min(kMaxStoreFile, file_size_limit()), end = from + bytes.size();
  if (end > most)
    fail(fmt::format("it would have {} bytes, at most {} are allowed{}", end, most,
                     most < kMaxStoreFile ? "\nRaise the limit of this process with ulimit -f" : ""));
  for (std::uint64_t done = 0; done < bytes.size();) {
    const ssize_t count = uninterrupted([&] {
      return ::pwrite(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(from + done));
    });
    if (count <= 0) fail(fmt::format("cannot write: {}", reason(errno)));
    done += static_cast<std::uint64_t>(count);
  }
}

// --- the store ------------------------------------------------------------------------------------------------------

FileStore::FileStore(const std::string& path, const FileStoreOptions& options) {
  LOCKSTEP_CHECK(options.timeout.count() > 0, "FileStore: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  LOCKSTEP_CHECK(options.world_size >= 1 || options.world_size == -1,
                 "FileStore: the world size is {}, expected 1 or more, or -1 for any number", options.world_size);
  set_timeout(options.timeout);
  state_ = std::make_unique<State>(path, options.world_size, options.timeout);
}

FileStore::~FileStore() {
  if (::getpid() != state_->owner) return;  // a forked child has not joined
  try {
    state_->leave();
  } catch (const std::exception&) {
    // A broken or locked file stays; the next run replaces or reports it.
  }
}

std::string FileStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  check_store_request(request);
  Deadline deadline(timeout);
  std::optional<FileEvents> events;
  if (waits_for_keys(request.op)) events.emplace(state_->file);  // first, so that no change is missed
  for (;;) {
    std::optional<std::string> result, missing;
    state_->use(std::max(deadline.left(), kAttempt), [&](StoreTable& table) {
      result = table.execute(request);
      if (!result) missing = *table.first_missing(request.keys);
    });
    if (result) return std::move(*result);
    const milliseconds slice = deadline.slice();  // first: it may move the deadline
    if (deadline.passed())
      throw CommTimeout(fmt::format("FileStore: {}: no process has set {} within {} ms", state_->path,
                                    in_quotes(*missing), timeout.count()));
    events->wait(slice);
  }
}

}  // namespace lockstep::parallel
