// Reading files, and replacing them: every system call fails once, in every place.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "lockstep/tensor/file.h"
#include "lockstep/tensor/inflate_internal.h"

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

// The call number `fail_at` fails with `error`, all others are made. With `lasting`, all from there on fail but unlink.
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
    .write = [](int fd, const void* data, std::size_t size) -> ssize_t {
      return fails("write") ? -1 : ::write(fd, data, faults.short_writes ? std::min<std::size_t>(size, 3) : size);
    },
    .fsync = [](int fd) { return fails("fsync") ? -1 : ::fsync(fd); },
    .close =
        [](int fd) {  // the descriptor is gone even where close fails
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

TEST_CASE("a committed file has the new content and nothing is left beside it") {
  const std::string folder = fresh_folder("commit");
  for (const char* old : {"", "old"}) {
    if (*old) put(folder + "/f", old);
    faults = {};
    save(folder + "/f");
    CHECK(content(folder + "/f") == "new content");
    CHECK(files_in(folder) == 1);
  }
  CHECK(faults.names ==
        std::vector<std::string>{"open", "write", "write", "fsync", "close", "rename", "open", "fsync", "close"});
}

TEST_CASE("whichever system call fails, the old file or the new one is there, whole, and nothing else") {
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
        CHECK(now == (call > renamed ? "new content" : "old content"));
        const bool last_close = call > renamed && faults.names[static_cast<std::size_t>(call)] == "close";
        CHECK((contains(text, path + ": ") || last_close));  // by then everything is on the disk
        CHECK(files_in(folder) == 1);
        CHECK(open_descriptors() == descriptors);
      }
    }
  }
}

TEST_CASE("short writes and interrupted calls are gone on with") {
  const std::string folder = fresh_folder("interrupted");
  faults = {.short_writes = true, .interrupt = true};
  save(folder + "/f");
  CHECK(content(folder + "/f") == "new content");
}

TEST_CASE("without commit the old file stays and the temporary one goes") {
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

TEST_CASE("two writers of one file do not disturb each other, and what a killed one left is no obstacle") {
  const std::string folder = fresh_folder("writers");
  put(folder + "/f.tmp-" + std::to_string(getpid()) + "-0", "left over");
  ls::AtomicFile a(folder + "/f"), b(folder + "/f");
  a.write("a");
  b.write("b");
  a.commit();
  CHECK(content(folder + "/f") == "a");
  b.commit();
  CHECK(content(folder + "/f") == "b");
  CHECK(contains(error_of([&] { a.commit(); }), "committed twice"));
  CHECK(contains(error_of([&] { a.write("c"); }), "after commit"));
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

TEST_CASE("a file is read whole, up to a limit") {
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

TEST_CASE("a ByteReader stops at the end of its bytes and says where that is in the file") {
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

TEST_CASE("checked arithmetic notices overflow") {
  std::uint64_t result = 0;
  CHECK(ls::checked_mul(1u << 31, 2, &result));
  CHECK(result == std::uint64_t{1} << 32);
  CHECK_FALSE(ls::checked_mul(std::uint64_t{1} << 33, std::uint64_t{1} << 31, &result));
  CHECK_FALSE(ls::checked_add(~std::uint64_t{0}, 1, &result));
}

TEST_CASE("compressed data are read in pieces of any size, to their end and not beyond") {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += std::to_string(i) + ',';
  std::vector<std::byte> packed(compressBound(text.size()));
  uLongf size = packed.size();
  REQUIRE(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
                   text.size()) == Z_OK);
  const auto bare = std::span(packed).subspan(2, size - 6);  // without zlib's own wrapper
  for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}, text.size(), 2 * text.size()}) {
    ls::Inflater inflater(bare, ls::Compression::kDeflate, "f");
    std::string out, next(piece, '\0');
    while (const std::size_t count = inflater.read(std::as_writable_bytes(std::span(next))))
      out += next.substr(0, count);
    CHECK(out == text);
    CHECK(inflater.read(std::as_writable_bytes(std::span(next))) == 0);
  }
  ls::Inflater cut(bare.first(bare.size() - 1), ls::Compression::kDeflate, "f");
  std::vector<std::byte> all(text.size() + 1);
  CHECK(contains(error_of<ls::IoError>([&] { cut.read(all); }), "f: damaged compressed data: the compressed data end"));
}
