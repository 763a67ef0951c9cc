#include "tests/parallel/comm/mesh_cases.h"

TEST_CASE("a mesh over gloo") { check_mesh("gloo"); }
