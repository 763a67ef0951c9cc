// Reading and replacing files, with every system call failing once at every point.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "lockstep/base/file_internal.h"

#include "../support/testing.h"

namespace {

std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

int files_in(const std::string& folder) {
  DIR* dir = opendir(folder.c_str());
  REQUIRE(dir);
  int count = 0;
  while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

int open_descriptors() { return files_in("/proc/self/fd"); }

// Call number `fail_at` fails with `error`, all others succeed. With `lasting`, all later calls except unlink fail,
// too.
struct Faults {
  int calls = 0, fail_at = -1, error = 0;
  bool lasting = false, short_writes = false, interrupt = false;
  std::vector<std::string> names = {};
};
Faults faults;

bool fails(const char* name) {
  faults.names.push_back(name);
  const int call = faults.calls++;
  if (faults.interrupt && call % 2 == 0) return errno = EINTR, true;
  if (call == faults.fail_at || (faults.lasting && faults.fail_at >= 0 && call > faults.fail_at))
    return errno = faults.error, true;
  return false;
}

const ls::FileSystemCalls kFaulty = {
    .open = [](const char* path, int flags, mode_t mode) { return fails("open") ? -1 : ::open(path, flags, mode); },
    .flock = [](int fd, int operation) { return fails("flock") ? -1 : ::flock(fd, operation); },
    .pwrite = [](int fd, const void* data, std::size_t size, off_t offset) -> ssize_t {
      return fails("pwrite") ? -1
                             : ::pwrite(fd, data, faults.short_writes ? std::min<std::size_t>(size, 3) : size, offset);
    },
    .fallocate = [](int fd, int mode, off_t offset,
                    off_t size) { return fails("fallocate") ? -1 : ::fallocate(fd, mode, offset, size); },
    .fchown = [](int fd, uid_t owner, gid_t group) { return fails("fchown") ? -1 : ::fchown(fd, owner, group); },
    .fchmod = [](int fd, mode_t mode) { return fails("fchmod") ? -1 : ::fchmod(fd, mode); },
    .fsync = [](int fd) { return fails("fsync") ? -1 : ::fsync(fd); },
    .close =
        [](int fd) {  // close frees the descriptor even when it fails
          const int result = ::close(fd);
          const bool interrupted = std::exchange(faults.interrupt, false);  // close is not repeated
          const bool failed = fails("close");
          faults.interrupt = interrupted;
          return failed ? -1 : result;
        },
    .rename =
        [](const char* from, const char* to) {
          const bool interrupted = std::exchange(faults.interrupt, false);  // rename is not interrupted
          const bool failed = fails("rename");
          faults.interrupt = interrupted;
          return failed ? -1 : ::rename(from, to);
        },
    .unlink = [](const char* path) { return ::unlink(path); },
};

void save(const std::string& path) {
  ls::AtomicFile file(path, kFaulty);
  file.reserve(11);
  file.write("new ");
  file.write("content");
  file.commit();
}

std::string fresh_folder(const char* name) {
  const std::string folder = name;
  if (system(("rm -rf " + folder + " && mkdir " + folder).c_str()) != 0) FAIL("no folder");
  return folder;
}

}  // namespace

TEST_CASE("a committed file has the new content, and no other file remains") {
  const std::string folder = fresh_folder("commit");
  for (const char* old : {"", "old"}) {
    if (*old) put(folder + "/f", old);
    faults = {};
    save(folder + "/f");
    CHECK(content(folder + "/f") == "new content");
    CHECK(files_in(folder) == 1);
  }
  CHECK(faults.names == std::vector<std::string>{"open", "flock", "fallocate", "pwrite", "pwrite", "fchmod", "fsync",
                                                 "rename", "close", "open", "fsync", "close"});
}

TEST_CASE("whichever system call fails, the old or the new file exists completely, and no other file") {
  const std::string folder = fresh_folder("faults"), path = folder + "/f";
  const int descriptors = open_descriptors();
  for (const bool lasting : {false, true}) {
    for (const int error : {ENOSPC, EIO, EACCES, EMFILE}) {
      for (int call = 0;; ++call) {
        put(path, "old content");
        faults = {.fail_at = call, .error = error, .lasting = lasting};
        const std::string text = error_of<ls::IoError>([&] { save(path); });
        if (faults.calls <= call) break;
        INFO("call ", call, ", ", faults.names[static_cast<std::size_t>(call)], ": ", text);
        const std::string now = content(path);
        const auto renamed = std::find(faults.names.begin(), faults.names.end(), "rename") - faults.names.begin();
        CHECK(now == (text.empty() || call > renamed ? "new content" : "old content"));
        const std::string& failed = faults.names[static_cast<std::size_t>(call)];
        // A failed lock does not prevent the write, and close fails only after the data is on the disk.
        const bool is_needed = failed != "close" && (lasting || failed != "flock");
        CHECK((contains(text, path + ": ") || !is_needed));
        CHECK(files_in(folder) == 1);
        CHECK(open_descriptors() == descriptors);
      }
    }
  }
}

TEST_CASE("short writes and interrupted calls are continued") {
  const std::string folder = fresh_folder("interrupted");
  faults = {.short_writes = true, .interrupt = true};
  save(folder + "/f");
  CHECK(content(folder + "/f") == "new content");
}

TEST_CASE("without commit the old file stays and the temporary one is removed") {
  const std::string folder = fresh_folder("abandoned");
  put(folder + "/f", "old");
  {
    ls::AtomicFile file(folder + "/f");
    file.write("half");
    CHECK(files_in(folder) == 2);
    CHECK(content(folder + "/f") == "old");
  }
  CHECK(files_in(folder) == 1);
  CHECK(content(folder + "/f") == "old");
}

TEST_CASE("another process writes ranges of the temporary file, by its absolute path") {
  const std::string folder = fresh_folder("ranges");
  put(folder + "/f", "old");
  ls::AtomicFile file(folder + "/f");
  file.reserve(11);
  CHECK(file.temporary().starts_with("/"));
  const auto bytes = [](const char* text) { return std::as_bytes(std::span(text, std::strlen(text))); };
  const pid_t child = fork();
  if (child == 0) {
    ls::AtomicFilePart part(folder + "/f", file.temporary());
    part.write_at(8, bytes("end"));
    part.write_at(4, bytes("mid "));
    part.sync();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(content(folder + "/f") == "old");
  file.write("new ");
  file.commit();
  CHECK(content(folder + "/f") == "new mid end");
  CHECK(contains(error_of<ls::IoError>([&] { ls::AtomicFilePart(folder + "/f", folder + "/none"); }),
                 "ranges/f: cannot open the temporary file: No such file"));
}

TEST_CASE("a full disk is reported when space is reserved, and a file system that cannot reserve is no error") {
  const std::string folder = fresh_folder("reserved");
  ls::FileSystemCalls calls = ls::FileSystemCalls::real();
  calls.fallocate = [](int, int, off_t, off_t) { return errno = ENOSPC, -1; };
  CHECK(contains(error_of<ls::IoError>([&] { ls::AtomicFile(folder + "/f", calls).reserve(10); }),
                 "reserved/f: cannot reserve disk space: No space left"));
  calls.fallocate = [](int, int, off_t, off_t) { return errno = EOPNOTSUPP, -1; };
  ls::AtomicFile file(folder + "/f", calls);
  file.reserve(10);
  file.write("0123456789");
  file.commit();
  CHECK(content(folder + "/f") == "0123456789");
}

TEST_CASE("two writers of one file do not disturb each other") {
  const std::string folder = fresh_folder("writers");
  ls::AtomicFile a(folder + "/f"), b(folder + "/f");
  a.write("a");
  b.write("b");
  a.commit();
  CHECK(content(folder + "/f") == "a");
  b.commit();
  CHECK(content(folder + "/f") == "b");
  CHECK(contains(error_of([&] { a.commit(); }), "commit() called twice"));
  CHECK(contains(error_of([&] { a.write("c"); }), "write() after commit()"));
}

TEST_CASE("the next writer removes files of killed processes, but not those of running ones") {
  const std::string folder = fresh_folder("killed");
  put(folder + "/f.tmp-note", "a user's own file");
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      ls::AtomicFile file(folder + "/f");
      file.write("half");
      raise(SIGKILL);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(files_in(folder) == 2);  // the earlier one is removed
  }
  ls::AtomicFile living(folder + "/f");
  living.write("living");
  CHECK(files_in(folder) == 2);
  for (int i = 0; i < 2; ++i) {
    ls::AtomicFile file(folder + "/f");
    CHECK(files_in(folder) == 3 + i);
    file.write("other");
    file.commit();
  }
  living.commit();
  CHECK(content(folder + "/f") == "living");
  CHECK(files_in(folder) == 2);
}

TEST_CASE("a writer whose temporary file another process removes as abandoned writes a second one") {
  const std::string folder = fresh_folder("taken");
  static int locks;
  locks = 0;
  ls::FileSystemCalls calls = ls::FileSystemCalls::real();
  // The first file is removed before this process locks it, the second one after that.
  calls.flock = [](int fd, int operation) {
    if (++locks > 2) return ::flock(fd, operation);
    const std::string path = "taken/f.tmp-" + ls::boot_id().substr(0, 8) + "-" + std::to_string(getpid());
    CHECK(::unlink((path + (locks == 1 ? "-0" : "-1")).c_str()) == 0);
    if (locks == 2) return ::flock(fd, operation);
    return errno = EWOULDBLOCK, -1;
  };
  ls::AtomicFile file(folder + "/f", calls);
  file.write("whole");
  file.commit();
  CHECK(locks >= 3);
  CHECK(content(folder + "/f") == "whole");
  CHECK(files_in(folder) == 1);
}

TEST_CASE("where files cannot be locked, no process takes the temporary files for abandoned ones") {
  const std::string folder = fresh_folder("unlocked");
  ls::FileSystemCalls calls = ls::FileSystemCalls::real();
  calls.flock = [](int, int) { return errno = ENOLCK, -1; };
  ls::AtomicFile file(folder + "/f", calls);
  file.write("a");
  {
    ls::AtomicFile other(folder + "/f");  // this writer could lock it
    CHECK(files_in(folder) == 2);
  }
  file.commit();
  CHECK(content(folder + "/f") == "a");
  CHECK(files_in(folder) == 1);
}

TEST_CASE("the file at the end of symbolic links is replaced, and the links stay") {
  const std::string folder = fresh_folder("links");
  REQUIRE(mkdir((folder + "/elsewhere").c_str(), 0755) == 0);
  put(folder + "/elsewhere/target", "old");
  REQUIRE(symlink("elsewhere/second", (folder + "/first").c_str()) == 0);
  REQUIRE(symlink("target", (folder + "/elsewhere/second").c_str()) == 0);
  char* const absolute = realpath(folder.c_str(), nullptr);
  REQUIRE(symlink((absolute + std::string("/new")).c_str(), (folder + "/dangling").c_str()) == 0);
  free(absolute);
  REQUIRE(symlink("loop", (folder + "/loop").c_str()) == 0);
  faults = {};
  const auto is_link = [&](const std::string& name) {
    struct stat status;
    return lstat((folder + name).c_str(), &status) == 0 && S_ISLNK(status.st_mode);
  };
  save(folder + "/first");
  CHECK(is_link("/first"));
  CHECK(is_link("/elsewhere/second"));
  CHECK(content(folder + "/elsewhere/target") == "new content");
  save(folder + "/dangling");
  CHECK(is_link("/dangling"));
  CHECK(content(folder + "/new") == "new content");
  CHECK(contains(error_of<ls::IoError>([&] { save(folder + "/loop"); }),
                 "links/loop: cannot follow the symbolic link: Too many levels of symbolic links"));
  CHECK(files_in(folder) == 5);
  CHECK(files_in(folder + "/elsewhere") == 2);
}

TEST_CASE("another user's symbolic link in a folder like /tmp is not followed") {
  if (geteuid() != 0) {
    MESSAGE("skipped: only root can make another user's link");
    return;
  }
  const std::string folder = fresh_folder("shared");
  put("victim", "old");
  faults = {};
  REQUIRE(symlink("../victim", (folder + "/f").c_str()) == 0);
  REQUIRE(lchown((folder + "/f").c_str(), 1234, 1234) == 0);
  REQUIRE(chmod(folder.c_str(), 01777) == 0);
  CHECK(contains(error_of<ls::IoError>([&] { save(folder + "/f"); }),
                 "is a symbolic link of user 1234 in a world-writable folder"));
  CHECK(content("victim") == "old");
  REQUIRE(chmod(folder.c_str(), 0755) == 0);
  save(folder + "/f");
  CHECK(content("victim") == "new content");
}

TEST_CASE("a replaced file keeps its permissions, owner and group, and is never readable by more than before") {
  const std::string path = fresh_folder("permissions") + "/f";
  struct stat status;
  faults = {};
  const mode_t mask = umask(022);
  for (const mode_t mode : {0600, 0644, 0640, 0666, 0444, 0755}) {
    INFO(mode);
    put(path, "old");
    REQUIRE(chmod(path.c_str(), mode) == 0);
    if (geteuid() == 0) REQUIRE(chown(path.c_str(), 1234, 4321) == 0);
    {
      ls::AtomicFile file(path);
      const std::string temporary = path + ".tmp-" + ls::boot_id().substr(0, 8) + "-" + std::to_string(getpid()) + "-0";
      REQUIRE(stat(temporary.c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0600);
      file.write("new content");
      file.commit();
    }
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == mode);
    if (geteuid() == 0) {
      CHECK(status.st_uid == 1234);
      CHECK(status.st_gid == 4321);
    }
    CHECK(content(path) == "new content");
    REQUIRE(unlink(path.c_str()) == 0);
  }
  save(path);  // a new file has the permissions that the process's mask leaves
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0644);
  umask(mask);
}

TEST_CASE("where the group cannot be kept, it gets the rights of all others") {
  if (geteuid() != 0) {
    MESSAGE("skipped: only root can make a file of another group");
    return;
  }
  const std::string path = fresh_folder("group") + "/f";
  put(path, "old");
  REQUIRE(chown(path.c_str(), 0, 4321) == 0);
  REQUIRE(chmod(path.c_str(), 0664) == 0);
  ls::FileSystemCalls calls = ls::FileSystemCalls::real();
  calls.fchown = [](int, uid_t, gid_t) { return errno = EPERM, -1; };
  ls::AtomicFile file(path, calls);
  file.commit();
  struct stat status;
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0644);
}

TEST_CASE("only regular files are replaced") {
  const std::string folder = fresh_folder("kinds");
  REQUIRE(mkfifo((folder + "/pipe").c_str(), 0600) == 0);
  faults = {};
  CHECK(contains(error_of<ls::IoError>([&] { save(folder + "/pipe"); }), "kinds/pipe: is a pipe, not a regular file"));
  CHECK(contains(error_of<ls::IoError>([&] { save("/dev/null"); }), "/dev/null: is a device, not a regular file"));
  CHECK(contains(error_of<ls::IoError>([&] { save("kinds"); }), "kinds: is a directory, not a regular file"));
  CHECK(files_in(folder) == 1);
}

TEST_CASE("a path that cannot be written says why") {
  CHECK(contains(error_of<ls::IoError>([] { ls::AtomicFile("no/such/folder/f"); }),
                 "no/such/folder/f: cannot create the temporary file: No such file"));
  CHECK(contains(error_of<ls::IoError>([] { ls::AtomicFile(""); }), "not the name of a file"));
  CHECK(contains(error_of<ls::IoError>([] { ls::AtomicFile("/tmp/"); }), "not the name of a file"));
}

TEST_CASE("only regular files are read, and opening anything else returns at once") {
  mkfifo("pipe", 0600);
  CHECK(contains(error_of<ls::IoError>([] { ls::read_file("pipe", 100); }), "pipe: is a pipe, not a regular file"));
  unlink("pipe");
  CHECK(contains(error_of<ls::IoError>([] { ls::read_file("/dev/zero", 100); }), "/dev/zero: is a device"));
  CHECK(contains(error_of<ls::IoError>([] { ls::read_file(".", 100); }), ".: is a directory"));
  CHECK(contains(error_of<ls::IoError>([] { ls::read_file("missing", 100); }), "missing: cannot open: No such file"));
}

TEST_CASE("a file is read completely, up to a limit") {
  put("whole", "12345");
  CHECK(ls::read_file("whole", 5).size() == 5);
  CHECK(contains(error_of<ls::IoError>([] { ls::read_file("whole", 4); }), "whole: 5 bytes; at most 4 are read"));
  put("whole", "");
  CHECK(ls::read_file("whole", 0).empty());
}

TEST_CASE("a file that shrinks while it is read is an IoError") {
  put("shrinks", "12345");
  const ls::InputFile file("shrinks");
  put("shrinks", "123");
  std::vector<std::byte> bytes(5);
  CHECK(contains(error_of<ls::IoError>([&] { file.read_at(0, bytes); }),
                 "shrinks: byte 3: 2 bytes needed, the file ends here"));
}

TEST_CASE("a ByteReader stops at the end of its bytes, and its error has the offset in the file") {
  const std::string text = "\x01\x02\x03\x04\x05\x06";
  ls::ByteReader reader(std::as_bytes(std::span(text)), "f", 100);
  CHECK(reader.little<std::uint16_t>("a") == 0x0201);
  CHECK(reader.big<std::uint16_t>("b") == 0x0304);
  CHECK(reader.offset() == 104);
  CHECK(contains(error_of<ls::IoError>([&] { reader.little<std::uint32_t>("width"); }),
                 "f: byte 104: width: 4 bytes needed, 2 left"));
  CHECK(contains(error_of<ls::IoError>([&] { reader.skip(~std::uint64_t{0}, "skip"); }), "2 left"));
  CHECK(contains(error_of<ls::IoError>([&] { reader.seek(7, "table"); }), "table: at byte 107"));
  reader.seek(6, "end");
  CHECK(reader.remaining() == 0);
}

TEST_CASE("checked arithmetic detects overflow") {
  std::uint64_t result = 0;
  CHECK(ls::checked_mul(1u << 31, 2, &result));
  CHECK(result == std::uint64_t{1} << 32);
  CHECK_FALSE(ls::checked_mul(std::uint64_t{1} << 33, std::uint64_t{1} << 31, &result));
  CHECK_FALSE(ls::checked_add(~std::uint64_t{0}, 1, &result));
}
