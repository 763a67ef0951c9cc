// The table behind a store, without waiting or locking: InProcessStore, StoreServer and FileStore hold one each. What a store
// can be asked, and within which limits, is said here and in store_table.cpp alone.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

// The whole of `text` as a number; nothing where it is none, or too large.
template <std::integral T>
std::optional<T> whole_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool changes_table(StoreOp op);
bool waits_for_keys(StoreOp op);
// Throws InvalidArgument past the limits of a store, or where keys or values are missing.
void check_store_request(const StoreRequest& request);
// For messages: `add to "n"`, `wait for "a" and 2 others`.
std::string describe(const StoreRequest& request);

// A request as the fields of a message: its keys, then its values. Reading throws IoError for an unknown operation, or a number
// of fields that does not fit.
std::vector<std::string> to_fields(const StoreRequest& request);
StoreRequest to_request(std::uint8_t op, std::vector<std::string> fields);

class StoreTable {
 public:
  // Carries out a request that check_store_request accepts. Nothing where it has to wait: a key does not exist. Throws
  // InvalidArgument where there is no room, or where a number is to be added to a value that is none.
  std::optional<std::string> execute(const StoreRequest& request);
  // Carries out a last-will entry: sets those of `keys` that do not exist, as far as there is room, and returns them.
  std::vector<std::string> set_missing(const std::vector<std::string>& keys, const std::string& value);

  bool has_room(const std::string& key, const std::string& value) const;
  std::uint64_t changes() const { return changes_; }      // how often the table has changed
  const std::string* find(const std::string& key) const;  // null where it does not exist
  // The first of `keys` that does not exist; null where all do.
  const std::string* first_missing(const std::vector<std::string>& keys) const;

 private:
  void set(const std::string& key, const std::string& value);
  std::string add(const std::string& key, const std::string& amount);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool delete_key(const std::string& key);
  std::size_t bytes_with(const std::string& key, const std::string& value) const;

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace lockstep::parallel
