// lockstep-explain mesh: which ranks a device mesh groups together.
#pragma once

#include <string>
#include <vector>

// One axis, for example {"dp", 2}.
struct SeenAxis {
  std::string name;
  int size = 1;
};
using SeenMesh = std::vector<SeenAxis>;

// "pp=2,dp=2,tp=2". Throws lockstep::InvalidArgument for anything else.
SeenMesh parse_mesh(const std::string& text);
// The groups of axis `a`: the ranks that differ in its coordinate alone.
std::vector<std::vector<int>> groups_of(const SeenMesh& mesh, std::size_t a);
std::string mesh_text(const SeenMesh& mesh);
std::string mesh_html(const SeenMesh& mesh);
