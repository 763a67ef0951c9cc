/// \file
/// Saves and loads tensors in the safetensors format (https://github.com/huggingface/safetensors), as Python does.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "lockstep/nn/files/state_dict.h"

namespace lockstep {

/// Metadata of a file: arbitrary strings by key.
using Metadata = std::map<std::string, std::string>;

/// Writes `dict` to `path` atomically: a save that is killed or runs out of disk space leaves the old file intact. The
/// new file keeps the old file's permissions. If `path` is a symbolic link, its target is replaced. Views are written
/// contiguously. The file's metadata are `metadata`, "format": "pt" if `metadata` has no format, and a checksum of
/// the payload. Throws InvalidArgument for an entry
/// that cannot be written (undefined tensor, name that is not UTF-8) and for names or strings beyond the limits of
/// `load`; IoError if the file cannot be written.
void save(const StateDict& dict, const std::string& path, const Metadata& metadata = {});

/// The tensors of a safetensors file, on the CPU, in the order of the file's data. Stores its metadata in `metadata` if
/// not null. Leaves out tensors of dtypes that Lockstep does not have, with a warning. Throws IoError, with file, offset,
/// what was found and what was expected, if the file violates the format, and for a wrong checksum. A file may have up to 65,536 tensors with names of 8 MiB in total.
/// Metadata beyond 16,384 entries, and those with a string of more than 2 MiB, are left out with a warning. Memory use then stays below the file's size plus 64 MiB.
StateDict load(const std::string& path, Metadata* metadata = nullptr);

/// The tensors of a safetensors file, of an index (`*.safetensors.index.json`) of several, or of a folder with either
/// (with both: of `model.safetensors`), mapped into memory: a tensor is read from the disk when it is used, and needs
/// no memory of this process until it is changed. Changes stay in this process. The files must neither change nor become
/// shorter while a tensor exists, so replace them (as `save` does) rather than write into them. Checksums are not
/// verified. Tensors that do not lie at a multiple of their element size, which no current writer produces, are read at
/// once. Otherwise as `load`.
StateDict open(const std::string& path);

/// The same as `load` from memory; error messages use `name` as the file name.
StateDict parse_safetensors(std::span<const std::byte> bytes, const std::string& name, Metadata* metadata = nullptr);

}  // namespace lockstep
