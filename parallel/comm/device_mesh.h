/// \file
/// Named axes over the ranks of a process group:
///
///     const DeviceMesh mesh(group, {{"dp", 2}, {"cp", -1}});  // 8 ranks: -1 becomes 4
///     DistributedDataParallel run(model, mesh.flatten({"cp", "dp"}).group());
///     context_parallel(model, mesh["cp"]);
///
/// Ranks are numbered in row-major order: the ranks of the last axis are neighbours. Here rank 6 has the coordinates dp 1
/// and cp 2, and mesh["cp"] is, on this rank, the group of the ranks 4 to 7.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// One axis of a mesh.
struct MeshAxis {
  std::string name;  ///< for example "dp"
  int size = -1;     ///< number of ranks; -1, in one axis: what the other axes leave
};

/// Ranks of a process group, arranged along axes. Each axis, with the other coordinates fixed, is a group of its own.
class DeviceMesh {
 public:
  DeviceMesh() = default;  ///< no mesh: defined() is false
  /// Arranges all ranks of `group`, which all call this, and makes the groups of the axes. Null: this process alone,
  /// with every axis of size 1. Throws InvalidArgument if the product of the sizes is not the number of ranks, or two axes
  /// have the same name.
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes);

  /// The axis of this name through this rank. No communication. Throws InvalidArgument, naming the axes, if there is none.
  DeviceMesh operator[](const std::string& axis) const;
  /// Several axes as one: ranks are numbered with the last of `axes` as the fastest, in the order given here. All ranks
  /// of the mesh must call this. Throws InvalidArgument for an unknown axis, and for one that is named twice.
  DeviceMesh flatten(const std::vector<std::string>& axes) const;

  bool defined() const { return state_ != nullptr; }  ///< false after the default constructor
  int rank() const;                                   ///< of this process in the mesh, or along the axis
  int size() const;                                   ///< number of ranks
  const std::vector<MeshAxis>& axes() const;          ///< with their sizes
  /// The group of the mesh's ranks; null if the mesh is this process alone.
  const std::shared_ptr<ProcessGroup>& group() const;
  std::string to_string() const;  ///< "dp 2 x cp 4"

 private:
  struct State;
  explicit DeviceMesh(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const State& state(const char* op) const;
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::parallel
