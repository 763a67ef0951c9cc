// The two halves of a rendezvous: rank, size and endpoint from options and environment, and the registration over a
// store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// Rank of this process in its job, and the endpoint where the ranks connect.
struct Place {
  int rank = 0;
  int size = 1;
  std::string backend = {};
  std::string address = {};  // for messages: "127.0.0.1:29500", or "mpirun job 1234"
  bool is_one_host = true;
  // On one host:
  std::string socket = {};  // name of the abstract Unix socket, derived from the address
  JobId job = {};
  // On several hosts:
  std::string host = {};        // host of rank 0
  int port = 0;                 // port on that host
  std::string port_name = {};   // for messages: "MASTER_PORT 29500 of node7"
  std::string job_text = {};    // identifies the job, equal on all its ranks
  std::string store_name = {};  // name of this store among the job's stores
  bool authenticate = true;
  std::string token = {};  // empty: from the environment
};

// Reads the variables of torchrun and lockstep-run, mpirun, or srun; rank and world_size in `options` take precedence.
// Throws InvalidArgument naming the variable that is missing or wrong.
Place place_from_environment(const RendezvousOptions& options);
void check_place(int rank, int size);
// Asks MPI, which this call initialises. The address is empty if the backend needs no store. Throws NotBuilt if the
// module is missing.
Place place_from_mpi(const RendezvousOptions& options);
// Sets `place.socket` and `place.job` from `place.address` and `job`.
void set_socket(Place& place, const RendezvousOptions& options, const std::string& job);
bool is_loopback(const std::string& address);

// The parts of an init_method. rank and world_size are taken from `options` if given there.
struct Url {
  std::string scheme = {};  // env, tcp, file or mpi
  std::string host = {};
  int port = 0;
  std::string path = {};
  int rank = -1, world_size = -1;
};
// Throws InvalidArgument naming the part that cannot be understood.
Url read_url(const RendezvousOptions& options);
Place place_from_url(const RendezvousOptions& options, const Url& url);

// The first host of SLURM's list: "node03" of "node[03-05,9],gpu1"; empty if the list is empty.
std::string first_host(const std::string& list);

// First character of an outcome that is an error; the error text follows.
inline constexpr char kLost = 'L', kLate = 'T';
[[noreturn]] void raise_outcome(const std::string& outcome);

// "rank 1", "ranks 1, 2 and 5".
std::string list_ranks(const std::vector<int>& ranks);

// The registration: every rank enters itself in the store, and all ranks receive one outcome: all have arrived, or an
// error.
class Registration {
 public:
  // `store` is used for this registration alone; `where` begins its messages.
  Registration(Store& store, int rank, int size, std::string backend, std::string where);

  // Whether the registration ended before this rank entered: it belongs to an earlier group, or this rank was started
  // twice.
  bool is_over();
  // Whether a process has entered as this rank already.
  bool is_taken() { return store_.check({key_of(rank_)}); }
  // Returns false if another process has entered as this rank, or another rank has a different world size or backend;
  // error() names both. The ranks that wait receive the same error.
  bool enter();
  // Marks this rank, which has entered, as arrived.
  void arrive();
  // Returns when all ranks have arrived. Throws CommTimeout naming the missing ranks, or the CommError that ended the
  // registration. `shown` is the time limit in the message; part of it may have passed before the call.
  void wait_for_all(std::chrono::milliseconds timeout, std::chrono::milliseconds shown);

  static std::string key_of(int rank) { return "rank/" + std::to_string(rank); }
  // The ranks that have entered so far, including ranks beyond this rank's world size.
  std::vector<int> entered();
  const std::string& error() const { return error_; }
  // After the end of the registration: whether this rank has an entry, and whether this process made the entry.
  bool has_entered() const { return !holder_.empty(); }
  bool is_by_this_process() const;
  bool has_failed() const { return outcome_ != kAllHere; }  // after the end of the registration
  // After a successful end: whether its ranks had a different world size or backend.
  bool is_of_others() const { return is_of_others_; }

  // Key and value of the last-will entry that ends the registration if this rank dies.
  static constexpr const char* kOutcome = "outcome";
  std::string will() const;

 private:
  static constexpr const char* kAllHere = "all here";
  // World size and backend, on which all ranks must agree, and the rank that recorded them.
  struct Terms {
    int rank = 0, size = 0;
    std::string backend, mark;
    bool agrees(const Terms& other) const { return size == other.size && backend == other.backend; }
  };
  Terms own_terms() const { return {rank_, size_, backend_, mark_}; }
  std::string encode(const Terms& terms) const;
  Terms decode(const std::string& text) const;
  std::string describe_disagreement(const Terms& first) const;
  std::string value_of(const std::string& key);
  std::string settle_late(std::chrono::milliseconds shown);
  std::string describe_missing(std::chrono::milliseconds shown);
  std::string describe_twice() const;

  Store& store_;
  int rank_, size_, most_ranks_;  // most_ranks_: the largest world size among the ranks
  bool is_of_others_ = false;
  std::string backend_, where_, mark_, holder_, outcome_, error_;
};

// --- the endpoint of the store --------------------------------------------------------------------------------------

class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;

  // For rank 0: serves a store at the endpoint and joins it. Null if another process has the address. Throws
  // UnknownHost if a retry may succeed, CommError if the address cannot be used at all.
  virtual std::shared_ptr<Store> host() = 0;

  // The reason why host() returned null, if known.
  virtual std::string taken() const { return {}; }

  // Tries once to join the store at the endpoint. Throws as host() does.
  struct Joined {
    std::shared_ptr<Store> store = nullptr;
    bool is_foreign = false;   // the endpoint belongs to another job, which may be ending
    std::string failure = {};  // the reason, if `store` is null
  };
  virtual Joined join(Deadline deadline) = 0;

  // This host's address on the network to the other ranks.
  virtual std::string own_address() = 0;
};

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place);
std::unique_ptr<MeetingPlace> make_tcp_place(const Place& place);

// Runs the rendezvous at `place` within `timeout`. Throws CommError or CommTimeout naming the ranks that are missing
// or were started twice.
Rendezvous meet(const Place& place, std::chrono::milliseconds timeout);

}  // namespace lockstep::parallel
