#include "lockstep/parallel/rendezvous/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/file_internal.h"

namespace lockstep::parallel {

namespace {

// --- over a store of the caller -----------------------------------------------------------------------------------

// Groups of one name on one store are numbered: a registration that has ended and has this rank's entry, or
// other terms, belongs to an earlier group. Every rank enters every registration once, a failed one as well
// (and receives its error), so all ranks agree on the next number.
Rendezvous meet_on_store(const RendezvousOptions& options) {
  LOCKSTEP_CHECK(options.rank >= 0 && options.world_size >= 0,
                 "init_process_group: with .store, .rank and .world_size must be given, too (they are {} and {})",
                 options.rank, options.world_size);
  check_place(options.rank, options.world_size);
  const std::string where =
      options.group_name.empty() ? "rendezvous" : "rendezvous of " + in_quotes(options.group_name);
  for (int number = 0;; ++number) {
    const std::string prefix = fmt::format("group/{}/{}/", options.group_name, number);
    const auto calls = std::make_shared<PrefixStore>(prefix + "rendezvous/", options.store);
    Registration call(*calls, options.rank, options.world_size, options.backend, where);
    if (call.is_over() && (call.has_entered() || call.is_of_others())) continue;
    std::vector<std::string> keys = FormationWatch::keys_of(options.rank);
    keys.push_back(Registration::kOutcome);
    auto will = call.is_taken() ? nullptr : calls->leave_last_will(keys, call.will());
    if (!call.enter()) throw CommError(call.error());
    const auto watch = std::make_shared<FormationWatch>(calls, std::move(will), options.rank, options.world_size, true);
    call.arrive();
    try {
      call.wait_for_all(options.timeout, options.timeout);
    } catch (const CommTimeout&) {
      throw;
    } catch (const CommError& error) {
      watch->pass_on(error);
      throw;
    }
    return {.rank = options.rank,
            .size = options.world_size,
            .store = std::make_shared<PrefixStore>(prefix, options.store),
            .watch = watch};
  }
}

// --- file:///path ---------------------------------------------------------------------------------------------------

Rendezvous meet_in_file(const RendezvousOptions& options, const Url& url) {
  RendezvousOptions with_store = options;
  with_store.rank = url.rank;
  with_store.world_size = url.world_size;
  LOCKSTEP_CHECK(url.rank >= 0 && url.world_size >= 0,
                 "init_process_group: {} needs .rank and .world_size (or ?rank=0&world_size=2 after the path)",
                 in_quotes(options.init_method));
  check_place(url.rank, url.world_size);
  with_store.store =
      std::make_shared<FileStore>(url.path, FileStoreOptions{.world_size = url.world_size, .timeout = options.timeout});
  return meet_on_store(with_store);
}

// --- checks over the store ------------------------------------------------------------------------------------------

// Identifies the kernel and the network of this process, as containers of one host may have several networks. Throws
// without a file descriptor, as the host would otherwise look like another one.
std::string host_id() {
  const std::string boot = boot_id();
  if (boot.empty() && is_out_of_descriptors(errno))
    throw CommError(fmt::format("init_process_group: cannot tell which host this is: {}", reason(errno)));
  char net[64] = {};
  const ssize_t size = ::readlink("/proc/self/ns/net", net, sizeof(net));
  return boot + " " + std::string(net, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
}

// The first rank on another host than rank 0; 0 if all ranks are on one host.
int first_elsewhere(const Rendezvous& here) {
  const auto key = [](int rank) { return fmt::format("host/{}", rank); };
  const std::shared_ptr<Store> store = FormationWatch::watched(here.watch, here.store);
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

// Backend shm needs all ranks on one host, but the ranks of a TCP store may be on several.
void check_same_host(const Rendezvous& here) {
  const int rank = first_elsewhere(here);
  if (rank > 0)
    throw CommError(
        fmt::format("init_process_group: backend shm joins processes of one host, and ranks 0 and {} are on "
                    "different ones\nUse .backend = \"gloo\" or \"mpi\" there",
                    rank));
}

Place find_place(const RendezvousOptions& options, const Url& url) {
  if (url.scheme == "mpi") return place_from_mpi(options);
  if (url.scheme == "tcp") return place_from_url(options, url);
  RendezvousOptions with_url = options;
  with_url.rank = url.rank;
  with_url.world_size = url.world_size;
  return place_from_environment(with_url);
}

Place place_of(const RendezvousOptions& options, const Url& url) {
  Place place = find_place(options, url);
  place.backend = options.backend;
  return place;
}

Rendezvous meet_at_place(const RendezvousOptions& options, const Place& place) {
  if (options.init_method == "mpi://" && options.backend == "mpi") return {.rank = place.rank, .size = place.size};
  if (place.size == 1) return {.rank = 0, .size = 1, .store = std::make_shared<InProcessStore>()};
  Rendezvous result = meet(place, options.timeout);
  result.store->set_timeout(options.timeout);
  if (!place.is_one_host && options.backend == "shm") check_same_host(result);
  return result;
}

}  // namespace

Rendezvous rendezvous(const RendezvousOptions& options) {
  LOCKSTEP_CHECK(options.timeout.count() > 0, "init_process_group: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  Rendezvous result;
  bool is_by_store = true;  // a store does not tell the ranks' hosts
  if (options.store) {
    result = meet_on_store(options);
  } else {
    const Url url = read_url(options);
    is_by_store = url.scheme == "file";
    result = is_by_store ? meet_in_file(options, url) : meet_at_place(options, place_of(options, url));
  }
  if (result.store) result.store->set_timeout(options.timeout);
  if (is_by_store && options.backend == "gloo" && first_elsewhere(result) > 0) result.address = address_on_network();
  return result;
}

}  // namespace lockstep::parallel
