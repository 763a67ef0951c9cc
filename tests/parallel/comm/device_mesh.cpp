#include "tests/parallel/comm/mesh_cases.h"

TEST_CASE("a mesh of 2 x 2 x 2 ranks, which are processes") { check_mesh("shm"); }
