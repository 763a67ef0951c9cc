// The behaviour of FileStore beyond the calls that every store has (store_threads.cpp): which files it takes, and broken
// ones.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/rendezvous/store_support.h"
#include "tests/support/files.h"
#include "tests/support/testing.h"

namespace ls = lockstep;
using std::chrono::milliseconds;

namespace {

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void write_file(const std::string& path, const std::string& content, mode_t mode = 0600) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  REQUIRE(chmod(path.c_str(), mode) == 0);
}

// Removes what a test left, whatever it is.
struct Path {
  std::string name = fresh_path();
  ~Path() { remove(name.c_str()); }
  operator const std::string&() const { return name; }
};

// A process that uses the file and is killed, so that it does not leave.
void die_with(const std::string& path) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    par::FileStore store(path);
    store.set("old", "value");
    raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

}  // namespace

TEST_CASE("the last user to leave removes the file") {
  const Path path;
  {
    auto first = std::make_unique<par::FileStore>(path), second = std::make_unique<par::FileStore>(path);
    first->set("k", "v");
    CHECK(second->get("k") == "v");
    const std::vector<char> grown(64 << 20, 'x');  // a user is known by nothing that changes
    first.reset();
    CHECK(exists(path));
    CHECK(second->get("k") == "v");
  }
  CHECK_FALSE(exists(path));
}

TEST_CASE("with a world size the file stays until so many have come and left") {
  const Path path;
  const par::FileStoreOptions options{.world_size = 2};
  par::FileStore(path, options).set("k", "v");
  CHECK(exists(path));
  CHECK(par::FileStore(path, options).get("k") == "v");
  CHECK_FALSE(exists(path));
}

TEST_CASE("a file that a killed run left is begun anew") {
  const Path path;
  die_with(path);
  REQUIRE(exists(path));
  {
    par::FileStore store(path);
    CHECK_THROWS_WITH_AS(store.get("old", milliseconds(1)), doctest::Contains("no process has set \"old\" within 1 ms"),
                         ls::CommTimeout);
    store.set("new", "value");
  }
  CHECK_FALSE(exists(path));
}

TEST_CASE("a user that was killed does not keep the file") {
  const Path path;
  {
    par::FileStore store(path);
    die_with(path);
    CHECK(store.get("old") == "value");
  }
  CHECK_FALSE(exists(path));
}

TEST_CASE("links, other kinds of files, other modes and other contents are refused, untouched") {
  const Path target, path;
  const auto error_for = [&](const char* part) {
    CHECK_THROWS_WITH_AS(par::FileStore{path}, doctest::Contains(part), ls::IoError);
    CHECK_THROWS_WITH_AS(par::FileStore{path}, doctest::Contains(path.name.c_str()), ls::IoError);
  };
  write_file(target, "");
  REQUIRE(symlink(target.name.c_str(), path.name.c_str()) == 0);
  error_for("it is a symbolic link, which is not followed");
  CHECK(content_of_file(target).empty());
  remove(path.name.c_str());

  REQUIRE(link(target.name.c_str(), path.name.c_str()) == 0);
  error_for("it has a second name");
  remove(path.name.c_str());

  REQUIRE(mkfifo(path.name.c_str(), 0600) == 0);
  error_for("it is not a regular file");
  remove(path.name.c_str());

  REQUIRE(mkdir(path.name.c_str(), 0700) == 0);
  error_for("directory");
  rmdir(path.name.c_str());

  write_file(path, "", 0644);
  error_for("its mode is 0644, not 0600");
  remove(path.name.c_str());

  const std::string thesis(100, 'x');
  write_file(path, thesis);
  error_for("byte 0: it does not begin like a FileStore's file");
  CHECK(content_of_file(path) == thesis);

  if (geteuid() == 0) {
    remove(path.name.c_str());
    write_file(path, "");
    REQUIRE(chown(path.name.c_str(), 12345, 12345) == 0);
    error_for("it belongs to user 12345, not to 0");
  }
}

TEST_CASE("a file that was removed under its users is an error, and so are wrong arguments") {
  const Path path;
  par::FileStore store(path);
  remove(path.name.c_str());
  CHECK_THROWS_WITH_AS(store.set("k", "v"), doctest::Contains("it was removed, or replaced"), ls::IoError);
  CHECK_THROWS_WITH_AS(store.get("k", milliseconds(1)), doctest::Contains("it was removed"), ls::IoError);
  CHECK_THROWS_AS(par::FileStore("no-such-folder/file"), ls::IoError);
  CHECK_THROWS_AS(par::FileStore(path, {.world_size = 0}), ls::InvalidArgument);
  CHECK_THROWS_AS(par::FileStore(path, {.timeout = milliseconds(0)}), ls::InvalidArgument);
}

TEST_CASE("a lock that somebody keeps is a CommTimeout") {
  const Path path;
  par::FileStore store(path, {.timeout = milliseconds(5)});
  const ls::Descriptor other(open(path.name.c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_len = 1;
  REQUIRE(fcntl(other.get(), F_OFD_SETLK, &whole) == 0);
  CHECK_THROWS_WITH_AS(store.set("k", "v"), doctest::Contains("another process holds its lock"), ls::CommTimeout);
}

namespace {

// Opens a living run's file whose bytes were changed: the new user gets an error or the right values. Returns whether
// it got an error.
bool is_noticed(const std::string& broken, const std::string& path) {
  bool is_error = false;
  const par::FileStore keeper(path);  // a living user: the file of a run that is over would be overwritten
  write_file(path, broken);
  try {
    par::FileStore store(path, {.world_size = 1000});
    for (const char* key : {"a", "b"}) {
      const std::string value = store.get(key, milliseconds(1));
      CHECK(value == std::string("value of ") + key);
    }
  } catch (const ls::IoError& error) {
    is_error = true;
    CHECK(std::string(error.what()).find(path) != std::string::npos);
    CHECK(std::string(error.what()).size() < 400);
  }
  remove(path.c_str());
  return is_error;
}

}  // namespace

TEST_CASE("a file cut short anywhere, or with one changed byte, gives an error or the right values") {
  const Path original, path;
  par::FileStore store(original);
  store.set("a", "value of a");
  store.set("b", "value of b");
  const std::string whole = content_of_file(original);
  for (std::size_t size = 1; size < whole.size(); ++size) CHECK(is_noticed(whole.substr(0, size), path));
  // The file also holds tables from before the last changes, which are not read.
  const std::size_t table = whole.rfind("value of a"), header = whole.find('\0') + 1;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const int bit : {1, 0x80}) {
      CAPTURE(i);
      std::string broken = whole;
      broken[i] = static_cast<char>(broken[i] ^ bit);
      const bool is_error = is_noticed(broken, path);
      if (i < header || i >= table) CHECK(is_error);
    }
  }
  is_noticed(whole + "x", path);

  // One that has read it before.
  REQUIRE(truncate(original.name.c_str(), static_cast<off_t>(whole.size() - 1)) == 0);
  CHECK_THROWS_WITH_AS(store.get("a"), doctest::Contains("but the file has"), ls::IoError);
}

TEST_CASE("a limit of file sizes is an error that names it, and no signal; what was there stays") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  par::FileStore store(fresh_path());
  store.set("k", "v");
  rlimit tight = before;
  tight.rlim_cur = 1000;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &tight) == 0);
  const std::string text = error_of<ls::IoError>([&] { store.set("k", std::string(2000, 'x')); });
  CHECK_MESSAGE(text.find(" bytes, at most 1000 are allowed\nRaise the limit of this process with ulimit -f") !=
                    std::string::npos,
                text);
  CHECK(store.get("k") == "v");
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  store.set("k", std::string(2000, 'x'));
  CHECK(store.get("k").size() == 2000);
}
