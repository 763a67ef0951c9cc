// lockstep-explain mesh: which ranks a device mesh groups together.
#pragma once

#include <string>
#include <vector>

#include "tools/mesh_axes.h"

// The groups of axis `a`: the ranks that differ in its coordinate alone.
std::vector<std::vector<int>> groups_of(const MeshAxes& mesh, std::size_t a);
std::string mesh_text(const MeshAxes& mesh);
std::string mesh_html(const MeshAxes& mesh);
