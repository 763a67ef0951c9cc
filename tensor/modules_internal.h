// Parts of the library that are shared objects of their own, opened on first use: what they need (CUDA, MPI) is no burden
// for programs that do without. Not installed.
#pragma once

#include <string>

#include "lockstep/tensor/error.h"

namespace lockstep {

// The file of a module as messages name it: <folder>/lockstep/liblockstep_<name>.so.
std::string module_file(const std::string& name);
// Its function `entry`; the module stays open. Null where there is none: `why` is empty if the file is missing, and else
// says what is wrong with it.
void* open_module(const std::string& name, const std::string& entry, std::string& why);

}  // namespace lockstep
