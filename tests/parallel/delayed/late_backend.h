// The backend whose module sends messages late: see delayed/late_messages.h.
#pragma once

#include <cstdlib>

// Returns its name, or null where the tests run without such modules.
inline const char* late_backend() { return std::getenv("LOCKSTEP_TEST_LATE"); }
