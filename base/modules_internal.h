// Parts of the library in shared objects of their own, opened on first use: programs that do not use CUDA or MPI do
// not need them. Not installed.
#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// The file of a module as messages name it: <folder>/lockstep/liblockstep_<name>.so.
std::string module_file(const std::string& name);
// Opens the module and returns its function `entry`; the module stays open. Returns null on failure: `why` is empty if
// the file is missing, otherwise it is the reason.
void* open_module(const std::string& name, const std::string& entry, std::string& why);

}  // namespace lockstep
