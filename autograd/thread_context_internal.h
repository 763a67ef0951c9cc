// The replica context of a thread. A node stores the context of its recording thread, and backward restores it. The
// pointer is opaque here; nn points it to a ReplicaView.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep::autograd {

const void* replica_context();  // null by default
void set_replica_context(const void* context);

}  // namespace lockstep::autograd
