/// \file
/// The backend sim: ranks are threads of one process, and all_reduce sends the messages of the chosen algorithm. An
/// observer can inspect the messages. On a simulated network each rank has a clock, which shows the predicted time.
///
///     auto simulation = std::make_shared<parallel::Simulation>(parallel::find_link("10GbE"));  // one for each rank
///     auto group = parallel::init_process_group(
///         {.backend = "sim", ..., .backend_options = parallel::SimOptions{.simulation = simulation}});
///
/// The functions declared here are in liblockstep_sim (CMake: lockstep::simulate), which the library loads when the
/// backend is first used.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/parallel/simulate/hops.h"
#include "lockstep/parallel/simulate/scaling.h"
#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::parallel {

/// Options of the backend sim. All ranks pass the same algorithm, and either all or none pass a simulation.
struct SimOptions {
  static constexpr std::string_view kBackend = "sim";  ///< name of the backend
  /// Algorithm of all_reduce, which fixes the order of additions; kDirect adds in canonical order.
  Algorithm algorithm = Algorithm::kDirect;
  std::shared_ptr<HopObserver> observer = nullptr;   ///< observes the messages of all_reduce; may be null
  std::shared_ptr<Simulation> simulation = nullptr;  ///< this rank's link and clock; null: none
};

}  // namespace lockstep::parallel
