// Reads files whole or in parts, and replaces a file atomically: the path holds either the old or the new content.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/descriptor_internal.h"

namespace lockstep {

// An open regular file. Devices, pipes and directories are refused, and opening one never blocks.
class InputFile final : public ByteSource {
 public:
  // Throws IoError, naming path and reason, if it cannot be opened or is not a regular file.
  explicit InputFile(std::string path);

  std::uint64_t size() const override { return size_; }  // at the time of opening
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  const std::string& name() const override { return path_; }
  // The file's bytes, mapped: read from the disk when they are used. Writing to them does not change the file. Throws
  // IoError.
  std::shared_ptr<std::byte> map() const;

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

// All bytes of a source. Throws IoError if it holds more than `max_bytes`.
std::vector<std::byte> read_all(const ByteSource& source, std::uint64_t max_bytes);
std::vector<std::byte> read_file(const std::string& path, std::uint64_t max_bytes);

// The system calls of AtomicFile, replaceable so that a test can let each one fail. Signatures and error reporting
// (errno) as in POSIX.
struct FileSystemCalls {
  int (*open)(const char* path, int flags, mode_t mode);
  int (*flock)(int descriptor, int operation);
  ssize_t (*pwrite)(int descriptor, const void* data, std::size_t size, off_t offset);
  int (*fallocate)(int descriptor, int mode, off_t offset, off_t size);
  int (*fchown)(int descriptor, uid_t owner, gid_t group);
  int (*fchmod)(int descriptor, mode_t mode);
  int (*fsync)(int descriptor);
  int (*close)(int descriptor);
  int (*rename)(const char* from, const char* to);
  int (*unlink)(const char* path);

  static FileSystemCalls real();
};

// The id of the current boot; empty, with errno set, if /proc cannot be read.
std::string boot_id();

// An open temporary file of an AtomicFile. Every failure is an IoError naming path, operation and reason. One thread
// uses an object at a time.
class TemporaryFile {
 public:
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void sync();  // returns when everything that was written to the file is on the disk

 protected:
  TemporaryFile(std::string path, const FileSystemCalls& calls) : calls_(calls), path_(std::move(path)) {}
  ~TemporaryFile() = default;
  [[noreturn]] void fail(const char* operation, int error) const;

  FileSystemCalls calls_;
  std::string path_;     // of the file that is replaced
  int descriptor_ = -1;  // -1: closed
};

// Replaces the file at `path` atomically in `commit`: the new content is written to a temporary file in the same
// folder, flushed to the disk, and renamed. If anything fails or the process dies before the rename, the old file is
// unchanged. Without commit (an exception passed through) the destructor removes the temporary file.
//
// If `path` is a symbolic link, the file that the link leads to is replaced, and the link stays. The new file has the
// permission bits of the old one and, as far as this process may set them, its owner and group; it has no other names
// (hard links), access lists or extended attributes. Only regular files are replaced.
//
// A temporary file is locked while it is written. Temporary files of this path without a lock, left on this host since
// its boot by a killed process, are removed.
class AtomicFile final : public TemporaryFile {
 public:
  explicit AtomicFile(std::string path, const FileSystemCalls& calls = FileSystemCalls::real());
  ~AtomicFile();

  // Reserves disk space for a file of this size, where the file system can.
  void reserve(std::uint64_t bytes);
  // Writes after the bytes of the last call, from the start of the file on.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // On return the new content is on the disk under `path`. Throws InvalidArgument the second time.
  void commit();

  // The absolute path of the temporary file, for AtomicFilePart.
  std::string temporary() const;

 private:
  void find_target();
  void open_temporary();
  void remove_abandoned(const std::string& prefix) const;
  void keep_permissions();
  void sync_folder();

  std::string target_, temporary_;  // target: the path with symbolic links resolved
  std::uint64_t written_ = 0;       // by `write`
  bool replaces_ = false;           // the target exists
  uid_t owner_ = 0;                 // the target's owner
  gid_t group_ = 0;
  mode_t mode_ = 0;  // the target's permission bits
};

// The temporary file of another process's AtomicFile, of which this process writes ranges. They are part of the new
// content if `sync` returns before the other process calls `commit`.
class AtomicFilePart final : public TemporaryFile {
 public:
  // `path` is that of the AtomicFile, for messages.
  AtomicFilePart(std::string path, const std::string& temporary,
                 const FileSystemCalls& calls = FileSystemCalls::real());
  ~AtomicFilePart();
};

}  // namespace lockstep
