#include "lockstep/parallel/rendezvous/store_file_internal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>
#include <thread>

#include "lockstep/parallel/rendezvous/frame_guard_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_frames_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::uint64_t kFileMagic = 0x65726f74736b636c;  // "lckstore"
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kHeaderBytes = 40;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::chrono::microseconds kShortestPause{100}, kLongestPause{5000};

ByteReader reader_of(std::string_view bytes, const std::string& path, std::uint64_t base) {
  return ByteReader(std::as_bytes(std::span(bytes.data(), bytes.size())), path, base);
}

// The start time of a process; 0 where there is none. It follows the name, which is in parentheses and may
// hold any. Throws IoError without a file descriptor: a process that lives must not count as ended.
std::uint64_t start_of(pid_t pid) {
  const Descriptor file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  LOCKSTEP_CHECK_IO(file || !is_out_of_descriptors(errno), "FileStore: cannot tell whether process {} lives: {}", pid,
                    reason(errno));
  char buffer[1024];
  const ssize_t count = file ? uninterrupted([&] { return ::read(file.get(), buffer, sizeof(buffer)); }) : -1;
  std::string_view text(buffer, count > 0 ? static_cast<std::size_t>(count) : 0);
  text.remove_prefix(std::min(text.size(), text.rfind(')') + 1));
  constexpr int kFieldsBetween = 19;  // the start time is the 22nd, counted from 1; the name is the second
  for (int i = 0; i < kFieldsBetween; ++i) text.remove_prefix(std::min(text.size(), text.find(' ', 1)));
  std::uint64_t start = 0;
  if (!text.empty()) std::from_chars(text.data() + 1, text.data() + text.size(), start);
  return start;
}

template <class T>
bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

ProcessMark ProcessMark::own() { return {::getpid(), start_of(::getpid())}; }

// A process that has ended keeps its entry in /proc until its parent has asked how.
bool ProcessMark::is_alive() const {
  if (pid <= 0 || start == 0) return false;
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  return start_of(pid) == start && (!process || ::poll(&ended, 1, 0) == 0);
}

// --- the file -----------------------------------------------------------------------------------------------------------

StoreFile::StoreFile(std::string path) : path_(std::move(path)) {
  const auto fail = [&](const std::string& why) { throw IoError(fmt::format("FileStore: {}: {}", path_, why)); };
  file_ = Descriptor(uninterrupted(
      [&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600); }));
  if (!file_) fail(errno == ELOOP ? "it is a symbolic link, which is not followed" : reason(errno));
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail(reason(errno));
  if (!S_ISREG(status.st_mode)) fail("it is no regular file");
  if (status.st_uid != ::geteuid()) fail(fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid()));
  if ((status.st_mode & 07777) != 0600)
    fail(fmt::format("its mode is {:04o}, not 0600: others may have written to it\nRemove it, or give another path",
                     status.st_mode & 07777));
  if (status.st_nlink > 1) fail("it has a second name (hard link)\nRemove it, or give another path");
}

void StoreFile::lock(Deadline deadline) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  std::chrono::microseconds pause = kShortestPause;
  while (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR)
      throw IoError(fmt::format("FileStore: {}: cannot lock it: {}", path_, reason(errno)));
    static_cast<void>(deadline.slice());  // moves the deadline where this process was stopped
    if (deadline.passed())
      throw CommTimeout(fmt::format("FileStore: {}: another process keeps it locked: is it stopped?", path_));
    std::this_thread::sleep_for(pause);  // a lock that wakes its waiters has no deadline
    pause = std::min(2 * pause, kLongestPause);
  }
}

void StoreFile::unlock() {
  struct flock whole {};
  whole.l_type = F_UNLCK;
  whole.l_whence = SEEK_SET;
  static_cast<void>(::fcntl(file_.get(), F_OFD_SETLK, &whole));  // closing the file would do so as well
}

bool StoreFile::is_current() const {
  struct stat own {
  }, there{};
  return ::fstat(file_.get(), &own) == 0 && ::lstat(path_.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
         own.st_ino == there.st_ino;
}

std::uint64_t StoreFile::size() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw IoError(fmt::format("FileStore: {}: {}", path_, reason(errno)));
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  LOCKSTEP_CHECK_IO(bytes <= kMaxStoreFile, "FileStore: {}: it has {} bytes, at most {} go", path_, bytes,
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

// All of it or nothing: what a full disk took is cut off again.
void StoreFile::write_at_end(const std::string& bytes) {
  const std::uint64_t most = std::min(kMaxStoreFile, file_size_limit()), wanted = end_ + bytes.size();
  if (wanted > most) {
    forget();  // the table has what the file will not have
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
      throw IoError(
          fmt::format("FileStore: {}: cannot write: {}{}", path_, reason(error), is_cut ? "" : "; it is broken now"));
    }
    done += static_cast<std::size_t>(count);
  }
  end_ += bytes.size();
}

void StoreFile::fail_broken(std::uint64_t offset, const std::string& why) const {
  throw IoError(fmt::format("FileStore: {}: byte {}: {}\nIt is no file of a FileStore, or a broken one: remove it",
                            path_, offset, why));
}

// --- runs and users -----------------------------------------------------------------------------------------------------

void StoreFile::begin() {
  if (size() > 0) {
    read_header();
    catch_up();
    if (creator_.is_alive() || has_living_users()) return;
    if (::ftruncate(file_.get(), 0) != 0) throw IoError(fmt::format("FileStore: {}: {}", path_, reason(errno)));
  }
  forget();
  creator_ = ProcessMark::own();
  const Digest random = random_digest();
  std::memcpy(&nonce_, random.data(), sizeof(nonce_));
  std::string header;
  put_little(header, kFileMagic);
  put_little(header, kVersion);
  put_little(header, nonce_);
  put_little(header, static_cast<std::uint32_t>(creator_.pid));
  put_little(header, creator_.start);
  put_little(header, static_cast<std::uint64_t>(XXH3_64bits(header.data(), header.size())));
  write_at_end(header);
}

void StoreFile::read_header() {
  const std::string header = read_from(0, kHeaderBytes);
  ByteReader reader = reader_of(header, "FileStore: " + path_, 0);
  if (reader.little<std::uint64_t>("magic number") != kFileMagic)
    fail_broken(0, "another beginning than a FileStore's");
  const auto version = reader.little<std::uint32_t>("version");
  if (version != kVersion) fail_broken(8, fmt::format("version {}, expected {}", version, kVersion));
  nonce_ = reader.little<std::uint64_t>("number of the run");
  creator_.pid = static_cast<pid_t>(reader.little<std::uint32_t>("process"));
  creator_.start = reader.little<std::uint64_t>("start time");
  const std::uint64_t expected = XXH3_64bits(header.data(), header.size() - kChecksumBytes);
  if (reader.little<std::uint64_t>("checksum") != expected) fail_broken(0, "the header's checksum is wrong");
  end_ = kHeaderBytes;
}

bool StoreFile::has_living_users() const {
  return std::any_of(users_.begin(), users_.end(), [](const auto& user) { return user.second.is_alive(); });
}

void StoreFile::forget() {
  end_ = 0;
  table_ = {};
  users_.clear();
  wills_.clear();
  joined_ = 0;
}

void StoreFile::join(const std::string& user) {
  const ProcessMark own = ProcessMark::own();
  append(Record::kJoin, {user, std::to_string(own.pid), std::to_string(own.start)});
}

void StoreFile::leave(const std::string& user) { append(Record::kLeave, {user}); }

void StoreFile::remove() { static_cast<void>(::unlink(path_.c_str())); }

// --- records ------------------------------------------------------------------------------------------------------------

void StoreFile::catch_up() {
  if (end_ == 0) read_header();  // after a failure
  const std::string bytes = read_from(end_, kMaxStoreFile);
  std::string why;
  try {
    for (std::string_view rest = bytes; !rest.empty(); rest = rest.substr(take_record(rest))) {
    }
  } catch (const IoError& error) {
    why = error.what();
  } catch (const InvalidArgument& error) {  // past a limit
    why = error.what();
  }
  if (!why.empty()) fail_broken(end_, why);
}

// Returns the size of the first record in `rest`, which has been applied. Throws IoError or InvalidArgument.
std::size_t StoreFile::take_record(std::string_view rest) {
  const auto content = first_frame(rest, kMaxFrame);
  const std::size_t size = content ? kFrameHeader + content->size() : 0;
  LOCKSTEP_CHECK_IO(content && rest.size() - size >= kChecksumBytes, "a record that is not all there");
  ByteReader checksum = reader_of(rest.substr(size, kChecksumBytes), "record", 0);
  LOCKSTEP_CHECK_IO(checksum.little<std::uint64_t>("checksum") == XXH3_64bits_withSeed(rest.data(), size, nonce_),
                    "a record with a wrong checksum");
  const StoreMessage message = read_message(*content);
  apply(static_cast<Record>(message.code), message.fields);
  end_ += size + kChecksumBytes;
  return size + kChecksumBytes;
}

void StoreFile::apply(Record record, const std::vector<std::string>& fields) {
  constexpr std::size_t kFields[] = {0, 2, 1, 3, 1, 4, 1};
  const auto number = static_cast<std::size_t>(record);
  const bool has_more = record == Record::kWill && fields.size() > kFields[number];  // the keys
  LOCKSTEP_CHECK_IO(number > 0 && number < std::size(kFields) && (fields.size() == kFields[number] || has_more),
                    "a record of kind {} with {} fields", number, fields.size());
  if (record == Record::kSet) table_.set(fields[0], fields[1]);
  if (record == Record::kDelete) table_.delete_key(fields[0]);
  if (record == Record::kLeave) users_.erase(fields[0]);
  if (record == Record::kEndOfWill) wills_.erase(fields[0]);
  if (record != Record::kJoin && record != Record::kWill) return;
  ProcessMark process;
  LOCKSTEP_CHECK_IO(read_number(fields[1], process.pid) && read_number(fields[2], process.start),
                    "a process that is no number");
  if (record == Record::kJoin) {
    LOCKSTEP_CHECK_IO(users_.size() < kMaxFileUsers || users_.contains(fields[0]), "more than {} users", kMaxFileUsers);
    users_[fields[0]] = process;
    ++joined_;
  } else {
    wills_[fields[0]] = {process, fields[3], {fields.begin() + 4, fields.end()}};
  }
}

// First in the table, which may refuse it.
void StoreFile::append(Record record, const std::vector<std::string>& fields) {
  apply(record, fields);
  std::string bytes = frame(static_cast<std::uint8_t>(record), fields);
  put_little(bytes, static_cast<std::uint64_t>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), nonce_)));
  write_at_end(bytes);
}

void StoreFile::set(const std::string& key, const std::string& value) { append(Record::kSet, {key, value}); }

std::int64_t StoreFile::add(const std::string& key, std::int64_t amount) {
  const std::int64_t sum = table_.add(key, amount);
  set(key, std::to_string(sum));
  return sum;
}

std::string StoreFile::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  const std::string* found = table_.find(key);
  const std::string before = found ? *found : "";
  const bool was_there = found != nullptr;
  std::string now = table_.compare_set(key, expected, desired);
  if (table_.find(key) && (!was_there || now != before)) set(key, now);
  return now;
}

bool StoreFile::delete_key(const std::string& key) {
  if (!table_.find(key)) return false;
  append(Record::kDelete, {key});
  return true;
}

void StoreFile::leave_will(const std::string& name, const std::vector<std::string>& keys, const std::string& value) {
  const ProcessMark own = ProcessMark::own();
  std::vector<std::string> fields = {name, std::to_string(own.pid), std::to_string(own.start), value};
  fields.insert(fields.end(), keys.begin(), keys.end());
  append(Record::kWill, fields);
}

void StoreFile::cancel_will(const std::string& name) {
  if (wills_.contains(name)) append(Record::kEndOfWill, {name});
}

void StoreFile::carry_out_will(const std::string& name) {
  const auto at = wills_.find(name);
  if (at == wills_.end()) return;
  const Will will = at->second;
  for (const std::string& key : will.keys) {
    if (!table_.find(key) && table_.has_room(key, will.value)) set(key, will.value);
  }
  cancel_will(name);
}

void StoreFile::carry_out_wills() {
  std::vector<std::string> names;
  for (const auto& [name, will] : wills_) {
    if (!will.process.is_alive()) names.push_back(name);
  }
  for (const std::string& name : names) carry_out_will(name);
}

}  // namespace lockstep::parallel
