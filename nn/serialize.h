// Tensors in files: the safetensors format (https://github.com/huggingface/safetensors), which Python reads as well.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "lockstep/nn/state_dict.h"

namespace lockstep {

// What a file says about itself: free text by key.
using Metadata = std::map<std::string, std::string>;

// Writes `dict` to `path`, all or nothing: a save that is killed or runs out of disk leaves the old file.
// The new file keeps the old one's permissions, and where `path` is a symbolic link, the file that it leads
// to is replaced. Views are packed. The file's metadata are `metadata` and a checksum of the payload. Throws
// InvalidArgument for an entry that cannot be written (undefined tensor, name that is not UTF-8) and for
// names or texts past the limits of `load`, IoError where the file cannot be written.
void save(const StateDict& dict, const std::string& path, const Metadata& metadata = {});

// The tensors of a safetensors file, on the CPU, in the order of the file's data; its metadata where
// `metadata` is not null. Throws IoError with file, place, what was found and what was expected, for
// everything that the format does not allow, for a wrong checksum, and for element types that Lockstep does
// not have. A file may have 65,536 tensors with names of 8 MiB together, 16,384 entries of metadata, and
// texts of 2 MiB each; then memory stays below the file's size and 64 MiB.
StateDict load(const std::string& path, Metadata* metadata = nullptr);

// The same from memory; `name` stands for the file in messages.
StateDict parse_safetensors(std::span<const std::byte> bytes, const std::string& name, Metadata* metadata = nullptr);

}  // namespace lockstep
