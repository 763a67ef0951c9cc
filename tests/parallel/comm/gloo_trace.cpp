// The trace of sharded training where a gather is a collective.
#include "tests/parallel/comm/trace.h"
#include "tests/support/groups.h"

TEST_CASE("gloo: units' gathers and reduce-scatters are collectives with the units' names") {
  with_group("gloo", 2, [](const Group& group) { check_units(group, TraceKind::kCollective, "all_gather "); });
}
