// NumPy's files: .npy holds one array, .npz is a zip archive of them. The public functions are in autograd/creation.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// The array of an .npy file: bool, f16, f32, f64, and integers, which come as u8, i32 (from i8, i16, u16) or i64 (from
// u32, and u64 where the values fit). Big-endian and Fortran-ordered files too; pickled objects never.
// Throws IoError, with file and place, for anything else.
// The memory needed is that of the tensor and a small buffer.
Tensor load_npy(const std::string& path);
Tensor parse_npy(const ByteSource& source);

// An .npy file that is read once, from front to back.
struct ByteStream {
  std::uint64_t size;                            // of the file
  const std::string& name;                       // for messages
  FunctionRef<void(std::span<std::byte>)> read;  // fills its argument with the next bytes
};
Tensor read_npy(const ByteStream& stream);

// The array `name` of an .npz archive, stored or compressed; the only one where `name` is empty. The memory
// needed is that of the tensor, allocated once the archive is known to hold its elements, and of the
// compressed bytes. Throws IoError for a damaged archive, and InvalidArgument, listing what there is, where
// `name` does not pick one.
Tensor load_npz(const std::string& path, const std::string& name = "");
Tensor parse_npz(const ByteSource& source, const std::string& name = "");

}  // namespace lockstep::raw
