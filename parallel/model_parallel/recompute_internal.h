// Modules that are recomputed in backward by their style (Recompute). Not installed.
#pragma once

#include "lockstep/nn/module.h"

namespace lockstep::parallel {

// Makes each call of the module one of autograd::checkpoint, outside of runners that are added later.
void recompute(nn::Module& module);

}  // namespace lockstep::parallel
