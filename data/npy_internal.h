// NumPy's files from memory or a stream: .npy holds one array, .npz is a zip archive of them (readers.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

Tensor parse_npy(const ByteSource& source);

// An .npy file that is read once, from front to back.
struct ByteStream {
  std::uint64_t size;                            // of the file
  const std::string& name;                       // for messages
  FunctionRef<void(std::span<std::byte>)> read;  // fills its argument with the next bytes
};
Tensor read_npy(const ByteStream& stream);

Tensor parse_npz(const ByteSource& source, const std::string& name = "");

}  // namespace lockstep::data
