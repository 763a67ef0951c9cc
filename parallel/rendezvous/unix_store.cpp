#include "lockstep/parallel/rendezvous/unix_store_internal.h"

#include <utility>

#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

std::unique_ptr<StoreServer> serve_unix(Descriptor listener, const JobId& job) {
  return std::make_unique<StoreServer>(std::move(listener), StoreServerOptions{.job = job, .is_one_host = true});
}

ConnectResult connect_unix(const UnixStoreOptions& options, Deadline deadline) {
  Descriptor socket = connect_abstract(options.socket);
  if (!socket) {
    if (errno != ECONNREFUSED && errno != EAGAIN)
      throw CommError(fmt::format("store: {}: cannot connect: {}", options.address, reason(errno)));
    return {.outcome = errno == EAGAIN ? ConnectOutcome::kBusy : ConnectOutcome::kNobody};
  }
  const Peer server = peer_of(socket);
  ConnectResult out{.outcome = ConnectOutcome::kOtherUser};
  if (is_trusted(server)) out = say_hello(std::make_unique<Stream>(std::move(socket)), options.job, deadline);
  out.server = server;
  return out;
}

std::shared_ptr<StoreClient> make_unix_store(const UnixStoreOptions& options, ConnectResult result) {
  return std::make_shared<StoreClient>(options.address, fmt::format("rank 0 (process {})", result.server.pid),
                                       std::move(result.connection),
                                       [options](Deadline deadline) { return connect_unix(options, deadline); });
}

}  // namespace lockstep::parallel
