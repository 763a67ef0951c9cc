#pragma once

#include "tests/cuda/simulator/sort.h"
