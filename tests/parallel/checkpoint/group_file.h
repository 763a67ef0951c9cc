// Files that all ranks of a group write: pieces of tensors, and their comparison with the file of one process.
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>

#include "lockstep/parallel/checkpoint/group_file_internal.h"

#include "tests/support/files.h"
#include "tests/support/groups.h"

namespace par = ls::parallel;
using ls::nn::safetensors::Piece;

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

// The pieces of rank `rank`: every tensor is cut at pseudorandom places, also at its ends. Odd ranks have two pieces of
// some tensors, the second one first.
inline std::vector<Piece> cut(const ls::StateDict& dict, int rank, int size) {
  std::mt19937 random(5);
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : dict) {
    std::vector<std::int64_t> cuts = {0, tensor.numel()};
    for (int r = 1; r < size; ++r)
      cuts.push_back(static_cast<std::int64_t>(random() % (static_cast<std::uint32_t>(tensor.numel()) + 1)));
    std::sort(cuts.begin(), cuts.end());
    const std::int64_t first = cuts[static_cast<std::size_t>(rank)], end = cuts[static_cast<std::size_t>(rank) + 1];
    const auto add = [&, tensor = tensor, name = name](std::int64_t from, std::int64_t to) {
      pieces.push_back({name, tensor.reshape({tensor.numel()}).slice(0, from, to), tensor.shape(),
                        ls::TensorPart::whole(tensor.shape()).narrow(from, to - from)});
    };
    const std::int64_t middle = first + (end - first) / 3;
    const bool has_two = random() % 2 == 0 && rank % 2 == 1;  // the same numbers on all ranks
    if (has_two) add(middle, end);
    add(first, has_two ? middle : end);
  }
  return pieces;
}

// Slice `index` of `of` of a dimension with `parts` blocks, as a tensor.
inline ls::Tensor slice_of(const ls::Tensor& tensor, int dim, std::int64_t index, std::int64_t of,
                           std::int64_t parts = 1) {
  const std::int64_t block = tensor.size(dim) / parts, each = block / of;
  std::vector<ls::Tensor> slices;
  for (std::int64_t p = 0; p < parts; ++p) slices.push_back(tensor.narrow(dim, p * block + index * each, each));
  return ls::cat(slices, dim);
}

// The pieces of one of 2 or 4 ranks: rows, columns, slices of weights with three parts, of a convolution's inputs, and
// halves of columns.
inline std::vector<Piece> slices(const ls::StateDict& dict, int rank, int size) {
  std::vector<Piece> pieces;
  for (const auto& entry : dict) {
    const std::string& name = entry.first;
    const ls::Tensor& tensor = entry.second;
    const auto add = [&](const ls::Tensor& part, const ls::TensorPart& place) {
      pieces.push_back({name, part, tensor.shape(), place});
    };
    const int dim = name.starts_with("rows") || name.starts_with("in_proj") ? 0 : 1;
    const std::int64_t parts = contains(name, "in_proj") ? 3 : 1;
    if (!name.starts_with("halves")) {
      add(slice_of(tensor, dim, rank, size, parts), ls::TensorPart::slice(tensor.shape(), dim, rank, size, parts));
      continue;
    }
    const ls::TensorPart slice = ls::TensorPart::slice(tensor.shape(), 1, rank / 2, size / 2);
    const std::int64_t cut = slice.numel / 2 + 1, from = rank % 2 == 0 ? 0 : cut,
                       to = rank % 2 == 0 ? cut : slice.numel;
    add(slice_of(tensor, 1, rank / 2, size / 2).reshape({slice.numel}).slice(0, from, to),
        slice.narrow(from, to - from));
  }
  return pieces;
}

// The pieces of a rank that has two of twice as many slices, and of halves its own.
inline std::vector<Piece> two_slices(const ls::StateDict& dict, int rank, int size) {
  std::vector<Piece> pieces = slices(dict, 2 * rank, 2 * size);
  for (Piece& each : slices(dict, 2 * rank + 1, 2 * size)) pieces.push_back(std::move(each));
  return pieces;
}

inline void check_group_files_of_slices(const std::string& backend) {
  ls::StateDict dict;
  std::uint32_t salt = 50;
  for (const ls::DType dtype : {ls::kBool, ls::kInt64, ls::kBFloat16, ls::kFloat32}) {
    for (const auto& [name, shape] : std::vector<std::pair<std::string, ls::Shape>>{{"columns", {7, 8}},
                                                                                    {"rows", {8, 7}},
                                                                                    {"in_proj", {24, 5}},
                                                                                    {"columns_of_in_proj", {5, 24}},
                                                                                    {"convolution", {3, 8, 3, 3}},
                                                                                    {"halves", {5, 12}}}) {
      const ls::Tensor t = numbers(shape, {.dtype = ls::kFloat64}, ++salt) * 100;
      dict.insert(name + "." + ls::name(dtype), dtype == ls::kBool ? (t > 0).to(dtype) : t.to(dtype));
    }
  }
  ls::save(dict, "whole_slices.safetensors");
  const std::string want = content_of_file("whole_slices.safetensors");
  struct Case {
    int size;
    std::vector<Piece> (*pieces)(const ls::StateDict& dict, int rank, int size);
  };
  for (const Case& each : {Case{2, slices}, Case{4, slices}, Case{1, two_slices}, Case{2, two_slices}}) {
    const int size = each.size;
    const auto pieces = each.pieces;
    INFO(backend, " ", size);
    with_group(backend, size, [&](const Group& group) {
      par::save_pieces(pieces(dict, group->rank(), size), {}, "slices.safetensors", group.get());
      CHECK(content_of_file("slices.safetensors") == want);
      const ls::InputFile file("slices.safetensors");
      const ls::nn::safetensors::Reader reader(file);
      for (const Piece& piece : pieces(dict, group->rank(), size)) {
        for (const auto& entry : reader.entries()) {
          if (entry.name != piece.name) continue;
          CHECK_MESSAGE(same_bits(reader.read(entry, piece.place), piece.part.reshape({piece.place.numel})),
                        entry.name);
        }
      }
    });
  }
}

inline void check_group_files(const std::string& backend) {
  const ls::StateDict dict = whole_tensors();
  const ls::Metadata metadata = {{"format", "pt"}, {"zone", "last"}};
  ls::save(dict, "one.safetensors", metadata);
  const std::string want = content_of_file("one.safetensors");
  for (const int size : {1, 2, 3, 4}) {
    INFO(backend, " ", size);
    std::ofstream("ranks.safetensors") << "old";
    with_group(backend, size, [&](const Group& group) {
      par::save_pieces(cut(dict, group->rank(), size), metadata, "ranks.safetensors", group.get());
      CHECK(content_of_file("ranks.safetensors") == want);
    });
    CHECK(content_of_file("ranks.safetensors") == want);
    CHECK(files_named("ranks.safetensors") == 1);
  }
}
