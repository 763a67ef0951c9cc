// Environments of launchers, and the ways in which processes meet.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "tests/support/ports.h"
#include "tests/support/testing.h"

inline std::string fresh_port() { return std::to_string(free_port()); }

inline void clear_environment() {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "LOCKSTEP_JOB_TOKEN",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMIX_NAMESPACE",
                           "OMPI_MCA_ess_base_jobid",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_JOB_ID",
                           "SLURM_STEP_ID",
                           "SLURM_NNODES",
                           "SLURM_STEP_NUM_NODES",
                           "SLURM_STEP_NODELIST",
                           "SLURM_NODELIST",
                           "SLURM_JOB_NODELIST",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "LOCKSTEP_PORT",
                           "SLURM_JOB_NUM_NODES",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "PMIX_RANK",
                           "MV2_COMM_WORLD_RANK"})
    unsetenv(name);
}

inline void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

inline void set_torchrun(const std::string& port, int rank, int size) {
  clear_environment();
  set_variable("RANK", std::to_string(rank));
  set_variable("WORLD_SIZE", std::to_string(size));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(size));
  set_variable("MASTER_ADDR", "node7");
  set_variable("MASTER_PORT", port);
  set_variable("TORCHELASTIC_RUN_ID", "run " + port);
}

inline void set_mpirun(const std::string& job, int rank, int size) {
  clear_environment();
  set_variable("OMPI_COMM_WORLD_RANK", std::to_string(rank));
  set_variable("OMPI_COMM_WORLD_SIZE", std::to_string(size));
  set_variable("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(size));
  set_variable("PMIX_NAMESPACE", job);
}

inline void set_srun(const std::string& job, int rank, int size) {
  clear_environment();
  set_variable("SLURM_PROCID", std::to_string(rank));
  set_variable("SLURM_NTASKS", std::to_string(size));
  set_variable("SLURM_NNODES", "1");
  set_variable("SLURM_JOB_ID", job);
  set_variable("SLURM_STEP_ID", "0");
}

inline constexpr const char* kJobToken = "0123456789abcdef0123456789abcdef";

// As a launcher on each of two hosts sets them: not all ranks are on this one.
inline void set_two_hosts(const std::string& port, int rank, int size, const char* token = kJobToken) {
  lockstep::on_warning([](const std::string&) {});
  set_torchrun(port, rank, size);
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("LOCAL_WORLD_SIZE", "1");
  set_variable("LOCKSTEP_JOB_TOKEN", token);
}

// A way in which processes meet: the environment and the options of one rank. `id` is a port that no other test uses.
struct Way {
  const char* name;
  void (*set)(const std::string& id, int rank, int size, lockstep::parallel::RendezvousOptions& options);
};

inline const Way kUnix{"torchrun",
                       [](const std::string& id, int rank, int size, auto&) { set_torchrun(id, rank, size); }};
inline const Way kTcp{"two hosts",
                      [](const std::string& id, int rank, int size, auto&) { set_two_hosts(id, rank, size); }};
inline const Way kUrl{"tcp://", [](const std::string& id, int rank, int size, auto& options) {
                        clear_environment();
                        options.init_method = "tcp://127.0.0.1:" + id;  // one host: no token needed
                        options.rank = rank;
                        options.world_size = size;
                      }};
inline const Way kFile{"file://", [](const std::string& id, int rank, int size, auto& options) {
                         clear_environment();
                         options.init_method = "file://" + std::filesystem::current_path().string() + "/meeting" + id +
                                               "?rank=" + std::to_string(rank) + "&world_size=" + std::to_string(size);
                       }};

inline lockstep::parallel::Rendezvous join(const Way& way, const std::string& id, int rank, int size,
                                           lockstep::parallel::RendezvousOptions options = {
                                               .timeout = std::chrono::seconds(30)}) {
  way.set(id, rank, size, options);
  return lockstep::parallel::rendezvous(options);
}

// Every rank sends its number to the others and receives theirs. Rank 0, with whose handle a store may end, leaves last.
inline void check_together(lockstep::parallel::Rendezvous& here) {
  const auto receive_all = [&](const std::string& what) {
    for (int rank = 0; rank < here.size; ++rank)
      CHECK(here.store->get(what + std::to_string(rank)) == std::to_string(rank));
  };
  const std::string own = std::to_string(here.rank);
  here.store->set("from " + own, own);
  receive_all("from ");
  here.store->set("left " + own, own);
  if (here.rank == 0) receive_all("left ");
}

// Waits, as an additional client of the store, until `rank` has entered the rendezvous at `port`.
inline void wait_until_entered(const std::string& port, int rank, int size) {
  namespace par = lockstep::parallel;
  set_torchrun(port, rank, size);
  const par::UnixStoreOptions options = par::membership_from_environment({}).local;
  for (;;) {
    par::ConnectResult result = par::connect_unix(options, par::Deadline(std::chrono::seconds(10)));
    if (result.outcome != par::ConnectOutcome::kConnected) {
      usleep(1000);
      continue;
    }
    par::make_unix_store(options, std::move(result))->get("rendezvous/rank/" + std::to_string(rank));
    return;
  }
}
