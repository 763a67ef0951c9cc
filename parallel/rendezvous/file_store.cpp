#include "lockstep/parallel/rendezvous/file_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_file_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::uint64_t kFileMagic = 0x65726f74736b636c;  // "lckstore"
constexpr std::uint32_t kFileVersion = 3;
constexpr std::size_t kHeaderBytes = 28;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::chrono::microseconds kShortestPause{100}, kLongestPause{5000};

// The lock on the first byte guards reading and writing; every user holds a lock on the second byte.
constexpr off_t kAccessByte = 0, kUserByte = 1;

// Keys that count the users that have joined and left the run. The caller's keys never begin like this.
constexpr std::string_view kJoinedKey("\0joined", 7), kLeftKey("\0left", 5);

int set_lock(const Descriptor& file, off_t byte, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return uninterrupted([&] { return ::fcntl(file.get(), F_OFD_SETLK, &range); });
}

ByteReader reader_of(std::string_view bytes, const std::string& path) {
  return ByteReader(std::as_bytes(std::span(bytes.data(), bytes.size())), path);
}

}  // namespace

// --- the file -------------------------------------------------------------------------------------------------------

StoreFile::StoreFile(std::string path) : path_(std::move(path)) {
  const auto fail = [&](const std::string& why) { throw IoError(fmt::format("FileStore: {}: {}", path_, why)); };
  file_ = Descriptor(uninterrupted(
      [&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600); }));
  if (!file_) fail(errno == ELOOP ? "it is a symbolic link, which is not followed" : reason(errno));
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail(reason(errno));
  if (!S_ISREG(status.st_mode)) fail("it is not a regular file");
  if (status.st_uid != ::geteuid()) fail(fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid()));
  if ((status.st_mode & 07777) != 0600)
    fail(
        fmt::format("its mode is {:04o}, not 0600: others may have written to it\nRemove "
                    "it, or give another path",
                    status.st_mode & 07777));
  if (status.st_nlink > 1) fail("it has a second name (hard link)\nRemove it, or give another path");
}

void StoreFile::lock(Deadline deadline) {
  std::chrono::microseconds pause = kShortestPause;
  while (set_lock(file_, kAccessByte, F_WRLCK) != 0) {
    if (errno != EAGAIN && errno != EACCES)
      throw IoError(fmt::format("FileStore: {}: cannot lock it: {}", path_, reason(errno)));
    static_cast<void>(deadline.slice());  // moves the deadline if this process was stopped
    if (deadline.passed())
      throw CommTimeout(fmt::format("FileStore: {}: another process holds its lock: is that process stopped?", path_));
    std::this_thread::sleep_for(pause);  // a blocking lock call has no deadline
    pause = std::min(2 * pause, kLongestPause);
  }
}

void StoreFile::unlock() {
  static_cast<void>(set_lock(file_, kAccessByte, F_UNLCK));  // closing the file would also unlock it
}

bool StoreFile::is_current() const {
  struct stat here {
  }, there{};
  return ::fstat(file_.get(), &here) == 0 && ::lstat(path_.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

std::uint64_t StoreFile::size() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw IoError(fmt::format("FileStore: {}: {}", path_, reason(errno)));
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  LOCKSTEP_CHECK_IO(bytes <= kMaxStoreFile, "FileStore: {}: it has {} bytes, at most {} are allowed", path_, bytes,
                    kMaxStoreFile);
  return bytes;
}

std::string StoreFile::read_from(std::uint64_t offset, std::uint64_t most) const {
  const std::uint64_t whole = size();
  if (whole < offset) fail_broken(whole, fmt::format("it had {} bytes before", offset));
  std::string bytes(std::min(whole - offset, most), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = uninterrupted([&] {
      return ::pread(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    });
    if (count < 0) throw IoError(fmt::format("FileStore: {}: {}", path_, reason(errno)));
    if (count == 0) fail_broken(offset + done, "it became shorter");
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

// Writes all bytes or none: if the disk is full, the bytes that were written are truncated.
void StoreFile::append(const std::string& bytes) {
  const std::uint64_t most = std::min(kMaxStoreFile, file_size_limit()), wanted = end_ + bytes.size();
  if (wanted > most) {
    forget();  // the table has a change that is not in the file
    throw IoError(fmt::format("FileStore: {}: it would have {} bytes, at most {} are allowed{}", path_, wanted, most,
                              most < kMaxStoreFile ? "\nRaise the limit of this process with ulimit -f" : ""));
  }
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = uninterrupted([&] {
      return ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(end_ + done));
    });
    if (count <= 0) {
      const int error = errno;
      const bool is_cut = ::ftruncate(file_.get(), static_cast<off_t>(end_)) == 0;
      forget();
      throw IoError(fmt::format("FileStore: {}: cannot write: {}{}", path_, reason(error),
                                is_cut ? "" : "; the file is now broken"));
    }
    done += static_cast<std::size_t>(count);
  }
  end_ += bytes.size();
}

void StoreFile::fail_broken(std::uint64_t offset, const std::string& why) const {
  throw IoError(
      fmt::format("FileStore: {}: byte {}: {}\nIt is not a FileStore's file, or a broken "
                  "one: remove it",
                  path_, offset, why));
}

// --- runs and users -------------------------------------------------------------------------------------------------

bool StoreFile::is_only_user() { return set_lock(file_, kUserByte, F_WRLCK) == 0; }

void StoreFile::join() {
  if (size() > 0) {
    read_header();
    catch_up();
    if (is_only_user() && ::ftruncate(file_.get(), 0) != 0)
      throw IoError(fmt::format("FileStore: {}: cannot begin a new run: {}", path_, reason(errno)));
  }
  if (set_lock(file_, kUserByte, F_RDLCK) != 0)
    throw IoError(fmt::format("FileStore: {}: cannot lock it: {}", path_, reason(errno)));
  if (size() == 0) begin();
  count(kJoinedKey);
}

void StoreFile::leave(int world_size) {
  const std::int64_t left = count(kLeftKey);
  const std::string* const text = table_.find(std::string(kJoinedKey));
  const std::int64_t joined = text ? whole_number<std::int64_t>(*text).value_or(0) : 0;
  if (joined >= world_size) {
    if (left >= joined || is_only_user()) static_cast<void>(::unlink(path_.c_str()));
    return;
  }
  // The open descriptor keeps the run from ending before its other users have joined.
  static_cast<void>(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
}

// Adds 1 to the key and returns the sum.
std::int64_t StoreFile::count(std::string_view key) {
  const auto sum = execute({.op = StoreOp::kAdd, .keys = {std::string(key)}, .values = {"1"}});
  return whole_number<std::int64_t>(sum.value_or("")).value_or(0);
}

void StoreFile::begin() {
  forget();
  const Digest random = random_digest();
  std::memcpy(&nonce_, random.data(), sizeof(nonce_));
  std::string header;
  put_little(header, kFileMagic);
  put_little(header, kFileVersion);
  put_little(header, nonce_);
  put_little(header, static_cast<std::uint64_t>(XXH3_64bits(header.data(), header.size())));
  append(header);
}

void StoreFile::read_header() {
  const std::string header = read_from(0, kHeaderBytes);
  ByteReader reader = reader_of(header, "FileStore: " + path_);
  if (reader.little<std::uint64_t>("magic number") != kFileMagic)
    fail_broken(0, "it does not begin like a FileStore's file");
  const auto version = reader.little<std::uint32_t>("version");
  if (version != kFileVersion) fail_broken(8, fmt::format("version {}, expected {}", version, kFileVersion));
  nonce_ = reader.little<std::uint64_t>("number of the run");
  const std::uint64_t expected = XXH3_64bits(header.data(), header.size() - kChecksumBytes);
  if (reader.little<std::uint64_t>("checksum") != expected) fail_broken(0, "the header's checksum is wrong");
  end_ = kHeaderBytes;
}

void StoreFile::forget() {
  end_ = 0;
  table_ = {};
}

// --- records --------------------------------------------------------------------------------------------------------

void StoreFile::catch_up() {
  if (end_ == 0) read_header();  // after a failure
  const std::string bytes = read_from(end_, kMaxStoreFile);
  std::string why;
  try {
    for (std::string_view rest = bytes; !rest.empty(); rest = rest.substr(take_record(rest))) {
    }
  } catch (const IoError& error) {
    why = error.what();
  } catch (const InvalidArgument& error) {  // a limit is exceeded
    why = error.what();
  }
  if (!why.empty()) fail_broken(end_, why);
}

// Applies the first record in `rest` and returns its size. Throws IoError or InvalidArgument.
std::size_t StoreFile::take_record(std::string_view rest) {
  const auto content = first_frame(rest, kMaxFrame);
  const std::size_t size = content ? kFrameHeader + content->size() : 0;
  LOCKSTEP_CHECK_IO(content && rest.size() - size >= kChecksumBytes, "an incomplete record");
  ByteReader checksum = reader_of(rest.substr(size, kChecksumBytes), "record");
  LOCKSTEP_CHECK_IO(checksum.little<std::uint64_t>("checksum") == XXH3_64bits_withSeed(rest.data(), size, nonce_),
                    "a record with a wrong checksum");
  StoreMessage message = read_message(*content);
  const StoreRequest request = to_request(message.code, std::move(message.fields));
  check_store_request(request);
  LOCKSTEP_CHECK_IO(changes_table(request.op), "a record of operation {}", message.code);
  static_cast<void>(table_.execute(request));
  end_ += size + kChecksumBytes;
  return size + kChecksumBytes;
}

std::string StoreFile::record_of(const StoreRequest& request) const {
  std::string bytes = frame(request);
  put_little(bytes, static_cast<std::uint64_t>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), nonce_)));
  return bytes;
}

// The table executes the request first, as it may reject the request.
std::optional<std::string> StoreFile::execute(const StoreRequest& request) {
  catch_up();
  const std::uint64_t before = table_.changes();
  auto result = table_.execute(request);
  if (table_.changes() != before) append(record_of(request));
  return result;
}

// --- the store ------------------------------------------------------------------------------------------------------

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollWithoutEvents{10};
constexpr std::chrono::seconds kLeaveDeadline{1};

// Reports writes to a file. The kernel limits these objects per user; without one, the waits end by time alone.
class FileEvents {
 public:
  explicit FileEvents(const StoreFile& file) : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    const std::string path = fmt::format("/proc/self/fd/{}", file.descriptor());
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

// The last user may remove the file between opening and locking; then the next attempt creates a new file.
void FileStore::State::open(const std::string& path, milliseconds timeout) {
  Deadline deadline(timeout);
  for (;;) {
    file.emplace(path);
    file->lock(deadline);
    if (file->is_current()) break;
    LOCKSTEP_CHECK_IO(!deadline.passed(), "FileStore: {}: other processes kept removing it for {} ms", path,
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
  if (::getpid() != state_->owner) return;  // a forked child has not joined
  try {
    state_->with_file(kLeaveDeadline, [&](StoreFile& file) { file.leave(state_->world_size); });
  } catch (const std::exception&) {
    // A broken or locked file stays; the next run replaces or reports it.
  }
}

std::string FileStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  check_store_request(request);
  Deadline deadline(timeout);
  const auto end = Deadline::Clock::now() + timeout;
  std::optional<FileEvents> events;
  if (waits_for_keys(request.op)) events.emplace(*state_->file);  // first, so that no change is missed
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
      throw CommTimeout(fmt::format("FileStore: {}: no process has set {} within {} ms", state_->file->path(),
                                    in_quotes(missing), timeout.count()));
    events->wait(slice);
  }
}

}  // namespace lockstep::parallel
