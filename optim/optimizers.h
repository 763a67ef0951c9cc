/// \file
/// All optimizers, averages of parameters, and gradient scaling.
#pragma once

#include "lockstep/optim/adafactor.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/lbfgs.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
