// NumPy's files from memory or a stream: .npy holds one array, .npz is a zip archive of them (readers.h).
#pragma once

#include <string>

#include "lockstep/data/elements_internal.h"

namespace lockstep::data {

Tensor parse_npy(const ByteSource& source);
Tensor read_npy(const ByteStream& stream);
Tensor parse_npz(const ByteSource& source, const std::string& name = "");

}  // namespace lockstep::data
