// The mesh of which another one is an axis. Not installed.
#pragma once

#include <memory>

#include "lockstep/parallel/comm/device_mesh.h"

namespace lockstep::parallel {

// The group of all ranks of the mesh from which operator[] and flatten have made `mesh`; mesh.group() if they have not.
std::shared_ptr<ProcessGroup> whole_group(const DeviceMesh& mesh);

}  // namespace lockstep::parallel
