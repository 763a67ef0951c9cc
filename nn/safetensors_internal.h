// Declarations shared by the safetensors reader and writer. Not installed.
//
// A file is N (u64, little-endian), N bytes of JSON, then the payload: the tensors' bytes, one after another.
// The JSON maps a name to {"dtype", "shape", "data_offsets": [begin, end]}, counted from the start of the payload, and
// "__metadata__" to a map from string to string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/serialize.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/file_internal.h"

namespace lockstep::nn::safetensors {

inline constexpr std::uint64_t kTextOffset = 8;  // offset of the JSON, after its length
inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr const char* kChecksumKey = "lockstep.xxh3";  // XXH3 of the payload, 16 hexadecimal digits

struct DTypeName {
  std::string_view name;
  DType dtype;
};
// In the order in which writers place them: largest alignment first.
inline constexpr DTypeName kDTypes[] = {{"I64", kInt64},     {"F64", kFloat64}, {"F32", kFloat32}, {"I32", kInt32},
                                        {"BF16", kBFloat16}, {"F16", kFloat16}, {"U8", kUInt8},    {"BOOL", kBool}};

struct Entry {
  std::string name;
  DType dtype = kFloat32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // offsets in the payload
};

struct Header {
  std::vector<Entry> entries;  // in the order of their data
  Metadata metadata;
  std::uint64_t payload = 0;  // offset of the payload in the file
};

// Parses the header of a file of `file_bytes` bytes and checks every rule of the format that does not need the
// payload. `source` need not contain the payload. Throws IoError.
Header read_header(const ByteSource& source, std::uint64_t file_bytes);

// Writes the whole file, without the commit.
void write(const StateDict& dict, const Metadata& metadata, AtomicFile& file);

}  // namespace lockstep::nn::safetensors
