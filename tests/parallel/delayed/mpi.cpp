// In place of mpi: see late_messages.h.
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "tests/parallel/delayed/late_messages.h"

extern "C" const ls::parallel::BackendModule* lockstep_backend_mpi();
const ls::parallel::BackendModule* lockstep_backend_mpi() {
  static constexpr ls::parallel::BackendModule kModule{.version = LOCKSTEP_VERSION, .make = late_messages::make<false>};
  return &kModule;
}
