/// \file
/// StateDict: the tensors of a module, an optimizer or a file, by name, in order.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// An ordered map from name to tensor. A copy shares the tensors' storage.
class StateDict {
 public:
  using Entry = std::pair<std::string, Tensor>;  ///< name and tensor
  StateDict() = default;
  StateDict(std::initializer_list<Entry> entries);

  /// The tensor of that name. If there is none, throws InvalidArgument, naming the most similar entry.
  const Tensor& at(const std::string& name) const;
  /// Whether there is an entry of that name.
  bool contains(const std::string& name) const { return index_.contains(name); }
  std::size_t size() const { return entries_.size(); }  ///< number of entries
  bool empty() const { return entries_.empty(); }       ///< no entries
  /// Appends an entry. Throws InvalidArgument if the name exists.
  void insert(std::string name, Tensor tensor);

  /// A copy with tensors of its own: state_dict().clone() keeps the values of now while training goes on.
  StateDict clone() const;

  /// In order of insertion: for (const auto& [name, tensor] : dict)
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }  ///< past the last entry

 private:
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> index_;  // name to position in entries_
};

}  // namespace lockstep
