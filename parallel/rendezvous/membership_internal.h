// The membership of this process in its job: its rank and size, and the endpoint at which the ranks connect, from
// options and environment.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"

namespace lockstep::parallel {

struct Membership {
  int rank = -1;  // -1: not known yet, as is the size
  int size = -1;
  std::string scheme = {};   // of init_method: env, tcp, file, or the name of a module
  std::string address = {};  // for error messages: "127.0.0.1:29500", or "mpirun job 1234"
  std::string path = {};     // of file://
  bool is_one_host = true;
  UnixStoreOptions local = {};  // on one host: the store's socket, named after the address
  // On several hosts:
  std::string host = {};       // host of rank 0
  int port = 0;                // port on that host
  std::string port_name = {};  // for error messages: "MASTER_PORT 29500 of node7"; empty for a TcpStore
  TcpStoreOptions store = {};  // .job is the same on all ranks; .name distinguishes the stores of a job
};

// Throws InvalidArgument naming the option or variable that is missing or wrong, and NotBuilt if init_method is
// "mpi://" and the module is missing.
Membership find_membership(const RendezvousOptions& options);

// Called by find_membership. Parses init_method; rank and world_size in `options` take precedence.
Membership read_url(const RendezvousOptions& options);
// Reads the variables of torchrun and lockstep-run, mpirun, or srun; rank and world_size in `options` take precedence.
Membership membership_from_environment(const RendezvousOptions& options);
// The first host of SLURM's list: "node03" of "node[03-05,9],gpu1"; empty if the list is empty.
std::string first_host(const std::string& list);
bool is_loopback(const std::string& address);

// Rank 0 serves a store at the endpoint, and all ranks register in it. Throws CommError or CommTimeout naming the ranks
// that are missing, ended, or were started twice.
Rendezvous join_at_endpoint(const RendezvousOptions& options, const Membership& own);
// The same over `store`, which all ranks have.
Rendezvous join_over_store(const RendezvousOptions& options, const Membership& own,
                           const std::shared_ptr<Store>& store);

}  // namespace lockstep::parallel
