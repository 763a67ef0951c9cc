// Reads environment variables. A value that cannot be parsed is an error, never ignored.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// The value of a variable. An empty one counts as unset.
std::optional<std::string> environment(const char* name);

// The value of a variable as a whole number. Throws InvalidArgument that names the variable, its value and
// the range.
std::optional<int> environment_number(const char* name, int low, int high);

// `text` as a whole number. Throws InvalidArgument; `what` names its source: "init_process_group: RANK".
// `fix` ends the message.
int parse_number(const std::string& what, const std::string& text, int low, int high, const char* fix = "");

// The cores of a cgroup's quota, rounded up: 2 for "150000 100000". 0 if `text` sets no limit.
int cores_of_quota(const std::string& text);

}  // namespace lockstep
