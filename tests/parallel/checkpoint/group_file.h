// Files that all ranks of a group write: pieces of tensors, and their comparison with the file of one process.
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>

#include "lockstep/parallel/checkpoint/group_file_internal.h"

#include "tests/support/groups.h"

namespace par = ls::parallel;
using ls::nn::safetensors::Piece;

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The number of files in the current folder whose name begins with `prefix`.
inline int files_named(const std::string& prefix) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("."))
    count += entry.path().filename().string().starts_with(prefix);
  return count;
}

// Tensors of all dtypes, of odd sizes, of one element and of none.
inline ls::StateDict whole_tensors() {
  ls::StateDict dict;
  std::uint32_t salt = 0;
  for (const ls::DType dtype :
       {ls::kBool, ls::kUInt8, ls::kInt32, ls::kInt64, ls::kFloat16, ls::kBFloat16, ls::kFloat32, ls::kFloat64}) {
    const std::string name = ls::name(dtype);
    const auto values = [&](const ls::Shape& shape) {
      const ls::Tensor t = numbers(shape, {.dtype = ls::kFloat64}, ++salt) * 100;
      return dtype == ls::kBool || dtype == ls::kUInt8 ? (t > 0).to(dtype) : t.to(dtype);
    };
    dict.insert(name + ".odd", values({7, 11}));
    dict.insert(name + ".scalar", values({}));
    dict.insert(name + ".empty", values({0, 3}));
    dict.insert(name + ".line", values({129}));
  }
  dict.insert("transposed", numbers({5, 9}).t());
  return dict;
}

// The pieces of rank `rank`: every tensor is cut at pseudorandom places, also at its ends.
inline std::vector<Piece> cut(const ls::StateDict& dict, int rank, int size) {
  std::mt19937 random(5);
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : dict) {
    std::vector<std::int64_t> cuts = {0, tensor.numel()};
    for (int r = 1; r < size; ++r)
      cuts.push_back(static_cast<std::int64_t>(random() % (static_cast<std::uint32_t>(tensor.numel()) + 1)));
    std::sort(cuts.begin(), cuts.end());
    const std::int64_t first = cuts[static_cast<std::size_t>(rank)], end = cuts[static_cast<std::size_t>(rank) + 1];
    pieces.push_back({name, tensor.reshape({tensor.numel()}).slice(0, first, end), tensor.shape(), first});
  }
  return pieces;
}

inline void check_group_files(const std::string& backend) {
  const ls::StateDict dict = whole_tensors();
  const ls::Metadata metadata = {{"format", "pt"}, {"zone", "last"}};
  ls::save(dict, "one.safetensors", metadata);
  const std::string want = bytes_of("one.safetensors");
  for (const int size : {1, 2, 3, 4}) {
    INFO(backend, " ", size);
    std::ofstream("ranks.safetensors") << "old";
    with_group(backend, size, [&](const Group& group) {
      par::save_pieces(cut(dict, group->rank(), size), metadata, "ranks.safetensors", group.get());
      CHECK(bytes_of("ranks.safetensors") == want);
    });
    CHECK(bytes_of("ranks.safetensors") == want);
    CHECK(files_named("ranks.safetensors") == 1);
  }
}
