// Tensors in files: the safetensors format (https://github.com/huggingface/safetensors), which Python reads as well.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "lockstep/nn/state_dict.h"

namespace lockstep::inline LOCKSTEP_ABI {

// What a file says about itself: free text by key.
using Metadata = std::map<std::string, std::string>;

// Writes `dict` to `path`, all or nothing: a save that is killed or runs out of disk leaves the old file. Views are
// packed. A checksum of the payload goes into the file's metadata, beside `metadata`.
// Throws InvalidArgument for an entry that cannot be written (undefined tensor, name that is not UTF-8), IoError where
// the file cannot be.
void save(const StateDict& dict, const std::string& path, const Metadata& metadata = {});

// The tensors of a safetensors file, on the CPU, in the order of the file's data; its metadata where `metadata` is
// not null. Throws IoError with file, place, what was found and what was expected, for everything that the format
// does not allow, for a wrong checksum, and for element types that Lockstep does not have.
StateDict load(const std::string& path, Metadata* metadata = nullptr);

// The same from memory; `name` stands for the file in messages.
StateDict parse_safetensors(std::span<const std::byte> bytes, const std::string& name, Metadata* metadata = nullptr);

}  // namespace lockstep::inline LOCKSTEP_ABI
