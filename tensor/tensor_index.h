/// \file
/// The arguments of Tensor::index and Tensor::index_put_, with the names of torch::indexing.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

namespace indexing {

/// Positions start, start + step, ... below stop; a limit that is not given is the end of the dimension. Negative
/// positions count from the end. The step is positive.
struct Slice {
  Slice(std::optional<std::int64_t> from = std::nullopt, std::optional<std::int64_t> to = std::nullopt,
        std::int64_t by = 1)
      : start(from), stop(to), step(by) {}
  std::optional<std::int64_t> start;  ///< the first position
  std::optional<std::int64_t> stop;   ///< past the last position
  std::int64_t step;                  ///< the distance between positions
};

struct EllipsisType {};                               ///< the type of Ellipsis
inline constexpr EllipsisType Ellipsis{};             ///< all dimensions that no other index takes
inline constexpr std::nullopt_t None = std::nullopt;  ///< a new dimension of size 1

}  // namespace indexing

/// One index of Tensor::index: an integer, Slice, Ellipsis or "...", None, or a tensor. An integer tensor (i64 or i32)
/// selects positions of one dimension; one without dimensions is an integer. A bool tensor selects the elements of as
/// many dimensions as it has; one without dimensions adds a dimension of size 1 (true) or 0 (false).
class TensorIndex {
 public:
  /// One position, which removes its dimension.
  template <std::integral I>
  requires(!std::same_as<I, bool>) TensorIndex(I i)  // NOLINT: implicit on purpose
      : kind(Kind::kPosition), position(static_cast<std::int64_t>(i)) {}
  TensorIndex(const indexing::Slice& s) : kind(Kind::kSlice), slice(s) {}  // NOLINT: implicit
  TensorIndex(const Tensor& t) : kind(Kind::kTensor), tensor(t) {}         // NOLINT: implicit
  TensorIndex(std::nullopt_t) : kind(Kind::kNone) {}                       // NOLINT: implicit
  TensorIndex(indexing::EllipsisType) : kind(Kind::kEllipsis) {}           // NOLINT: implicit
  /// Throws InvalidArgument for a text other than "...".
  TensorIndex(const char* text) : kind(Kind::kEllipsis) {  // NOLINT: implicit
    if (std::string_view(text) != "...") throw InvalidArgument("index: the only text that is an index is \"...\"");
  }

  /// What an index is.
  enum class Kind : std::uint8_t { kPosition, kSlice, kTensor, kNone, kEllipsis };
  Kind kind;                  ///< which of the following members is used
  std::int64_t position = 0;  ///< negative ones count from the end
  indexing::Slice slice;      ///< of kSlice
  Tensor tensor;              ///< of kTensor: positions or a mask
};

}  // namespace lockstep
