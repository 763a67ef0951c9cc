/// \file
/// The backend sim: ranks are threads of one process, and collectives go message by message, by the algorithm that is
/// chosen. An observer may watch the messages; on a simulated network each rank has a clock, which shows what they take.
///
///     auto simulation = std::make_shared<parallel::Simulation>(parallel::find_link("10GbE"));  // one for each rank
///     auto group = parallel::init_process_group(
///         {.backend = "sim", ..., .backend_options = parallel::SimOptions{.simulation = simulation}});
///
/// What this header declares is in liblockstep_sim (CMake: lockstep::simulate), which the library opens for the backend.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/parallel/simulate/hops.h"
#include "lockstep/parallel/simulate/scaling.h"
#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::parallel {

/// Options of the backend sim. All ranks give the same algorithm, and either all of them give a simulation or none does.
struct SimOptions {
  static constexpr std::string_view kBackend = "sim";  ///< whose options these are
  /// How all_reduce moves its data. Algorithms other than kDirect add in orders of their own.
  Algorithm algorithm = Algorithm::kDirect;
  std::shared_ptr<HopObserver> observer = nullptr;   ///< watches the messages of all_reduce; null: nobody
  std::shared_ptr<Simulation> simulation = nullptr;  ///< this rank's link and clock; null: time is not simulated
};

}  // namespace lockstep::parallel
