// Warnings: the library never prints; it tells a handler, once per place.
#pragma once

#include <string>

#include "lockstep/tensor/callback.h"

namespace lockstep::inline LOCKSTEP_ABI {

// Sets what receives warnings (the default drops them) and lets every place warn again. The handler may run on any
// thread, one at a time.
void on_warning(Callback<void(const std::string& message)> handler);

// Tells the handler, the first time `place` (a string literal) has something to say.
void warn(const char* place, const std::string& message);

}  // namespace lockstep::inline LOCKSTEP_ABI
