#include "lockstep/version.h"

extern "C" const char LOCKSTEP_LINK_GUARD = 0;

namespace lockstep {

const char* version() { return LOCKSTEP_VERSION; }

}  // namespace lockstep
