/// \file
/// A height and a width.
#pragma once

#include <cstdint>

#include "lockstep/version.h"

namespace lockstep {

/// A height and a width. One number means both, as in `.padding = 1`; two are written in braces, `.padding = {1, 2}`.
struct Size2d {
  /// Equal height and width.
  constexpr Size2d(std::int64_t both) : height(both), width(both) {}  // NOLINT: implicit
  constexpr Size2d(std::int64_t h, std::int64_t w) : height(h), width(w) {}
  friend constexpr bool operator==(const Size2d&, const Size2d&) = default;

  std::int64_t height, width;  ///< in pixels
};

}  // namespace lockstep
