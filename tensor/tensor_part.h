/// \file
/// A part of a tensor that several ranks or files share: which elements of the whole tensor it has.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "lockstep/tensor/shape.h"

namespace lockstep {

/// The elements [begin, begin + numel) of a slice. A slice is runs of consecutive elements of the whole tensor at equal
/// distances, one run after another. All positions are in row-major order:
///
///     TensorPart::whole({4, 6})                 // all 24 elements, one run
///     TensorPart::slice({4, 6}, 1, 2, 3)        // columns 4 and 5: the runs 4 5, 10 11, 16 17, 22 23
///     TensorPart::slice({4, 6}, 1, 2, 3).narrow(3, 2)  // of these the fourth and the fifth: 11, 16
struct TensorPart {
  std::int64_t first = 0;   ///< of the slice: the first element of its first run
  std::int64_t run = 0;     ///< of the slice: elements of a run
  std::int64_t stride = 0;  ///< of the slice: from the first element of a run to that of the next one
  std::int64_t begin = 0;   ///< the part's first element, counted in the slice
  std::int64_t numel = 0;   ///< number of elements of the part

  /// The whole tensor, as one run.
  static TensorPart whole(const Shape& shape);
  /// Slice number `index` of `of` equal slices of dimension `dim`. With `parts`, the dimension consists of this many
  /// equal blocks, and the slice has its share of each: an in_proj weight of 3 parts has the rows of q, k and v. Throws
  /// InvalidArgument if the dimension cannot be cut into parts * of equal pieces.
  static TensorPart slice(const Shape& shape, int dim, std::int64_t index, std::int64_t of, std::int64_t parts = 1);
  /// The elements [from, from + count) of this part. Throws InvalidArgument if the part has fewer.
  TensorPart narrow(std::int64_t from, std::int64_t count) const;

  /// Position in the whole tensor of the part's element `i`.
  std::int64_t at(std::int64_t i) const {
    const std::int64_t in_slice = begin + i;
    return run == 0 ? first : first + in_slice / run * stride + in_slice % run;
  }

  /// Consecutive elements of the whole tensor.
  struct Run {
    std::int64_t first = 0;                        ///< position in the whole tensor
    std::int64_t count = 0;                        ///< number of elements
    auto operator<=>(const Run&) const = default;  ///< by first, then by count
  };
  std::int64_t runs() const;         ///< number of runs of which the part has elements
  Run run_at(std::int64_t k) const;  ///< the part's elements in its run number k
  bool is_consecutive() const;       ///< true if the part is one run, or empty

  /// True if the part is one of a tensor with `elements` elements, and no element is in it twice.
  bool fits(std::int64_t elements) const;
  /// "[4, 10)"; with several runs "[3, 5) of runs of 2 at 4, 10, ...".
  std::string to_string() const;
  bool operator==(const TensorPart&) const = default;  ///< compares the members
};

}  // namespace lockstep
