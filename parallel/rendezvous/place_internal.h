// The two halves of a rendezvous: what options and environment say, and the registration over a store.
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

// This process's place in its job.
struct Place {
  int rank = 0;
  int size = 1;
  std::string backend = {};
  std::string address = {};  // for messages: "127.0.0.1:29500", or "mpirun job 1234"
  bool is_one_host = true;
  // On one host:
  std::string socket = {};  // the abstract Unix socket that follows from the address
  JobId job = {};
  // On several:
  std::string host = {};        // rank 0's
  int port = 0;                 // there
  std::string port_name = {};   // for messages: "MASTER_PORT 29500 of node7"
  std::string job_text = {};    // what all ranks of the job have in common
  std::string store_name = {};  // of the store among those of the job
  bool authenticate = true;
  std::string token = {};  // empty: the environment's
};

// By the variables of torchrun and lockstep-run, mpirun, or srun; rank and world_size in `options` come first. Throws
// InvalidArgument naming what is missing or does not fit.
Place place_from_environment(const RendezvousOptions& options);
void check_place(int rank, int size);
// By MPI, which is initialised for it. No address where the backend needs no store. Throws NotBuilt without the module.
Place place_from_mpi(const RendezvousOptions& options);
// Sets `place.socket` and `place.job` from its address and what identifies the job.
void set_socket(Place& place, const RendezvousOptions& options, const std::string& job);
bool is_loopback(const std::string& address);

// What an init_method other than env:// says; rank and world_size are from `options` where they are given there.
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

// The first host of SLURM's list: "node03" of "node[03-05,9],gpu1"; empty where there is none.
std::string first_host(const std::string& list);

// How an outcome that is an error begins; what follows is its text.
inline constexpr char kLost = 'L', kLate = 'T';
[[noreturn]] void raise_outcome(const std::string& outcome);

// "rank 1", "ranks 1, 2 and 5".
std::string list_ranks(const std::vector<int>& ranks);

// The registration: every rank enters itself, and all learn together whether all are there or why not.
class Registration {
 public:
  // `store` for this registration alone; `where` is for messages.
  Registration(Store& store, int rank, int size, std::string backend, std::string where);

  // Whether it ended before this rank came: it is the call of an earlier group, or rank `rank` was started twice.
  bool is_over();
  // Whether a process has entered as this rank already.
  bool is_taken() { return store_.check({key_of(rank_)}); }
  // False: another process is this rank, or another rank has another number of ranks or another backend;
  // error() names both. The ranks that wait receive the same error.
  bool enter();
  // Says that this rank, which has entered, is there now.
  void arrive();
  // Returns when all ranks have arrived. Throws CommTimeout naming those that have not by then, or the CommError that
  // ended the call. `shown` is the time for the message, of which some may have passed before.
  void wait_for_all(std::chrono::milliseconds timeout, std::chrono::milliseconds shown);

  static std::string key_of(int rank) { return "rank/" + std::to_string(rank); }
  // The ranks that have entered so far, those beyond this rank's world size included.
  std::vector<int> entered();
  const std::string& error() const { return error_; }
  // Once it is over: whether there is an entry for this rank, and whether it is of this process.
  bool has_entered() const { return !holder_.empty(); }
  bool is_by_this_process() const;
  bool has_failed() const { return outcome_ != kAllHere; }  // once it is over
  // Once it is over and has not failed: whether its ranks had another number of ranks or another backend.
  bool is_of_others() const { return is_of_others_; }

  // Key and value of a will: what ends the call if this rank dies.
  static constexpr const char* kOutcome = "outcome";
  std::string will() const;

 private:
  static constexpr const char* kAllHere = "all here";
  // What all ranks have to agree on, and the rank that says so.
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
  int rank_, size_, most_ranks_;  // most_ranks_: the largest world size that a rank has
  bool is_of_others_ = false;
  std::string backend_, where_, mark_, holder_, outcome_, error_;
};

// --- where ranks meet --------------------------------------------------------------------------------------------------

class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;

  // For rank 0: serves a store there and joins it. Null where somebody else has the address. Throws
  // UnknownHost where a later try may help, CommError where the address cannot be had at all.
  virtual std::shared_ptr<Store> host() = 0;

  // Why host() has returned null, where it can tell.
  virtual std::string taken() const { return {}; }

  // Tries once to join the store that is there. Throws as host() does.
  struct Joined {
    std::shared_ptr<Store> store = nullptr;
    bool is_foreign = false;   // what is there is not of this job; it may be about to end
    std::string failure = {};  // without a store: why, for the user
  };
  virtual Joined join(Deadline deadline) = 0;

  // This host's address towards the others.
  virtual std::string own_address() = 0;
};

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place);
std::unique_ptr<MeetingPlace> make_tcp_place(const Place& place);

// Meets the other ranks at `place`, within `timeout`. Throws CommError or CommTimeout that names who is missing or there
// twice.
Rendezvous meet(const Place& place, std::chrono::milliseconds timeout);

}  // namespace lockstep::parallel
