// init_method "mpi://": MPI says who this process is. The backend mpi needs nothing else; the others get a store, whose
// address, job and token rank 0 draws and MPI hands to all.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "lockstep/parallel/launcher_internal.h"
#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/modules.h"
#include "lockstep/parallel/rendezvous_internal.h"
#include "lockstep/parallel/tcp_socket_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

// What rank 0 tells the others.
struct Shared {
  char token[2 * kTokenBytes + 1] = {};
  char job[17] = {};
  char host[64] = {};
  int port = 0;
};

Shared draw() {
  Shared out;
  const std::string token = random_hex(kTokenBytes), job = random_hex(8), host = address_on_network();
  std::memcpy(out.token, token.data(), token.size());
  std::memcpy(out.job, job.data(), job.size());
  std::memcpy(out.host, host.data(), std::min(host.size(), sizeof(out.host) - 1));
  constexpr int kFirst = 20000, kSpan = 40000;
  out.port = kFirst + static_cast<int>(std::strtoul(job.substr(0, 4).c_str(), nullptr, 16)) % kSpan;
  return out;
}

}  // namespace

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
  Shared shared = place.rank == 0 ? draw() : Shared();
  mpi.share(&shared, sizeof(shared));
  const char* const local_size = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  place.is_one_host = !local_size || std::atoi(local_size) == place.size;
  place.host = shared.host;
  place.port = shared.port;
  place.token = shared.token;
  place.authenticate = options.authenticate;
  place.job_text = fmt::format("MPI job {}", shared.job);
  place.address = place.is_one_host ? place.job_text : fmt::format("{}:{}", place.host, place.port);
  set_socket(place, options, place.token);
  return place;
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
