// init_method "mpi://": MPI says who this process is. The backend mpi needs nothing else; the others get a store, whose
// address, job and token rank 0 draws and MPI passes to all.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/tcp_socket_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/environment_internal.h"

namespace lockstep::parallel {

namespace {

// What a rank tells the others: rank 0 all of it, the other ranks their backend.
struct Shared {
  char backend[16] = {};
  char token[2 * kTokenBytes + 1] = {};
  char job[17] = {};
  char host[64] = {};
  int port = 0;
};

template <std::size_t N>
void put(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

Shared draw() {
  Shared out;
  const std::string token = random_hex(kTokenBytes), job = random_hex(8), host = address_on_network();
  put(out.token, token);
  put(out.job, job);
  put(out.host, host);
  std::string error;
  const Descriptor free = listen_tcp(resolve(host, 0), error);
  if (!free) throw CommError(fmt::format("init_process_group: rank 0 has no free port at {}: {}", host, error));
  out.port = address_of(free).port();
  return out;
}

// Without this the ranks of the backend mpi, which need no store, would wait for the others until the
// time-out.
void check_same_backend(const std::vector<Shared>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (std::string_view(all[rank].backend) != all[0].backend)
      throw CommError(
          fmt::format("init_process_group: ranks disagree about the backend: rank 0 has {}, rank {} has {}\n"
                      "Give all ranks the same .backend",
                      in_quotes(all[0].backend), rank, in_quotes(all[rank].backend)));
  }
}

}  // namespace

Place place_from_mpi(const RendezvousOptions& options) {
  const BackendModule& mpi = backend_module("mpi");
  Place place;
  mpi.place(&place.rank, &place.size);
  LOCKSTEP_CHECK(
      (options.rank < 0 || options.rank == place.rank) && (options.world_size < 0 || options.world_size == place.size),
      "init_process_group: .rank is {} and .world_size is {}, but MPI says rank {} of {}\n"
      "Leave them out with mpi://, and start the program with mpirun -np",
      options.rank, options.world_size, place.rank, place.size);
  if (place.size == 1) return place;
  Shared own = place.rank == 0 && options.backend != "mpi" ? draw() : Shared();
  put(own.backend, options.backend);
  std::vector<Shared> all(static_cast<std::size_t>(place.size));
  mpi.gather(&own, all.data(), sizeof(own));
  check_same_backend(all);
  if (options.backend == "mpi") return place;
  const Shared& shared = all[0];
  place.is_one_host = environment_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxRanks).value_or(place.size) == place.size;
  place.host = shared.host;
  place.port = shared.port;
  place.port_name = fmt::format("port {} of {}, which was free when MPI's rank 0 chose it", shared.port, shared.host);
  place.token = shared.token;
  place.authenticate = options.authenticate;
  place.job_text = fmt::format("MPI job {}", shared.job);
  place.address = place.is_one_host ? place.job_text : fmt::format("{}:{}", place.host, place.port);
  set_socket(place, options, place.token);
  return place;
}

}  // namespace lockstep::parallel
