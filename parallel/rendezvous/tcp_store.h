/// \file
/// TcpStore: the store of ranks that reach each other over TCP. One of them, usually rank 0, holds the table.
///
/// The server listens on the address of `host` alone. Connections are TLS 1.3 with the job's token as pre-shared key: only
/// processes that have the token, and mean this store of this job, can connect; what they send can neither be read nor changed on
/// its way. Any number of threads may use one store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct TcpStoreOptions {
  bool is_server = false;    ///< holds the table as well; it ends with this store
  std::string token = {};    ///< of the job, 128 random bits or more; empty: the variable LOCKSTEP_JOB_TOKEN
  bool authenticate = true;  ///< false: plain TCP; every process that reaches the port may join, with a warning
  std::string job = {};      ///< run id, restart count and world size, say: jobs that differ here never mix
  std::string name = {};     ///< of this store among the job's stores, which never mix either
  std::chrono::milliseconds timeout =
      std::chrono::seconds(60);  ///< of looking up `host`, of connecting, of calls that wait
};

/// A store at a port of one host, as the head of this file says.
class TcpStore final : public Store {
 public:
  /// With .is_server and port 0 a free port is taken. A client waits for its server; all addresses of `host` are tried.
  /// Throws InvalidArgument without a token to authenticate with, CommError where the server cannot listen or what
  /// answers is not of this job, CommTimeout where nobody answers.
  TcpStore(const std::string& host, int port, const TcpStoreOptions& options = {});
  ~TcpStore() override;

  int port() const;  ///< of the server

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::shared_ptr<Store> client_;
  int port_ = 0;
};

}  // namespace lockstep::parallel
