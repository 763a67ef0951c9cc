#include "lockstep/base/file_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "lockstep/base/check_internal.h"

namespace lockstep {
namespace {

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// True if `path` names the open file.
bool leads_to(const std::string& path, int descriptor) {
  struct stat named, open;
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 && named.st_dev == open.st_dev &&
         named.st_ino == open.st_ino;
}

}  // namespace

// --- reading --------------------------------------------------------------------------------------------------------

// O_NONBLOCK: opening a pipe without a writer would block forever.
InputFile::InputFile(std::string path)
    : path_(std::move(path)),
      file_(uninterrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); })) {
  LOCKSTEP_CHECK_IO(file_.get() >= 0, "{}: cannot open: {}", path_, reason(errno));
  struct stat status;
  LOCKSTEP_CHECK_IO(::fstat(file_.get(), &status) == 0, "{}: cannot read its size: {}", path_, reason(errno));
  LOCKSTEP_CHECK_IO(S_ISREG(status.st_mode), "{}: is {}, not a regular file", path_, kind_of(status.st_mode));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto position = static_cast<off_t>(offset + done);
    const ssize_t count =
        uninterrupted([&] { return ::pread(file_.get(), out.data() + done, out.size() - done, position); });
    LOCKSTEP_CHECK_IO(count >= 0, "{}: byte {}: cannot read: {}", path_, offset + done, reason(errno));
    LOCKSTEP_CHECK_IO(count > 0, "{}: byte {}: {} bytes needed, the file ends here", path_, offset + done,
                      out.size() - done);
    done += static_cast<std::size_t>(count);
  }
}

std::shared_ptr<std::byte> InputFile::map() const {
  void* const data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_.get(), 0);
  LOCKSTEP_CHECK_IO(data != MAP_FAILED, "{}: cannot map its {} bytes: {}", path_, size_, reason(errno));
  return {static_cast<std::byte*>(data), [size = size_](std::byte* mapped) { ::munmap(mapped, size); }};
}

std::vector<std::byte> read_all(const ByteSource& source, std::uint64_t max_bytes) {
  LOCKSTEP_CHECK_IO(source.size() <= max_bytes, "{}: {} bytes; at most {} are read", source.name(), source.size(),
                    max_bytes);
  try {
    std::vector<std::byte> bytes(source.size());
    source.read_at(0, bytes);
    return bytes;
  } catch (const std::bad_alloc&) {
    throw IoError(fmt::format("{}: out of memory for its {} bytes", source.name(), source.size()));
  }
}

std::vector<std::byte> read_file(const std::string& path, std::uint64_t max_bytes) {
  return read_all(InputFile(path), max_bytes);
}

// --- replacing ------------------------------------------------------------------------------------------------------

FileSystemCalls FileSystemCalls::real() {
  return {.open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); },
          .flock = ::flock,
          .pwrite = ::pwrite,
          .fallocate = ::fallocate,
          .fchown = ::fchown,
          .fchmod = ::fchmod,
          .fsync = ::fsync,
          .close = ::close,
          .rename = ::rename,
          .unlink = ::unlink};
}

std::string boot_id() {
  const Descriptor file(uninterrupted([] { return ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); }));
  char text[36];
  const ssize_t count = file.get() < 0 ? -1 : uninterrupted([&] { return ::read(file.get(), text, sizeof(text)); });
  return count == sizeof(text) ? std::string(text, sizeof(text)) : "";
}

void TemporaryFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(descriptor_ >= 0, "AtomicFile: {}: write() after commit()", path_);
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted(
        [&] { return calls_.pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (count <= 0) fail("cannot write", count == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::size_t>(count);
  }
}

void TemporaryFile::sync() {
  if (uninterrupted([&] { return calls_.fsync(descriptor_); }) != 0) fail("cannot flush to the disk", errno);
}

void TemporaryFile::fail(const char* operation, int error) const {
  throw IoError(fmt::format("{}: {}: {}", path_, operation, reason(error)));
}

AtomicFilePart::AtomicFilePart(std::string path, const std::string& temporary, const FileSystemCalls& calls)
    : TemporaryFile(std::move(path), calls) {
  descriptor_ = uninterrupted([&] { return calls_.open(temporary.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0); });
  if (descriptor_ < 0) fail("cannot open the temporary file", errno);
}

AtomicFilePart::~AtomicFilePart() { calls_.close(descriptor_); }  // failure is harmless after `sync`

AtomicFile::AtomicFile(std::string path, const FileSystemCalls& calls)
    : TemporaryFile(std::move(path), calls), target_(path_) {
  LOCKSTEP_CHECK_IO(path_.rfind('/') + 1 < path_.size(), "\"{}\" is not the name of a file", path_);
  find_target();
  open_temporary();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  calls_.unlink(temporary_.c_str());  // before the lock is released: another process may then use the name
  calls_.close(descriptor_);
}

// Follows symbolic links, except those that the kernel would not follow either (fs.protected_symlinks): links of other
// users in a folder such as /tmp could lead to any file of this user.
void AtomicFile::find_target() {
  constexpr int kMostLinks = 40;
  for (int links = 0;; ++links) {
    const Descriptor file(::open(target_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status, folder;
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return;  // a new file, or creating it fails
    if (!S_ISLNK(status.st_mode)) {
      LOCKSTEP_CHECK_IO(S_ISREG(status.st_mode), "{}: is {}, not a regular file", path_, kind_of(status.st_mode));
      replaces_ = true;
      owner_ = status.st_uid;
      group_ = status.st_gid;
      mode_ = status.st_mode & 0777;
      return;
    }
    if (links == kMostLinks) fail("cannot follow the symbolic link", ELOOP);
    if (::stat(folder_of(target_).c_str(), &folder) != 0) fail("cannot read the attributes of the folder", errno);
    constexpr mode_t kShared = S_ISVTX | S_IWOTH;
    const bool is_safe = status.st_uid == ::geteuid() || status.st_uid == folder.st_uid;
    LOCKSTEP_CHECK_IO(is_safe || (folder.st_mode & kShared) != kShared,
                      "{}: {} is a symbolic link of user {} in a world-writable folder; it is not "
                      "followed\nGive the path of the file that the link leads to",
                      path_, in_quotes(target_), status.st_uid);
    std::string text(PATH_MAX, '\0');
    const ssize_t size = ::readlinkat(file.get(), "", text.data(), text.size());
    if (size <= 0) fail("cannot read the symbolic link", errno);
    text.resize(static_cast<std::size_t>(size));
    target_ = text[0] == '/' ? text : folder_of(target_) + "/" + text;
  }
}

// The name distinguishes temporary files of this boot of this host, whose locks this process can see, from others. The
// process id and the number distinguish concurrent writers. A file that replaces another is readable by this user
// alone until it has the old file's permissions.
void AtomicFile::open_temporary() {
  constexpr int kTries = 1000;
  const std::string boot = boot_id().substr(0, 8);
  const std::string prefix = fmt::format("{}.tmp-{}-", target_, boot);
  bool can_lock = !boot.empty();
  for (int number = 0; number < kTries; ++number) {
    temporary_ = fmt::format("{}{}-{}", can_lock ? prefix : target_ + ".tmp-", ::getpid(), number);
    descriptor_ = uninterrupted([&] {
      return calls_.open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                         replaces_ ? 0600 : 0666);
    });
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) break;
    if (!can_lock) return;
    const bool is_locked = uninterrupted([&] { return calls_.flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0;
    can_lock = is_locked || errno == EWOULDBLOCK;
    if (is_locked && leads_to(temporary_, descriptor_)) return remove_abandoned(prefix);
    // Another process removes the file as abandoned; or this file system has no locks.
    if (!can_lock) calls_.unlink(temporary_.c_str());
    calls_.close(std::exchange(descriptor_, -1));
  }
  fail("cannot create the temporary file", errno);
}

// Only a process that holds the lock of a temporary file, and finds the file under its name, may rename or remove it.
void AtomicFile::remove_abandoned(const std::string& prefix) const {
  const std::string folder = folder_of(target_);
  const auto close = [](DIR* listing) { ::closedir(listing); };
  const std::unique_ptr<DIR, decltype(close)> listing(::opendir(folder.c_str()));
  const std::size_t begin = prefix.rfind('/') + 1;
  const std::string_view wanted = std::string_view(prefix).substr(begin),
                         own = std::string_view(temporary_).substr(begin);
  while (const dirent* const entry = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name == own || !name.starts_with(wanted)) continue;
    if (name.find_first_not_of("0123456789-", wanted.size()) != std::string_view::npos) continue;
    const std::string path = fmt::format("{}/{}", folder, name);
    const Descriptor file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status;
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const bool is_ours = status.st_uid == ::geteuid();
    if (is_ours && calls_.flock(file.get(), LOCK_EX | LOCK_NB) == 0 && leads_to(path, file.get()))
      calls_.unlink(path.c_str());
  }
}

// A full disk is reported here, before the content is written. posix_fallocate would write into every block where the
// file system cannot reserve.
void AtomicFile::reserve(std::uint64_t bytes) {
  if (uninterrupted([&] { return calls_.fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)); }) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail("cannot reserve disk space", errno);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_at(written_, bytes);
  written_ += bytes.size();
}

std::string AtomicFile::temporary() const {
  const std::unique_ptr<char, void (*)(void*)> path(::realpath(temporary_.c_str(), nullptr), std::free);
  if (!path) fail("cannot find the path of the temporary file", errno);
  return path.get();
}

void AtomicFile::commit() {
  LOCKSTEP_CHECK(descriptor_ >= 0, "AtomicFile: {}: commit() called twice", path_);
  if (replaces_) keep_permissions();
  // The content must be on the disk before the name points to it, or a power cut could leave an empty file.
  sync();
  if (calls_.rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename the temporary file", errno);
  calls_.close(std::exchange(descriptor_, -1));  // failure is harmless: the content is on the disk
  sync_folder();
}

// Only root may change the owner; a member of a group may set that group. If the group cannot be kept, the group
// permissions become those of others.
void AtomicFile::keep_permissions() {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) fail("cannot read the attributes of the temporary file", errno);
  bool has_group = status.st_gid == group_;
  const auto give = [&](uid_t owner) {
    return uninterrupted([&] { return calls_.fchown(descriptor_, owner, group_); }) == 0;
  };
  if (status.st_uid != owner_) has_group = give(owner_) || has_group;
  if (!has_group) has_group = give(static_cast<uid_t>(-1));
  const mode_t mode = has_group ? mode_ : (mode_ & 0707) | (mode_ & 07) << 3;
  if (mode != (status.st_mode & 0777) && uninterrupted([&] { return calls_.fchmod(descriptor_, mode); }) != 0)
    fail("cannot give the temporary file the permissions of the old file", errno);
}

void AtomicFile::sync_folder() {
  const std::string path = folder_of(target_);
  const int folder = uninterrupted([&] { return calls_.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (folder < 0) fail("replaced, but its folder cannot be opened to flush it", errno);
  const int result = uninterrupted([&] { return calls_.fsync(folder); });
  const int error = errno;
  calls_.close(folder);
  // Some file systems cannot flush a folder and return EINVAL; nothing more can be done for them.
  if (result != 0 && error != EINVAL) fail("replaced, but its folder cannot be flushed to the disk", error);
}

}  // namespace lockstep
