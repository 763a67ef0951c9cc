/// \file
/// All optimizers.
#pragma once

#include "lockstep/optim/adam.h"
#include "lockstep/optim/lbfgs.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
