// Any bytes in the file of a FileStore: an IoError with the file, the byte and a short text, or a table that can be used and
// that the next reader finds as it was left. The first byte chooses how much of the file is sound: nothing, the header, the
// checksums of records as well, or everything but the records' fields.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/rendezvous/store_file_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

constexpr std::size_t kHeaderBytes = 28, kNoncePlace = 12;

void expect(bool condition) {
  if (!condition) std::abort();
}

// One for this process, written anew for each input.
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

// The header of this process's run: what it makes of an empty file.
std::string header() {
  write_file("");
  par::StoreFile(path()).join();
  std::string bytes(kHeaderBytes, '\0');
  const int file = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
  expect(::read(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  ::close(file);
  return bytes;
}

// A piece from the front of `rest`, as long as its first byte says.
std::string_view take(std::string_view& rest) {
  const std::size_t size = std::min<std::size_t>(static_cast<unsigned char>(rest[0]) + 1, rest.size());
  const std::string_view piece = rest.substr(1, size - 1);
  rest.remove_prefix(size);
  return piece;
}

void append(std::string& file, const std::string& record) {
  std::uint64_t nonce = 0;
  std::memcpy(&nonce, file.data() + kNoncePlace, sizeof(nonce));
  file += record;
  par::put_little(file, static_cast<std::uint64_t>(XXH3_64bits_withSeed(record.data(), record.size(), nonce)));
}

std::string file_of(int mode, std::string_view rest) {
  if (mode == 0) return std::string(rest);
  std::string file = header();
  if (mode == 1) return file.append(rest);
  while (mode == 2 && !rest.empty()) {  // what a frame has within
    const std::string_view content = take(rest);
    std::string record;
    par::put_little(record, static_cast<std::uint32_t>(content.size()));
    append(file, record.append(content));
  }
  while (mode == 3 && !rest.empty()) {
    const auto kind = static_cast<std::uint8_t>(static_cast<unsigned char>(rest[0]) % 6);
    std::vector<std::string> fields;
    for (rest.remove_prefix(1); !rest.empty() && fields.size() < 3;) fields.emplace_back(take(rest));
    if (kind == 1) fields.resize(std::min<std::size_t>(fields.size(), 2));  // a set
    append(file, par::frame(kind, fields));
  }
  return file;
}

void use() {
  using par::StoreOp;
  par::StoreFile file(path());
  file.join();
  file.execute({.op = StoreOp::kSet, .keys = {"key"}, .values = {"value"}});
  file.execute({.op = StoreOp::kDelete, .keys = {"n"}});
  expect(file.execute({.op = StoreOp::kAdd, .keys = {"n"}, .values = {"7"}}) == "7");
  par::StoreFile again(path());
  again.join();
  expect(again.table().find("key") && *again.table().find("key") == "value");
  expect(*again.table().find("n") == "7");
  expect(again.execute({.op = StoreOp::kCheck, .keys = {"key", "n"}}) == "1");
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  write_file("");
  par::StoreFile keeper(path());  // a living user: the file of a run that is over would be overwritten
  keeper.join();
  write_file(file_of(data[0] % 4, std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1)));
  try {
    use();
  } catch (const ls::IoError& error) {
    const std::string_view text = error.what();
    expect(text.find(path()) != std::string_view::npos && text.size() <= 400);
    expect(std::count(text.begin(), text.end(), '\n') <= 2);
  }
}
