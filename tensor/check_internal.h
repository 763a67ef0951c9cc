// Argument checks for .cpp files (not for public headers: it includes fmt). The message is formatted only on failure.
#pragma once

#include <fmt/format.h>

#include "lockstep/tensor/error.h"

// Throws InvalidArgument with a formatted message unless `condition` holds.
#define LOCKSTEP_CHECK(condition, ...)                               \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      throw ::lockstep::InvalidArgument(::fmt::format(__VA_ARGS__)); \
  } while (false)

// Throws IoError with a formatted message unless `condition` holds.
#define LOCKSTEP_CHECK_IO(condition, ...)                    \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      throw ::lockstep::IoError(::fmt::format(__VA_ARGS__)); \
  } while (false)
