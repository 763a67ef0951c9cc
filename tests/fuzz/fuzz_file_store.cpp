// Any bytes in the file of a FileStore: an IoError with the file and a short text, or a table that can be used and that
// the next reader finds as it was left. The first byte chooses how much of the file is sound: nothing, the magic text,
// everything but the table's bytes, or everything but the texts of keys and values.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

constexpr std::string_view kMagic = "lockstep FileStore 4\n";
constexpr std::uint64_t kHeaderBytes = kMagic.size() + 24;

void expect(bool condition) {
  if (!condition) std::abort();
}

// One for this process, written again for each input.
const std::string& path() {
  static const std::string path = "/tmp/fuzz_file_store." + std::to_string(::getpid());
  [[maybe_unused]] static const int at_exit = std::atexit([] { ::unlink(path.c_str()); });
  return path;
}

void write_file(const std::string& bytes) {
  const int file = ::open(path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  expect(file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  ::close(file);
}

// A piece from the front of `rest`, as long as its first byte says.
std::string_view take(std::string_view& rest) {
  const std::size_t size = std::min<std::size_t>(static_cast<unsigned char>(rest[0]) + 1, rest.size());
  const std::string_view piece = rest.substr(1, size - 1);
  rest.remove_prefix(size);
  return piece;
}

std::string file_of(int mode, std::string_view rest) {
  if (mode == 0) return std::string(rest);
  std::string file(kMagic), table;
  if (mode == 1) return file.append(rest);
  if (mode == 2) table = rest;
  while (mode == 3 && !rest.empty()) {
    const std::string_view text = take(rest);
    par::put_little(table, static_cast<std::uint32_t>(text.size()));
    table += text;
  }
  par::put_little(file, kHeaderBytes);
  par::put_little(file, static_cast<std::uint64_t>(table.size()));
  par::put_little(file, static_cast<std::uint64_t>(XXH3_64bits(table.data(), table.size())));
  return file += table;
}

void use() {
  using std::chrono::milliseconds;
  par::FileStore store(path());
  store.set("key", "value");
  store.delete_key("n");
  expect(store.add("n", 7) == 7);
  par::FileStore again(path());
  expect(again.check({"key", "n"}));
  expect(again.get("key", milliseconds(1)) == "value");
  expect(again.get("n", milliseconds(1)) == "7");
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  write_file("");
  const par::FileStore keeper(path());  // a living user: the file of a run that is over would be overwritten
  write_file(file_of(data[0] % 4, std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1)));
  try {
    use();
  } catch (const ls::IoError& error) {
    const std::string_view text = error.what();
    expect(text.find(path()) != std::string_view::npos && text.size() <= 400);
    expect(std::count(text.begin(), text.end(), '\n') <= 2);
  }
}
