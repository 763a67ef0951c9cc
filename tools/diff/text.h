// The comparison of two recorded runs in words.
#pragma once

#include <string>

#include "tools/diff/first_difference.h"

namespace diff {

// For the runs named `a` and `b`. Ends with a line break.
std::string as_text(const Comparison& comparison, const std::string& a, const std::string& b);

}  // namespace diff
