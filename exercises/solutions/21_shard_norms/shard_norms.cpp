// Squares can be summed over ranks, norms cannot: one all-reduce has the sums of squares of all parameters.
#include <algorithm>

#include "adapters.h"

namespace exercises {

double clip_shard(const ls::Tensor& gradient, double max_norm, par::ProcessGroup& group) {
  const ls::Tensor squares = (gradient * gradient).sum();
  group.all_reduce(squares)->wait();
  const double norm = std::sqrt(squares.item<double>());
  if (norm > max_norm) gradient.mul_(max_norm / norm);
  return norm;
}

void lars_step(const ls::Tensor& parameters, const ls::Tensor& gradient, const std::vector<std::int64_t>& sizes,
               double rate, par::ProcessGroup& group) {
  struct Part {
    ls::Tensor parameter, gradient;  // the elements of a parameter that this rank has, maybe none
  };
  std::vector<Part> parts;
  std::int64_t begin = -group.rank() * parameters.numel();  // of the parameter, from the first element of the shard
  for (const std::int64_t size : sizes) {
    const auto clamp = [&](std::int64_t at) { return std::clamp<std::int64_t>(at, 0, parameters.numel()); };
    const std::int64_t first = clamp(begin), end = clamp(begin + size);
    parts.push_back({parameters.slice(0, first, end), gradient.slice(0, first, end)});
    begin += size;
  }
  std::vector<ls::Tensor> own;
  for (const Part& part : parts) {
    own.push_back((part.parameter * part.parameter).sum());
    own.push_back((part.gradient * part.gradient).sum());
  }
  const ls::Tensor squares = ls::stack(own);
  group.all_reduce(squares)->wait();
  const auto sums = squares.span<double>();
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i].parameter.sub_(parts[i].gradient * (rate * std::sqrt(sums[2 * i] / sums[2 * i + 1])));
}

}  // namespace exercises
