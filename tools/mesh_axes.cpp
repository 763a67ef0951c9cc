#include "tools/mesh_axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "lockstep/base/error.h"

namespace {

using lockstep::parallel::MeshAxis;

constexpr int kMostRanks = 512;  // more would be unreadable

[[noreturn]] void fail(const std::string& text, const std::string& why) {
  throw lockstep::InvalidArgument(
      fmt::format("mesh \"{}\": {}; expected axes and sizes, for example dp=2,cp=2", text.substr(0, 80), why));
}

MeshAxis parse_axis(const std::string& text, const std::string& axis) {
  const std::size_t equal = axis.find('=');
  MeshAxis parsed{.name = axis.substr(0, equal)};
  if (parsed.name.empty()) fail(text, "an axis has no name");
  if (equal == std::string::npos) fail(text, "axis " + parsed.name + " has no size");
  const char* const end = axis.data() + axis.size();
  const auto read = std::from_chars(axis.data() + equal + 1, end, parsed.size);
  if (read.ec != std::errc() || read.ptr != end || parsed.size < 1)
    fail(text, fmt::format("the size of {} is \"{}\"", parsed.name, axis.substr(equal + 1)));
  return parsed;
}

}  // namespace

int ranks_of(const MeshAxes& mesh) {
  int ranks = 1;
  for (const MeshAxis& axis : mesh) ranks *= axis.size;
  return ranks;
}

MeshAxes parse_mesh(const std::string& text) {
  MeshAxes mesh;
  std::istringstream axes(text);
  int ranks = 1;
  for (std::string each; std::getline(axes, each, ',');) {
    each.erase(0, each.find_first_not_of(' '));
    const MeshAxis axis = parse_axis(text, each);
    if (std::ranges::find(mesh, axis.name, &MeshAxis::name) != mesh.end())
      fail(text, "axis " + axis.name + " is named twice");
    if (axis.size > kMostRanks / ranks) fail(text, fmt::format("more than {} ranks", kMostRanks));
    ranks *= axis.size;
    mesh.push_back(axis);
  }
  if (mesh.empty()) fail(text, "there is no axis");
  return mesh;
}
