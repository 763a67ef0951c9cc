// The backend sim as a module.
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "lockstep/parallel/simulate/hop_group_internal.h"
#include "lockstep/version.h"

namespace lockstep::parallel {
namespace {

std::unique_ptr<Backend> make_sim(const InitOptions& options, const Rendezvous& place) {
  const auto own = options.backend_options.get<SimOptions>();
  LOCKSTEP_CHECK(
      options.reduction != Reduction::kCanonical || own.algorithm == Algorithm::kDirect,
      "init_process_group: algorithm {} does not add in canonical order; take kDirect, or .reduction = kNative",
      name(own.algorithm));
  return std::make_unique<HopGroup>(options, place);
}

constexpr BackendModule kSimModule{.version = LOCKSTEP_VERSION, .make = make_sim};

}  // namespace
}  // namespace lockstep::parallel

extern "C" const lockstep::parallel::BackendModule* lockstep_backend_sim();
const lockstep::parallel::BackendModule* lockstep_backend_sim() { return &lockstep::parallel::kSimModule; }
