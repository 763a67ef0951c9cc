// Argument checks for .cpp files (not for public headers: it includes fmt). The message is formatted only on failure.
#pragma once

#include <fmt/format.h>

#include "lockstep/base/error.h"

// Throws InvalidArgument with a formatted message unless `condition` holds.
#define LOCKSTEP_CHECK(condition, ...)                               \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      throw ::lockstep::InvalidArgument(::fmt::format(__VA_ARGS__)); \
  } while (false)

namespace lockstep {

// Returns compute(). Its errors name `op`, the operation that the user called, and not the operation that threw.
template <class F>
auto named(const char* op, F compute) {
  try {
    return compute();
  } catch (InvalidArgument& error) {
    error.set_operation(op);
    throw;
  }
}

}  // namespace lockstep

// Throws IoError with a formatted message unless `condition` holds.
#define LOCKSTEP_CHECK_IO(condition, ...)                    \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      throw ::lockstep::IoError(::fmt::format(__VA_ARGS__)); \
  } while (false)
