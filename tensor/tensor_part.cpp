#include "lockstep/tensor/tensor_part.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"

namespace lockstep {

TensorPart TensorPart::whole(const Shape& shape) {
  const std::int64_t elements = shape.numel();
  return {.run = elements, .stride = elements, .numel = elements};
}

TensorPart TensorPart::slice(const Shape& shape, int dim, std::int64_t index, std::int64_t of, std::int64_t parts) {
  LOCKSTEP_CHECK(dim >= 0 && dim < shape.dim(), "TensorPart::slice: dimension {} of the shape {}", dim,
                 shape.to_string());
  const std::int64_t size = shape[static_cast<std::size_t>(dim)];
  LOCKSTEP_CHECK(of > 0 && index >= 0 && index < of, "TensorPart::slice: slice {} of {}; expected 0 to {}", index, of,
                 of - 1);
  LOCKSTEP_CHECK(
      parts > 0 && size % parts == 0 && size / parts % of == 0,
      "TensorPart::slice: dimension {} of the shape {} has {} parts to cut into {} slices each; expected a size "
      "divisible by {} * {}",
      dim, shape.to_string(), parts, of, parts, of);
  if (of == 1) return whole(shape);
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < shape.dim(); ++d) (d < dim ? outer : inner) *= d == dim ? 1 : shape[static_cast<std::size_t>(d)];
  const std::int64_t run = size / parts / of * inner;
  return {.first = index * run, .run = run, .stride = size / parts * inner, .numel = run * outer * parts};
}

TensorPart TensorPart::narrow(std::int64_t from, std::int64_t count) const {
  LOCKSTEP_CHECK(from >= 0 && count >= 0 && from <= numel && count <= numel - from,
                 "TensorPart::narrow: elements [{}, {}) of a part with {}", from, from + count, numel);
  TensorPart part = *this;
  part.begin += from;
  part.numel = count;
  return part;
}

std::int64_t TensorPart::runs() const { return numel == 0 ? 0 : (begin + numel - 1) / run - begin / run + 1; }

TensorPart::Run TensorPart::run_at(std::int64_t k) const {
  const std::int64_t number = begin / run + k;
  const std::int64_t from = std::max(begin, number * run), to = std::min(begin + numel, (number + 1) * run);
  return {.first = first + number * stride + (from - number * run), .count = to - from};
}

bool TensorPart::is_consecutive() const { return runs() <= 1; }

// Without products that could overflow: `elements` is at most 2^62, the fields are any numbers.
bool TensorPart::fits(std::int64_t elements) const {
  if (numel == 0) return true;
  if (first < 0 || first >= elements || run <= 0 || run > elements || stride < run || begin < 0 || numel < 0)
    return false;
  if (begin >= elements || numel > elements - begin) return false;
  const std::int64_t last = begin + numel - 1, free = elements - 1 - first;
  return last / run <= free / stride && last % run <= free - last / run * stride;
}

std::string TensorPart::to_string() const {
  if (run == 0 || is_consecutive()) return fmt::format("[{}, {})", at(0), at(0) + numel);
  return fmt::format("[{}, {}) of runs of {} at {}, {}, ...", begin, begin + numel, run, first, first + stride);
}

}  // namespace lockstep
