// The steps of a rendezvous: rank, size and endpoint from options and environment, and the registration over a store,
// which rank 0 serves at the endpoint, or all ranks have.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// Rank of this process in its job, and the endpoint where the ranks connect.
struct Place {
  int rank = -1;  // -1: not known yet, as is the size
  int size = -1;
  std::string scheme = {};   // of the init_method: env, tcp, file or mpi
  std::string address = {};  // for messages: "127.0.0.1:29500", or "mpirun job 1234"
  bool is_one_host = true;
  // On one host:
  std::string socket = {};  // name of the abstract Unix socket, derived from the address
  JobId job = {};
  std::string path = {};  // of file://
  // On several hosts:
  std::string host = {};        // host of rank 0
  int port = 0;                 // port on that host
  std::string port_name = {};   // for messages: "MASTER_PORT 29500 of node7"
  std::string job_text = {};    // identifies the job, equal on all its ranks
  std::string store_name = {};  // name of this store among the job's stores
  bool authenticate = true;
  std::string token = {};  // empty: from the environment
};

// Rank, size and endpoint of this process. Throws InvalidArgument naming the option or variable that is missing or
// wrong, NotBuilt if init_method is "mpi://" and the module is missing.
Place find_place(const RendezvousOptions& options);

// The steps of find_place. The parts of init_method; rank and world_size in `options` take precedence.
Place read_url(const RendezvousOptions& options);
// Reads the variables of torchrun and lockstep-run, mpirun, or srun; rank and world_size in `options` take precedence.
Place place_from_environment(const RendezvousOptions& options);
// The first host of SLURM's list: "node03" of "node[03-05,9],gpu1"; empty if the list is empty.
std::string first_host(const std::string& list);
bool is_loopback(const std::string& address);

// --- the registration -----------------------------------------------------------------------------------------------

// Every rank enters itself in the store, and all ranks receive one outcome: all have arrived, or an error.
class Registration {
 public:
  // `store` and its `watch` are for this registration alone; `where` begins its messages.
  Registration(Store& store, FormationWatch& watch, int rank, int size, std::string backend, std::string where);

  // Whether the registration ended before this rank entered: it belongs to an earlier group, or this rank was started
  // twice.
  bool is_over();
  // Enters this rank. Throws CommError if another process has entered as this rank, or another rank has a different
  // world size or backend. The error names both, and the ranks that wait receive the same error.
  void enter();
  // Returns when all ranks have arrived. Throws CommTimeout naming the missing ranks, or the CommError that ended the
  // registration. `shown` is the time limit in the message; part of it may have passed before the call.
  void wait_for_all(std::chrono::milliseconds timeout, std::chrono::milliseconds shown);

  static std::string key_of(int rank) { return "rank/" + std::to_string(rank); }
  static std::string waits_key_of(int rank) { return "waits/" + std::to_string(rank); }

  // After is_over() has returned true:
  const std::string& error() const { return error_; }
  bool has_entered() const { return !holder_.empty(); }
  bool is_by_this_process() const;  // whether this process has entered
  bool has_failed() const { return outcome_ != kAllHere; }
  bool is_of_others() const { return is_of_others_; }  // its ranks had a different world size or backend

 private:
  static constexpr const char* kAllHere = "all here";
  std::string compare_terms(bool enters);
  std::string value_of(const std::string& key);
  std::vector<int> entered();
  std::string settle_late(std::chrono::milliseconds shown);
  std::string describe_missing(std::chrono::milliseconds shown);
  std::string describe_twice() const;

  Store& store_;
  FormationWatch& watch_;
  int rank_, size_, most_ranks_;  // most_ranks_: the largest world size among the ranks
  bool is_of_others_ = false;
  std::string backend_, where_, mark_, holder_, outcome_, error_;
};

// --- at an endpoint -------------------------------------------------------------------------------------------------

// Rank 0 serves a store at the endpoint, and all ranks run a registration over the store. Throws CommError or
// CommTimeout naming the ranks that are missing, ended, or were started twice.
Rendezvous meet_at_endpoint(const RendezvousOptions& options, const Place& place);

}  // namespace lockstep::parallel
