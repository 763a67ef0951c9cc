// init_method "mpi://": MPI says who this process is. The backend mpi needs nothing else; the others get a store, whose
// address and job rank 0 draws and MPI hands to all.
#include <sys/random.h>
#include <unistd.h>

#include "lockstep/parallel/modules.h"
#include "lockstep/parallel/rendezvous_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

Place place_from_mpi(const InitOptions& options) {
  const BackendModule& mpi = backend_module("mpi");
  Place place;
  mpi.place(&place.rank, &place.size);
  LOCKSTEP_CHECK(
      (options.rank < 0 || options.rank == place.rank) && (options.world_size < 0 || options.world_size == place.size),
      "init_process_group: .rank is {} and .world_size is {}, but MPI says rank {} of {}\n"
      "Leave them out with mpi://, and start the program with mpirun -np",
      options.rank, options.world_size, place.rank, place.size);
  if (place.size == 1 || options.backend == "mpi") return place;
  std::uint64_t drawn[3] = {};
  if (getrandom(drawn, sizeof(drawn), 0) != sizeof(drawn)) throw CommError("init_process_group: no random numbers");
  mpi.share(drawn, sizeof(drawn));
  place.address = fmt::format("MPI job {:016x}", drawn[2]);
  place.socket = fmt::format("lockstep-{}-{:016x}", ::geteuid(), drawn[2]);
  place.job = {drawn[0], drawn[1]};
  return place;
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
