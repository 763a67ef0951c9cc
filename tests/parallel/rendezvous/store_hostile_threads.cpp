// What anybody with a socket can do to the server of a Unix store, while honest clients go on.
#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "tests/parallel/rendezvous/store_peers.h"
#include "tests/support/ranks.h"

namespace ls = lockstep;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

std::string u32(std::uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }

std::string frame(par::StoreOp op, const std::vector<std::string>& fields) {
  return par::frame(static_cast<std::uint8_t>(op), fields);
}

// A server with an honest client, whose calls still work when the test ends.
struct Honest {
  Honest() { client->set("k", "v"); }
  ~Honest() {
    CHECK(client->get("k") == "v");
    CHECK(client_of(options)->get("k") == "v");
  }
  par::UnixStoreOptions options = fresh_store();
  std::unique_ptr<par::StoreServer> server = serve(options);
  std::shared_ptr<par::StoreClient> client = client_of(options);
};

int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  REQUIRE(folder);
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

}  // namespace

TEST_CASE("wrong bytes of an unauthenticated peer close its connection without an answer") {
  Honest honest;
  const std::string right = par::frame(par::StoreHello{.job = honest.options.job});
  std::string other_magic = right;
  other_magic[par::kFrameHeader] ^= 1;
  for (const std::string& bytes : {
           std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),    // as a frame: 542 MB
           u32(par::kMaxHelloBytes - 3) + std::string(8, 'x'),  // claims one byte more than a hello may have
           u32(0xffffffff), u32(0), u32(3) + "abc", other_magic,
           right.substr(0, 4) + std::string(right.size() - 4, '\xff'),
           right + "more",  // somebody who does not wait for the answer
       }) {
    RawPeer peer(honest.options.socket);
    peer.say(bytes);
    CHECK(peer.hear_all().empty());
  }
}

TEST_CASE("a hello of another version or job is told so, and closed") {
  Honest honest;
  const auto code_for = [&](par::StoreHello hello) {
    RawPeer peer(honest.options.socket);
    peer.say(par::frame(hello));
    const par::StoreMessage answer = peer.answer();
    CHECK(peer.is_closed());
    return static_cast<par::StoreStatus>(answer.code);
  };
  CHECK(code_for({.version = 1, .job = honest.options.job}) == par::StoreStatus::kOtherVersion);
  CHECK(code_for({.job = {1, 3}}) == par::StoreStatus::kOtherJob);
}

TEST_CASE("a known client that breaks the protocol loses its connection and hears why") {
  Honest honest;
  using par::StoreOp;
  const std::string long_field = u32(1 << 30) + "x";
  const auto body = [](const std::string& content) {
    return u32(static_cast<std::uint32_t>(content.size())) + content;
  };
  struct Case {
    std::string bytes, part;
  };
  const std::vector<Case> cases = {
      {u32(0x7fffffff) + "x", "at most"},
      {u32(0), "code: 1 bytes needed"},
      {body("\x02"), "number of fields"},
      {body("\x02" + u32(1)), "length of a field"},
      {body("\x02" + u32(1) + long_field), "field: 1073741824 bytes needed"},
      {body("\x05" + u32(0xffffffff)), "fields, at most"},
      {body("\x02" + u32(0) + "rest"), "4 bytes too many"},
      {par::frame(200, {}), "no operation 200"},
      {frame(StoreOp::kSet, {"only a key"}), "set: a request of 1 fields, expected 2 to 2"},
      {frame(StoreOp::kGet, {}), "get: a request of 0 fields, expected 1 to 1"},
      {frame(StoreOp::kGet, {"a", "b"}), "get: a request of 2 fields, expected 1 to 1"},
      {frame(StoreOp::kCompareSet, {"a", "b"}), "compare_set: a request of 2 fields, expected 3 to 3"},
      {frame(StoreOp::kDelete, {}), "delete_key: a request of 0 fields, expected 1 to 1"},
      {frame(StoreOp::kCheck, {}), "check: a request of 0 fields, expected 1 to "},
      {frame(StoreOp::kCheck, std::vector<std::string>(par::kMaxWaitKeys + 1, "k")), "check: a request of 4097 fields"},
      {frame(StoreOp::kLastWill, {}), "leave a last-will entry for: a request of 0 fields, expected 1 to "},
      {frame(StoreOp::kSet, {"a", "b"}) + "x", "more bytes follow a frame"},
  };
  for (const Case& wrong : cases) {
    INFO(wrong.part);
    RawPeer peer(honest.options.socket);
    peer.introduce(honest.options.job);
    peer.say(wrong.bytes);
    const par::StoreMessage answer = peer.answer();
    CHECK(answer.code == static_cast<int>(par::StoreStatus::kMalformed));
    REQUIRE(answer.fields.size() == 1);
    CHECK_MESSAGE(answer.fields[0].find(wrong.part) != std::string::npos, answer.fields[0]);
    CHECK(peer.is_closed());
  }
}

TEST_CASE("what a known client may not ask is refused, and its connection stays") {
  Honest honest;
  RawPeer peer(honest.options.socket);
  peer.introduce(honest.options.job);
  const auto code_for = [&](par::StoreOp op, const std::vector<std::string>& fields) {
    peer.say(frame(op, fields));
    return static_cast<par::StoreStatus>(peer.answer().code);
  };
  CHECK(code_for(par::StoreOp::kSet, {std::string(par::kMaxStoreKey + 1, 'k'), ""}) == par::StoreStatus::kInvalid);
  CHECK(code_for(par::StoreOp::kSet, {"k2", std::string(par::kMaxStoreValue + 1, 'v')}) == par::StoreStatus::kInvalid);
  CHECK(code_for(par::StoreOp::kAdd, {"k", "1"}) == par::StoreStatus::kInvalid);
  CHECK(code_for(par::StoreOp::kAdd, {"n", "x"}) == par::StoreStatus::kInvalid);
  CHECK(code_for(par::StoreOp::kCheck, std::vector<std::string>(par::kMaxWaitKeys, "k")) == par::StoreStatus::kDone);
  CHECK(code_for(par::StoreOp::kDelete, {"k2"}) == par::StoreStatus::kDone);
}

TEST_CASE("the store's memory is bounded") {
  par::StoreTable table;
  const auto set = [&](const std::string& key, const std::string& given) {
    table.execute({.op = par::StoreOp::kSet, .keys = {key}, .values = {given}});
  };
  const std::string value(par::kMaxStoreValue, 'v');
  const std::size_t fit = par::kMaxStoreBytes / (value.size() + 8);
  CHECK_THROWS_WITH_AS(
      [&] {
        for (std::size_t i = 0; i <= fit; ++i) set(std::to_string(10000000 + i), value);
      }(),
      doctest::Contains("no room for "), ls::InvalidArgument);
  set("10000000", value);  // in place of the old one
  CHECK(table.execute({.op = par::StoreOp::kDelete, .keys = {"10000000"}}) == "1");
  set("10000000", value);
  // A key takes memory, too, however small it and its value are.
  const std::size_t left = par::kMaxStoreBytes - fit * (value.size() + 8 + par::kStoreEntryBytes);
  CHECK(table.has_room("k", value.substr(0, left - 1 - par::kStoreEntryBytes)));
  CHECK_FALSE(table.has_room("k", value.substr(0, left - par::kStoreEntryBytes)));
}

TEST_CASE("connections that say nothing are limited, and the oldest goes first") {
  Honest honest;
  std::deque<RawPeer> silent;
  for (std::size_t i = 0; i < par::kMaxUnauthenticated + 1; ++i) silent.emplace_back(honest.options.socket);
  CHECK(silent.front().is_closed());
  // The honest still come in, each at the cost of one of the silent.
  for (int i = 0; i < 3; ++i) CHECK(client_of(honest.options)->get("k") == "v");
  silent.back().introduce(honest.options.job);
}

TEST_CASE("a connection that does not finish its hello is closed when its time is over") {
  Honest honest;
  RawPeer silent(honest.options.socket), slow(honest.options.socket);
  slow.say(u32(44) + "a");
  CHECK(silent.is_closed());
  CHECK(slow.is_closed());
}

TEST_CASE("half-closed and vanished clients are forgotten") {
  Honest honest;
  {
    RawPeer half(honest.options.socket), parked(honest.options.socket), cut(honest.options.socket);
    half.introduce(honest.options.job);
    half.finish();
    CHECK(half.is_closed());
    parked.introduce(honest.options.job);
    parked.say(frame(par::StoreOp::kGet, {"later"}));
    parked.finish();  // TCP does not tell this from leaving, so neither do we
    CHECK(parked.is_closed());
    cut.introduce(honest.options.job);
    cut.say(u32(100) + "half a frame");
    honest.client->set("later", "now");
  }
  const auto waiting = client_of(honest.options);
  CHECK_THROWS_AS(waiting->get("never", milliseconds(1)), ls::CommTimeout);
  honest.client->set("never", "too late");
}

TEST_CASE("random bytes do no harm, before the hello and after it") {
  Honest honest;
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    RawPeer peer(honest.options.socket);
    const bool is_known = trial % 2;
    if (is_known) peer.introduce(honest.options.job);
    std::string bytes(random() % 200, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    // Half of them with a length that fits, so that the content is looked at.
    if (trial % 4 < 2) bytes = u32(static_cast<std::uint32_t>(bytes.size())) + bytes;
    peer.say(bytes);
  }
}

// UBSan needs a file descriptor of its own to check the type of an object.
TEST_CASE("out of descriptors the server tells newcomers why it refuses them, and goes on" *
          doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {
  Honest honest;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // The client's end takes one more, the server's end finds none.
  rlimit tight = before;
  std::vector<ls::Descriptor> fill;
  tight.rlim_cur = static_cast<rlim_t>(open_descriptors() + 8);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &tight) == 0);
  for (;;) {
    ls::Descriptor next(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!next) break;
    fill.push_back(std::move(next));
  }
  fill.pop_back();
  ls::on_warning([](const std::string&) {});
  for (int i = 0; i < 3; ++i) {
    RawPeer peer(honest.options.socket);
    const par::StoreMessage answer = peer.answer();
    CHECK(answer.code == static_cast<int>(par::StoreStatus::kExhausted));
    CHECK(answer.fields.at(0).find("Too many open files: this process may have ") == 0);
    CHECK(answer.fields.at(0).find("; raise the limit with ulimit -n") != std::string::npos);
    CHECK(peer.is_closed());
    CHECK(honest.client->get("k") == "v");
  }
  const par::ConnectResult result = par::connect_unix(honest.options, par::Deadline(seconds(10)));
  CHECK(result.outcome == par::ConnectOutcome::kExhausted);
  CHECK(result.detail.find("ulimit -n") != std::string::npos);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("servers and clients leave no descriptors behind") {
  const int before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    Honest honest;
    RawPeer peer(honest.options.socket);
    CHECK_THROWS_AS(honest.client->get("never", milliseconds(1)), ls::CommTimeout);
  }
  CHECK(open_descriptors() == before);
}
