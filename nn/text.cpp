#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "lockstep/nn/text_internal.h"

namespace lockstep::nn {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

std::string shape_and_dtype(const Tensor& tensor) {
  return fmt::format("{} {}", tensor.shape().to_string(), name(tensor.dtype()));
}

}  // namespace lockstep::nn
