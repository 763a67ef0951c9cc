#include "lockstep/parallel/comm/device_mesh_internal.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

std::string text_of(const std::vector<MeshAxis>& axes, const char* separator) {
  std::string text;
  for (const MeshAxis& axis : axes) text += fmt::format("{}{} {}", text.empty() ? "" : separator, axis.name, axis.size);
  return text;
}

// Replaces -1, and checks that the axes have as many ranks as the group.
void set_sizes(std::vector<MeshAxis>& axes, const ProcessGroup* group) {
  LOCKSTEP_CHECK(!axes.empty(), "DeviceMesh: there are no axes; name one at least: {{{{\"dp\", -1}}}}");
  const int ranks = group ? group->size() : 1;
  std::int64_t others = 1;
  MeshAxis* open = nullptr;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    MeshAxis& axis = axes[i];
    LOCKSTEP_CHECK(!axis.name.empty(), "DeviceMesh: axis {} has no name", i);
    LOCKSTEP_CHECK(std::ranges::count(axes, axis.name, &MeshAxis::name) == 1, "DeviceMesh: two axes have the name {}",
                   axis.name);
    LOCKSTEP_CHECK(axis.size >= 1 || axis.size == -1, "DeviceMesh: axis {} has size {}, expected 1 or more, or -1",
                   axis.name, axis.size);
    LOCKSTEP_CHECK(axis.size > 0 || !open, "DeviceMesh: axes {} and {} have size -1, expected one at most",
                   open ? open->name : "", axis.name);
    if (axis.size < 0) open = &axis;
    others = std::min<std::int64_t>(others * std::max(axis.size, 1), 1 << 30);
  }
  if (open && ranks % others == 0) {
    open->size = static_cast<int>(ranks / others);
    return;
  }
  const std::string has = group ? fmt::format("the group has {}", ranks) : "there is no group, which is one rank";
  LOCKSTEP_CHECK(!open, "DeviceMesh: axes {}: the sizes without {} need a multiple of {} ranks, {}",
                 text_of(axes, ", "), open->name, others, has);
  LOCKSTEP_CHECK(others == ranks, "DeviceMesh: axes {} need {} ranks, {}", text_of(axes, ", "), others, has);
}

}  // namespace

struct DeviceMesh::State {
  std::vector<MeshAxis> axes;
  std::shared_ptr<ProcessGroup> group;  // null: this process alone
  std::shared_ptr<ProcessGroup> whole;  // of the mesh of which this one is an axis, or `group`
  std::vector<DeviceMesh> of_axes;      // by axis; empty in a mesh of one axis, which is its own

  int rank() const { return group ? group->rank() : 0; }
  // The position in `axes`. Throws InvalidArgument, naming `op`.
  std::size_t find(const std::string& name, const std::string& op) const;
  // This rank's coordinate along axis `a`.
  int coordinate(std::size_t a) const;
  // Makes the group of the ranks whose coordinates differ from this rank's in `chosen` only. Collective.
  std::shared_ptr<ProcessGroup> split(const std::vector<std::size_t>& chosen) const;
};

std::size_t DeviceMesh::State::find(const std::string& name, const std::string& op) const {
  const auto found = std::ranges::find(axes, name, &MeshAxis::name);
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes) names.push_back(axis.name);
  LOCKSTEP_CHECK(found != axes.end(), "{}: there is no axis {}; there {} {}", op, name, axes.size() == 1 ? "is" : "are",
                 fmt::join(names, ", "));
  return static_cast<std::size_t>(found - axes.begin());
}

int DeviceMesh::State::coordinate(std::size_t a) const {
  int inner = 1;
  for (std::size_t i = a + 1; i < axes.size(); ++i) inner *= axes[i].size;
  return rank() / inner % axes[a].size;
}

std::shared_ptr<ProcessGroup> DeviceMesh::State::split(const std::vector<std::size_t>& chosen) const {
  if (!group) return nullptr;
  int color = 0, key = 0;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (std::ranges::find(chosen, a) == chosen.end()) color = color * axes[a].size + coordinate(a);
  }
  for (const std::size_t a : chosen) key = key * axes[a].size + coordinate(a);
  return group->split(color, key);
}

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes) {
  set_sizes(axes, group.get());
  if (group) group->barrier({.name = text_of(axes, ",")});  // fails on all ranks if the names differ
  auto mesh = std::make_shared<State>(State{.axes = std::move(axes), .group = group, .whole = group, .of_axes = {}});
  for (std::size_t a = 0; a < mesh->axes.size() && mesh->axes.size() > 1; ++a)
    mesh->of_axes.push_back(DeviceMesh(std::make_shared<const State>(
        State{.axes = {mesh->axes[a]}, .group = mesh->split({a}), .whole = group, .of_axes = {}})));
  state_ = std::move(mesh);
}

const DeviceMesh::State& DeviceMesh::state(const char* op) const {
  LOCKSTEP_CHECK(state_, "DeviceMesh: {} of an undefined mesh; construct it with a group and axes", op);
  return *state_;
}

DeviceMesh DeviceMesh::operator[](const std::string& axis) const {
  const State& own = state("operator[]");
  const std::size_t a = own.find(axis, fmt::format("mesh[\"{}\"]", axis));
  return own.of_axes.empty() ? *this : own.of_axes[a];
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& names) const {
  const State& own = state("flatten");
  LOCKSTEP_CHECK(!names.empty(), "DeviceMesh: flatten of no axes; name one at least");
  std::vector<std::size_t> chosen;
  MeshAxis flat{.name = fmt::format("{}", fmt::join(names, "_")), .size = 1};
  for (const std::string& name : names) {
    const std::size_t a = own.find(name, "DeviceMesh: flatten");
    LOCKSTEP_CHECK(std::ranges::find(chosen, a) == chosen.end(), "DeviceMesh: flatten: axis {} is named twice", name);
    chosen.push_back(a);
    flat.size *= own.axes[a].size;
  }
  return DeviceMesh(std::make_shared<const State>(
      State{.axes = {std::move(flat)}, .group = own.split(chosen), .whole = own.whole, .of_axes = {}}));
}

int DeviceMesh::rank() const { return state("rank").rank(); }
int DeviceMesh::size() const {
  const State& own = state("size");
  return own.group ? own.group->size() : 1;
}
std::vector<MeshAxis> DeviceMesh::axes() const { return state("axes").axes; }
std::shared_ptr<ProcessGroup> DeviceMesh::group() const { return state("group").group; }
std::shared_ptr<ProcessGroup> whole_group(const DeviceMesh& mesh) { return mesh.state("group").whole; }
std::string DeviceMesh::to_string() const { return text_of(state("to_string").axes, " x "); }

}  // namespace lockstep::parallel
