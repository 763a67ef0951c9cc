// What a node remembers of the thread that recorded it and backward restores: the replica context. Opaque here; nn
// keeps its ReplicaView in it.
#pragma once

#include "lockstep/tensor/error.h"

namespace lockstep::autograd {

const void* replica_context();  // null by default
void set_replica_context(const void* context);

}  // namespace lockstep::autograd
