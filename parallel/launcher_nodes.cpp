#include "lockstep/parallel/launcher_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

class NodeLink::State {};

NodeLink::NodeLink(const LaunchOptions&, RunIdentity&) {
  throw NotBuilt("launch: several hosts are not in this version\nStart all ranks on one");
}
NodeLink::~NodeLink() = default;
Placement NodeLink::meet(int) { return {}; }
int NodeLink::failed_elsewhere() const { return -1; }
void NodeLink::end(LaunchResult&) {}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
