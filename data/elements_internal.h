// The elements of array files (npy, IDX): how a file stores them, and the dtypes that they become.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// Bytes that are read once, from front to back.
struct ByteStream {
  std::uint64_t size;                            // of the file
  const std::string& name;                       // for messages
  FunctionRef<void(std::span<std::byte>)> read;  // fills its argument with the next bytes
};

struct Element {
  char kind;          // NumPy's: b bool, i integer, u unsigned, f floating
  std::size_t bytes;  // in the file
  bool swap;          // the other byte order than this machine's
  DType dtype;        // in the tensor
};

// The element of NumPy's code, for example "f4": kind and bytes. Empty for a code that is not supported.
std::optional<Element> element_of(std::string_view code, std::endian order);

// Reads the elements of an array. Column-major (Fortran) order becomes row-major. The memory needed is that of the
// tensor and a small buffer. Throws IoError for an unsigned integer that does not fit i64.
Tensor read_elements(const ByteStream& stream, const Element& element, const Shape& shape, bool column_major);

}  // namespace lockstep::data
