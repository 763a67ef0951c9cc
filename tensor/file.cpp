#include "lockstep/tensor/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI {
namespace {

// strerror's text, without its shared buffer.
std::string reason(int error) { return std::generic_category().message(error); }

// Repeats a system call that a signal interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

}  // namespace

// --- reading ------------------------------------------------------------------------------------------------------------

// O_NONBLOCK: opening a pipe that nobody writes to would wait forever.
InputFile::InputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = uninterrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
  LOCKSTEP_CHECK_IO(descriptor_ >= 0, "{}: cannot open: {}", path_, reason(errno));
  struct stat status;
  const int result = ::fstat(descriptor_, &status);
  const int error = errno;
  if (result == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);  // the destructor does not run for an object that was not finished
  LOCKSTEP_CHECK_IO(result == 0, "{}: cannot ask for its size: {}", path_, reason(error));
  throw IoError(fmt::format("{}: is {}, not a regular file", path_, kind_of(status.st_mode)));
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto position = static_cast<off_t>(offset + done);
    const ssize_t count =
        uninterrupted([&] { return ::pread(descriptor_, out.data() + done, out.size() - done, position); });
    LOCKSTEP_CHECK_IO(count >= 0, "{}: byte {}: cannot read: {}", path_, offset + done, reason(errno));
    LOCKSTEP_CHECK_IO(count > 0, "{}: byte {}: {} bytes needed, the file ends here", path_, offset + done,
                      out.size() - done);
    done += static_cast<std::size_t>(count);
  }
}

std::vector<std::byte> read_all(const ByteSource& source, std::uint64_t max_bytes) {
  LOCKSTEP_CHECK_IO(source.size() <= max_bytes, "{}: {} bytes; at most {} are read", source.name(), source.size(),
                    max_bytes);
  try {
    std::vector<std::byte> bytes(source.size());
    source.read_at(0, bytes);
    return bytes;
  } catch (const std::bad_alloc&) {
    throw IoError(fmt::format("{}: no memory for its {} bytes", source.name(), source.size()));
  }
}

std::vector<std::byte> read_file(const std::string& path, std::uint64_t max_bytes) {
  return read_all(InputFile(path), max_bytes);
}

// --- replacing ----------------------------------------------------------------------------------------------------------

FileSystemCalls FileSystemCalls::real() {
  return {.open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); },
          .write = ::write,
          .fsync = ::fsync,
          .close = ::close,
          .rename = ::rename,
          .unlink = ::unlink};
}

AtomicFile::AtomicFile(std::string path, const FileSystemCalls& calls) : calls_(calls), path_(std::move(path)) {
  const auto slash = path_.rfind('/');
  folder_ = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  LOCKSTEP_CHECK_IO(slash + 1 < path_.size(), "\"{}\": is not the name of a file", path_);
  open_temporary();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) calls_.close(descriptor_);
  if (temporary_exists_) calls_.unlink(temporary_.c_str());
}

// The name holds the process id; a number follows for several writers in one process and for what a killed process of
// the same id left behind.
void AtomicFile::open_temporary() {
  constexpr int kTries = 1000;
  for (int number = 0; number < kTries; ++number) {
    temporary_ = fmt::format("{}.tmp-{}-{}", path_, ::getpid(), number);
    descriptor_ = uninterrupted(
        [&] { return calls_.open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666); });
    if (descriptor_ >= 0) {
      temporary_exists_ = true;
      return;
    }
    if (errno != EEXIST) break;
  }
  fail("cannot create the temporary file", errno);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(descriptor_ >= 0, "AtomicFile: {}: written to after commit", path_);
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted([&] { return calls_.write(descriptor_, bytes.data(), bytes.size()); });
    if (count <= 0) fail("cannot write", count == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  LOCKSTEP_CHECK(descriptor_ >= 0, "AtomicFile: {}: committed twice", path_);
  // The content must be on the disk before the name points to it, or a power cut could leave an empty file.
  if (uninterrupted([&] { return calls_.fsync(descriptor_); }) != 0) fail("cannot flush to the disk", errno);
  // Whatever close answers the descriptor is gone (Linux), so it is not called again.
  if (calls_.close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail("cannot close", errno);
  if (calls_.rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename the temporary file", errno);
  temporary_exists_ = false;
  sync_folder();
}

void AtomicFile::sync_folder() {
  const int folder = uninterrupted([&] { return calls_.open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (folder < 0) fail("replaced, but its folder cannot be opened to flush it", errno);
  const int result = uninterrupted([&] { return calls_.fsync(folder); });
  const int error = errno;
  calls_.close(folder);
  // Some file systems cannot flush a folder and say EINVAL; there is nothing more to be done there.
  if (result != 0 && error != EINVAL) fail("replaced, but its folder cannot be flushed to the disk", error);
}

void AtomicFile::fail(const char* operation, int error) const {
  throw IoError(fmt::format("{}: {}: {}", path_, operation, reason(error)));
}

}  // namespace lockstep::inline LOCKSTEP_ABI
