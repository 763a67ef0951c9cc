/// \file
/// All optimizers, and averages of parameters.
#pragma once

#include "lockstep/optim/adafactor.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/optim/lbfgs.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
