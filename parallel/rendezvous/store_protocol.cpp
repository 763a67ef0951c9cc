#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"

namespace lockstep::parallel {

namespace {

// --- the operations -------------------------------------------------------------------------------------------------

struct Operation {
  StoreOp op;
  const char* phrase;  // for messages, before the first key
  std::size_t least_keys, most_keys, values;
  bool waits = false;    // whether it waits until its keys exist
  bool changes = false;  // whether it changes the table
};

constexpr Operation kOperations[] = {
    {StoreOp::kSet, "set", 1, 1, 1, false, true},
    {StoreOp::kGet, "get", 1, 1, 0, true},
    {StoreOp::kAdd, "add to", 1, 1, 1, false, true},
    {StoreOp::kCompareSet, "compare_set", 1, 1, 2, false, true},
    {StoreOp::kWait, "wait for", 1, kMaxWaitKeys, 0, true},
    {StoreOp::kDelete, "delete_key", 1, 1, 0, false, true},
    {StoreOp::kCheck, "check", 1, kMaxWaitKeys, 0},
    {StoreOp::kLastWill, "leave a last-will entry for", 0, kMaxWaitKeys, 1},
};

const Operation* find_operation(StoreOp op) {
  const auto* const found = std::ranges::find(kOperations, op, &Operation::op);
  return found == std::end(kOperations) ? nullptr : found;
}

const Operation& operation_of(StoreOp op) {
  const Operation* const operation = find_operation(op);
  LOCKSTEP_CHECK(operation, "store: there is no operation {}", static_cast<int>(op));
  return *operation;
}

std::size_t entry_bytes(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kStoreEntryBytes;
}

}  // namespace

bool changes_table(StoreOp op) { return operation_of(op).changes; }
bool waits_for_keys(StoreOp op) { return operation_of(op).waits; }

void check_store_request(const StoreRequest& request) {
  const Operation& operation = operation_of(request.op);
  LOCKSTEP_CHECK(request.keys.size() <= operation.most_keys, "store: {} {} keys, at most {} are allowed at once",
                 operation.phrase, request.keys.size(), operation.most_keys);
  LOCKSTEP_CHECK(request.keys.size() >= operation.least_keys && request.values.size() == operation.values,
                 "store: {}: a request of {} keys and {} values, expected {} or more keys and {} values",
                 operation.phrase, request.keys.size(), request.values.size(), operation.least_keys, operation.values);
  std::size_t bytes = 0;
  for (const std::string& key : request.keys) {
    LOCKSTEP_CHECK(key.size() <= kMaxStoreKey, "store: the key {} has {} bytes, at most {} are allowed", in_quotes(key),
                   key.size(), kMaxStoreKey);
    bytes += key.size();
  }
  LOCKSTEP_CHECK(bytes <= kMaxStoreValue, "store: {} keys of {} bytes together, at most {} are allowed",
                 operation.phrase, bytes, kMaxStoreValue);
  for (const std::string& value : request.values)
    LOCKSTEP_CHECK(value.size() <= kMaxStoreValue, "store: {}: the value has {} bytes, at most {} are allowed",
                   describe(request), value.size(), kMaxStoreValue);
}

std::string describe(const StoreRequest& request) {
  std::string text = operation_of(request.op).phrase;
  if (!request.keys.empty()) text += " " + in_quotes(request.keys[0]);
  if (request.keys.size() > 1) text += fmt::format(" and {} others", request.keys.size() - 1);
  return text;
}

StoreRequest to_request(std::uint8_t op, std::vector<std::string> fields) {
  const Operation* const operation = find_operation(static_cast<StoreOp>(op));
  if (!operation) throw IoError(fmt::format("store: there is no operation {}", op));
  const std::size_t least = operation->least_keys + operation->values, most = operation->most_keys + operation->values;
  if (fields.size() < least || fields.size() > most)
    throw IoError(fmt::format("store: {}: a request of {} fields, expected {} to {}", operation->phrase, fields.size(),
                              least, most));
  StoreRequest request{.op = operation->op};
  const auto values = fields.end() - static_cast<std::ptrdiff_t>(operation->values);
  request.values.assign(std::make_move_iterator(values), std::make_move_iterator(fields.end()));
  fields.erase(values, fields.end());
  request.keys = std::move(fields);
  return request;
}

// --- the table ------------------------------------------------------------------------------------------------------

std::optional<std::string> StoreTable::execute(const StoreRequest& request) {
  const std::vector<std::string>&keys = request.keys, &values = request.values;
  const auto answer = [](bool yes) { return std::string(yes ? "1" : "0"); };
  if (waits_for_keys(request.op) && first_missing(keys)) return std::nullopt;
  switch (request.op) {
    case StoreOp::kSet:
      set(keys.at(0), values.at(0));
      return "";
    case StoreOp::kGet:
      return *find(keys.at(0));
    case StoreOp::kAdd:
      return add(keys.at(0), values.at(0));
    case StoreOp::kCompareSet:
      return compare_set(keys.at(0), values.at(0), values.at(1));
    case StoreOp::kWait:
      return "";
    case StoreOp::kDelete:
      return answer(delete_key(keys.at(0)));
    case StoreOp::kCheck:
      return answer(!first_missing(keys));
    case StoreOp::kLastWill:
      break;
  }
  LOCKSTEP_CHECK(false, "store: {}: it requires a connection to a server", describe(request));
  return std::nullopt;
}

std::size_t StoreTable::bytes_with(const std::string& key, const std::string& value) const {
  const std::string* old = find(key);
  return bytes_ - (old ? entry_bytes(key, *old) : 0) + entry_bytes(key, value);
}

bool StoreTable::has_room(const std::string& key, const std::string& value) const {
  return bytes_with(key, value) <= kMaxStoreBytes;
}

void StoreTable::set(const std::string& key, const std::string& value) {
  LOCKSTEP_CHECK(has_room(key, value), "store: no room for {} with {} bytes: all keys and values have {}, of {}",
                 in_quotes(key), value.size(), bytes_, kMaxStoreBytes);
  bytes_ = bytes_with(key, value);
  values_.insert_or_assign(key, value);
  ++changes_;
}

std::string StoreTable::add(const std::string& key, const std::string& amount) {
  const std::string* const text = find(key);
  const auto sum = whole_number<std::int64_t>(text ? *text : "0"), more = whole_number<std::int64_t>(amount);
  LOCKSTEP_CHECK(sum, "store: add: {} holds {}, which is not a number", in_quotes(key), in_quotes(*text));
  LOCKSTEP_CHECK(more, "store: add to {}: the amount {} is not a number", in_quotes(key), in_quotes(amount));
  std::int64_t result = 0;
  LOCKSTEP_CHECK(!__builtin_add_overflow(*sum, *more, &result), "store: add: {} holds {}; {} more is too large",
                 in_quotes(key), *sum, *more);
  set(key, std::to_string(result));
  return std::to_string(result);
}

std::string StoreTable::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  const std::string* current = find(key);
  if (current ? *current != expected : !expected.empty()) return current ? *current : expected;
  set(key, desired);
  return desired;
}

void StoreTable::set_missing(const std::vector<std::string>& keys, const std::string& value) {
  for (const std::string& key : keys) {
    if (!find(key) && has_room(key, value)) set(key, value);
  }
}

bool StoreTable::delete_key(const std::string& key) {
  const auto at = values_.find(key);
  if (at == values_.end()) return false;
  bytes_ -= entry_bytes(at->first, at->second);
  values_.erase(at);
  ++changes_;
  return true;
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

const std::string* StoreTable::first_missing(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys) {
    if (!find(key)) return &key;
  }
  return nullptr;
}

// --- frames ---------------------------------------------------------------------------------------------------------

namespace {

std::string with_length(const std::string& content) {
  std::string out;
  out.reserve(kFrameHeader + content.size());
  put_little(out, static_cast<std::uint32_t>(content.size()));
  return out += content;
}

ByteReader reader_of(std::string_view content) {
  return ByteReader(std::as_bytes(std::span(content.data(), content.size())), "store: frame");
}

void expect_end(const ByteReader& reader) {
  if (reader.remaining() > 0) reader.fail(fmt::format("{} bytes too many", reader.remaining()));
}

}  // namespace

std::string frame(const StoreHello& hello) {
  std::string content;
  put_little(content, StoreHello::kMagic);
  put_little(content, hello.version);
  put_little(content, hello.job.low);
  put_little(content, hello.job.high);
  return with_length(content);
}

std::string frame(std::uint8_t code, const std::vector<std::string>& fields) {
  std::string content;
  put_little(content, code);
  put_little(content, static_cast<std::uint32_t>(fields.size()));
  for (const std::string& field : fields) {
    put_little(content, static_cast<std::uint32_t>(field.size()));
    content += field;
  }
  return with_length(content);
}

std::string frame(const StoreRequest& request) {
  std::vector<std::string> fields = request.keys;
  fields.insert(fields.end(), request.values.begin(), request.values.end());
  return frame(static_cast<std::uint8_t>(request.op), fields);
}

// Another version may have other fields after the version.
StoreHello read_hello(std::string_view content) {
  ByteReader reader = reader_of(content);
  if (reader.little<std::uint64_t>("magic number") != StoreHello::kMagic)
    reader.fail("not the hello of a Lockstep store's client");
  StoreHello hello;
  hello.version = reader.little<std::uint32_t>("version");
  if (hello.version != StoreHello::kVersion) return hello;
  hello.job.low = reader.little<std::uint64_t>("job");
  hello.job.high = reader.little<std::uint64_t>("job");
  expect_end(reader);
  return hello;
}

StoreMessage read_message(std::string_view content) {
  ByteReader reader = reader_of(content);
  StoreMessage message;
  message.code = reader.little<std::uint8_t>("code");
  const auto count = reader.little<std::uint32_t>("number of fields");
  if (count > kMaxWaitKeys + 1) reader.fail(fmt::format("{} fields, at most {} are allowed", count, kMaxWaitKeys + 1));
  for (std::uint32_t i = 0; i < count; ++i)
    message.fields.emplace_back(reader.text(reader.little<std::uint32_t>("length of a field"), "field"));
  expect_end(reader);
  return message;
}

std::optional<std::string_view> first_frame(std::string_view bytes, std::size_t most) {
  if (bytes.size() < kFrameHeader) return std::nullopt;
  const auto size = reader_of(bytes).little<std::uint32_t>("length");
  if (size > most) reader_of(bytes).fail(fmt::format("a frame of {} bytes, at most {} are allowed", size, most));
  if (bytes.size() - kFrameHeader < size) return std::nullopt;
  return bytes.substr(kFrameHeader, size);
}

}  // namespace lockstep::parallel
