#include "lockstep/parallel/rendezvous/rendezvous.h"

#include <cerrno>
#include <thread>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

namespace {

// Identifies the kernel and the network of this process, as containers of one host may have several networks. Throws
// without a file descriptor, as the host would otherwise look like another one.
std::string host_id() {
  const std::string id = namespace_id("net");
  if (id.empty() && is_out_of_descriptors(errno))
    throw CommError(fmt::format("init_process_group: cannot tell which host this is: {}", reason(errno)));
  return id;
}

// The first rank on another host than rank 0; 0 if all ranks are on one host.
int first_elsewhere(const Rendezvous& here) {
  const auto key = [](int rank) { return fmt::format("host/{}", rank); };
  const std::shared_ptr<Store> store = FormationWatch::watched(here.watch, here.store);
  const std::jthread answers = formation_answers(here.watch.get());
  try {
    store->set(key(here.rank), host_id());
    const std::string first = store->get(key(0));
    for (int rank = 1; rank < here.size; ++rank) {
      if (store->get(key(rank)) != first) return rank;
    }
    return 0;
  } catch (const CommError& error) {
    here.watch->explain(error);
    throw;
  }
}

// For a backend that needs one host: the ranks of a TCP store may be on several.
void check_same_host(const Rendezvous& here, const std::string& backend) {
  const int rank = first_elsewhere(here);
  if (rank > 0)
    throw CommError(
        fmt::format("init_process_group: backend {} joins processes of one host, and ranks 0 and {} are on "
                    "different ones\nUse .backend = \"gloo\", \"mpi\" or \"ucc\" there",
                    backend, rank));
}

}  // namespace

Rendezvous rendezvous(const RendezvousOptions& options) {
  LOCKSTEP_CHECK(options.timeout.count() > 0, "init_process_group: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  const Membership own = find_membership(options);
  if (own.scheme == options.backend) return {.rank = own.rank, .size = own.size};
  std::shared_ptr<Store> store = options.store;
  if (!store && own.scheme == "file")
    store = std::make_shared<FileStore>(own.path, FileStoreOptions{.world_size = own.size, .timeout = options.timeout});
  if (!store && own.size == 1) return {.rank = 0, .size = 1, .store = std::make_shared<InProcessStore>()};
  Rendezvous result = store ? join_over_store(options, own, store) : join_at_endpoint(options, own);
  result.store->set_timeout(options.timeout);
  const BackendNeeds needs = options.needs ? options.needs(options.backend) : BackendNeeds();
  if (!store && !own.is_one_host && needs.one_host) check_same_host(result, options.backend);
  if (store && needs.network_address)  // a store does not tell the ranks' hosts
    result.address = first_elsewhere(result) > 0 ? address_on_network() : "127.0.0.1";
  return result;
}

}  // namespace lockstep::parallel
