// In place of gloo: see late_messages.h.
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "tests/parallel/delayed/late_messages.h"

extern "C" const ls::parallel::BackendModule* lockstep_backend_gloo();
const ls::parallel::BackendModule* lockstep_backend_gloo() {
  static constexpr ls::parallel::BackendModule kModule{
      .version = LOCKSTEP_VERSION, .make = late_messages::make<true>, .needs = {.network_address = true}};
  return &kModule;
}
