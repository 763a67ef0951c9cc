// Files: reading them whole or in parts, and replacing one so that the old or the new content is there, never a part.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/byte_reader_internal.h"

namespace lockstep {

// An open regular file. Devices, pipes and directories are refused, and opening one never blocks.
class InputFile final : public ByteSource {
 public:
  // Throws IoError, naming path and reason, where it cannot be opened or is not a regular file.
  explicit InputFile(std::string path);
  ~InputFile() override;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const override { return size_; }  // when it was opened
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  const std::string& name() const override { return path_; }

 private:
  std::string path_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
};

// All bytes of a source. Throws IoError where it holds more than `max_bytes`.
std::vector<std::byte> read_all(const ByteSource& source, std::uint64_t max_bytes);
std::vector<std::byte> read_file(const std::string& path, std::uint64_t max_bytes);

// The system calls that AtomicFile makes, so that a test can let each of them fail in turn. Signatures and error
// reporting (errno) as in POSIX.
struct FileSystemCalls {
  int (*open)(const char* path, int flags, mode_t mode);
  int (*flock)(int descriptor, int operation);
  ssize_t (*write)(int descriptor, const void* data, std::size_t size);
  int (*fchown)(int descriptor, uid_t owner, gid_t group);
  int (*fchmod)(int descriptor, mode_t mode);
  int (*fsync)(int descriptor);
  int (*close)(int descriptor);
  int (*rename)(const char* from, const char* to);
  int (*unlink)(const char* path);

  static FileSystemCalls real();
};

// Identifies the running kernel, until it is booted again; empty, with errno set, where /proc cannot be read.
std::string boot_id();

// Replaces the file at `path` by what is written here, all at once, in `commit`: a temporary file in the same folder is
// written, flushed to the disk, and renamed. Whatever fails, or if the process dies, the old file stays as it was until
// the rename. Without commit (an exception passed through) the destructor removes the temporary file.
//
// Where `path` is a symbolic link, the file that the link leads to is replaced, and the link stays. The new
// file has the permission bits of the old one and, as far as this process may set them, its owner and group;
// it has no other names (hard links), access lists or extended attributes. Only regular files are replaced.
//
// A temporary file is locked while it is written. Temporary files of this path that a killed process left on
// this host, since it was booted, have no lock: they are removed.
//
// Every failure is an IoError naming path, operation and reason. One thread uses it at a time.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, const FileSystemCalls& calls = FileSystemCalls::real());
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // After it returns the new content is on the disk under `path`. Throws InvalidArgument the second time.
  void commit();

 private:
  void find_target();
  void open_temporary();
  void remove_abandoned(const std::string& prefix) const;
  void keep_permissions();
  void sync_folder();
  [[noreturn]] void fail(const char* operation, int error) const;

  FileSystemCalls calls_;
  std::string path_, target_, temporary_;  // target: where the path leads
  bool replaces_ = false;                  // the target exists, and ...
  uid_t owner_ = 0;                        // ... these are its owner, ...
  gid_t group_ = 0;
  mode_t mode_ = 0;      // ... and permission bits
  int descriptor_ = -1;  // of the temporary file, which exists as long
};

}  // namespace lockstep
