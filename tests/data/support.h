// Files and data sets for the tests of data/.
#pragma once

#include <fstream>

#include "../support/testing.h"

using Rows = std::vector<std::int64_t>;

// Writes a file to the test's scratch folder.
inline std::string write_file(const std::string& name, const std::string& content) {
  std::ofstream(name, std::ios::binary) << content;
  return name;
}

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A data set whose example i is the number i with the target -i, both 0-d.
class Counting : public ls::data::Dataset {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  ls::data::Example get(std::int64_t index) const override { return {ls::tensor(index), ls::tensor(-index)}; }

 private:
  std::int64_t size_;
};

// Returns the inputs of every batch of one epoch.
template <class Loader>
std::vector<Rows> epoch_of(Loader& loader) {
  std::vector<Rows> batches;
  for (const auto& [inputs, targets] : loader) {
    batches.push_back(inputs.template to_vector<std::int64_t>());
    CHECK(ls::equal(inputs, -targets));
  }
  return batches;
}
