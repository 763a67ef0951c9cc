/// \file
/// TcpStore: a store of ranks that connect over TCP. One rank, usually rank 0, holds the table.
///
/// The server listens on the address of `host` alone. Connections are TLS 1.3 with the job's token as pre-shared key:
/// only processes that have the token, and name this store of this job, can connect. On the network the data can
/// neither be read nor changed. Any number of threads may use one store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct TcpStoreOptions {
  bool is_server = false;    ///< true: this process holds the table, until this object is destroyed
  std::string token = {};    ///< the job's token, 128 random bits or more; empty: from LOCKSTEP_JOB_TOKEN
  bool authenticate = true;  ///< false: plain TCP; every process that reaches the port may join, with a warning
  std::string job = {};      ///< for example run id, restart count and world size: different jobs never mix
  std::string name = {};     ///< name of this store; different stores of a job never mix
  std::chrono::milliseconds timeout =
      std::chrono::seconds(60);  ///< limit of the look-up of `host`, of connecting, and of calls that wait
};

/// A store at a port of one host; the top of this header describes it.
class TcpStore final : public Store {
 public:
  /// With .is_server and port 0 the system chooses a free port. A client waits for its server; all addresses of `host`
  /// are tried. Throws InvalidArgument without a token to authenticate with, CommError if the server cannot listen or
  /// the endpoint does not belong to this job, CommTimeout if there is no reply.
  TcpStore(const std::string& host, int port, const TcpStoreOptions& options = {});
  ~TcpStore() override;

  int port() const;  ///< the server's port

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::shared_ptr<Store> client_;
  int port_ = 0;
};

}  // namespace lockstep::parallel
