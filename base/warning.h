/// \file
/// Warnings: the only text that the library prints. They go to stderr, or to a handler of the program.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/callback.h"

namespace lockstep {

/// Sets the handler that receives all warnings, and forgets which ones were issued. An empty handler restores the
/// default: the message is printed to stderr after "warning: ". The handler runs on the warning thread, one call at a
/// time. It must not cause a warning itself. Its exceptions pass through.
void on_warning(Callback<void(const std::string& message)> handler);

/// Issues each distinct message of `place` (a literal, such as an operation's name) once per process, and at most
/// `limit` of them: a mistake in a training loop must not flood the terminal, and messages that contain shapes may
/// differ in every step. The last one says that further warnings are suppressed.
void warn(const char* place, const std::string& message, std::size_t limit = 8);

}  // namespace lockstep
