// In place of gloo: the backend ucc, so that the suites of training over gloo run over ucc.
#include "lockstep/parallel/rendezvous/modules_internal.h"

extern "C" const lockstep::parallel::BackendModule* lockstep_backend_ucc();
extern "C" const lockstep::parallel::BackendModule* lockstep_backend_gloo();
const lockstep::parallel::BackendModule* lockstep_backend_gloo() { return lockstep_backend_ucc(); }
