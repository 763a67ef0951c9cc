// Warnings: the only text that the library prints. They go to stderr, or to a handler of the program.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/tensor/callback.h"

namespace lockstep::inline LOCKSTEP_ABI {

// Sets the handler that receives all warnings, and forgets which ones were issued. Without a handler (the default, and
// after an empty one) a warning is written to stderr as "warning: " and the message. The handler runs on the thread that
// warns, one call at a time, and must not cause a warning itself; an exception that it throws passes through.
void on_warning(Callback<void(const std::string& message)> handler);

// Issues each distinct message of `place` (a string literal, such as the name of an operation) once per process, and at
// most `limit` of them: what is repeated in every training step does not flood the terminal. Messages contain shapes, so
// they may differ from step to step; the last one says that the next ones are not shown.
void warn(const char* place, const std::string& message, std::size_t limit = 8);

}  // namespace lockstep::inline LOCKSTEP_ABI
