/// \file
/// Named axes over the ranks of a process group:
///
///     const DeviceMesh mesh(group, {{"dp", 2}, {"tp", -1}});  // 8 ranks: -1 becomes 4
///     DistributedDataParallel run(model, mesh["dp"].group());
///
/// Ranks are numbered in row-major order: the coordinate of the last axis varies fastest. Here rank 6 has the
/// coordinates dp 1 and tp 2; on this rank mesh["tp"] has the ranks 4 to 7, and mesh["dp"] the ranks 2 and 6. Put the
/// axis with most communication last, so that its ranks are on one host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// One axis of a mesh.
struct MeshAxis {
  std::string name;  ///< for example "dp"
  int size = -1;     ///< number of ranks; -1, in one axis at most: follows from the size of the group
};

/// Ranks of a process group, arranged along axes. For each axis, the ranks that differ in this coordinate alone form a
/// process group. A mesh is a handle; its groups live as long as something refers to them.
class DeviceMesh {
 public:
  DeviceMesh() = default;  ///< no mesh: defined() is false
  /// Arranges the ranks of `group` along the axes and makes a process group for each axis. Collective: all ranks of
  /// `group` must call it. A null group stands for this process alone, with every axis of size 1. Throws
  /// InvalidArgument if the product of the sizes is not the number of ranks, or if two axes have the same name;
  /// CommError if ranks have different axes.
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes);

  /// The mesh of this axis alone through this rank, without communication. Throws InvalidArgument, naming the axes, if
  /// there is no such axis.
  DeviceMesh operator[](const std::string& axis) const;
  /// Merges several axes into one, named "cp_dp", whose ranks are numbered with the last of `axes` as the fastest, in
  /// the order given here. Collective. Throws InvalidArgument for an unknown axis, and for one that is named twice.
  DeviceMesh flatten(const std::vector<std::string>& axes) const;

  bool defined() const { return state_ != nullptr; }  ///< false after the default constructor
  int rank() const;                                   ///< this process's rank in group(); 0 if that is null
  int size() const;                                   ///< number of ranks
  std::vector<MeshAxis> axes() const;                 ///< with their sizes
  /// The group of the mesh's ranks; null if the mesh is this process alone.
  std::shared_ptr<ProcessGroup> group() const;
  std::string to_string() const;  ///< "dp 2 x cp 4"

 private:
  friend std::shared_ptr<ProcessGroup> whole_group(const DeviceMesh& mesh);  // device_mesh_internal.h
  struct State;
  explicit DeviceMesh(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const State& state(const char* op) const;
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::parallel
