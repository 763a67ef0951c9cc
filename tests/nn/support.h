// Shared by the tests of nn/.
#pragma once

#include "tests/support/testing.h"

namespace nn = lockstep::nn;
