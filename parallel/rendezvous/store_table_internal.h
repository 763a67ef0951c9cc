// The table behind a store, without waiting or locking: InProcessStore, StoreServer and StoreFile hold one each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

// Throw InvalidArgument for what is past the limits of a store.
void check_store_key(const std::string& key);
void check_store_value(const std::string& key, const std::string& value);
void check_store_keys(const std::vector<std::string>& keys);

class StoreTable {
 public:
  // As the calls of Store; InvalidArgument past a limit, or for `add` where the key holds no number.
  void set(const std::string& key, const std::string& value);
  std::int64_t add(const std::string& key, std::int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool delete_key(const std::string& key);
  // Carries a last will out: sets those of `keys` that are not there, as far as there is room, and returns them.
  std::vector<std::string> set_missing(const std::vector<std::string>& keys, const std::string& value);

  bool has_room(const std::string& key, const std::string& value) const;
  const std::string* find(const std::string& key) const;  // null where it is not there
  // The first of `keys` that is not there; null where all are.
  const std::string* first_missing(const std::vector<std::string>& keys) const;

 private:
  std::size_t bytes_with(const std::string& key, const std::string& value) const;

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::parallel
