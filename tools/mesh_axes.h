// The axes of a mesh on a command line.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/device_mesh.h"

using MeshAxes = std::vector<lockstep::parallel::MeshAxis>;

// "pp=2,dp=2,tp=2". Throws lockstep::InvalidArgument for anything else, and for more than 512 ranks.
MeshAxes parse_mesh(const std::string& text);
int ranks_of(const MeshAxes& mesh);  // the product of the sizes
