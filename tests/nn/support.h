// What the tests of nn/ share.
#pragma once

#include "tests/support/testing.h"

namespace nn = lockstep::nn;
