// Reads this process's rank, and the endpoint of the rendezvous, from init_method and environment.
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/membership_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

// --- env:// ---------------------------------------------------------------------------------------------------------

namespace {

// The value of the first variable that is set.
std::optional<std::string> first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto text = environment(name)) return text;
  }
  return std::nullopt;
}

int to_number(const std::string& text, const char* name, int low, int high) {
  return parse_number(std::string("init_process_group: ") + name, text, low, high,
                      "\nCorrect the variable, or start the program with lockstep-run, torchrun, mpirun or srun");
}

constexpr const char* kHowToStart =
    "A launcher sets the variables: lockstep-run --nproc-per-node 2 ./program (or torchrun, mpirun, srun)\n"
    "Or set what is missing, or give .store, .rank and .world_size";

// The variables of one family of launchers.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_size;  // null: the launcher sets the number of nodes instead
  bool needs_master;       // whether only MASTER_ADDR and MASTER_PORT identify the job
};
constexpr Launcher kLaunchers[] = {
    {"env://", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", true},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", nullptr, false},
};

// The launcher that started this process, or null.
const Launcher* find_launcher() {
  const auto it = std::ranges::find_if(
      kLaunchers, [](const Launcher& launcher) { return environment(launcher.rank) || environment(launcher.size); });
  return it == std::end(kLaunchers) ? nullptr : it;
}

// Whether a launcher has started this process, or its user has set some of the variables. Launchers whose variables are
// not read count, too: their ranks must not become groups of one.
bool is_launched() {
  return find_launcher() || first_of({"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                                      "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_RANK"});
}

// The launcher's name for this job, for a launcher that needs no master address.
std::optional<std::string> launcher_job(const Launcher& launcher) {
  if (launcher.needs_master) return std::nullopt;
  if (launcher.local_size) return first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  const auto job = environment("SLURM_JOB_ID"), step = environment("SLURM_STEP_ID");
  if (!job) return std::nullopt;
  return *job + "." + step.value_or("0");
}

void check_nothing_missing(const RendezvousOptions& options, const Launcher& launcher, const Membership& own,
                           bool needs_master) {
  std::string missing, present;
  const auto list = [&](const std::string& text) { present += (present.empty() ? "" : ", ") + text; };
  const auto look = [&](const char* name, bool is_needed) {
    const auto value = environment(name);
    if (value) list(fmt::format("{} is {}", name, in_quotes(*value)));
    if (!value && is_needed) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
  look(launcher.rank, own.rank < 0);
  look(launcher.size, own.size < 0);
  if (options.rank >= 0) list(fmt::format(".rank is {}", options.rank));
  if (options.world_size >= 0) list(fmt::format(".world_size is {}", options.world_size));
  look("MASTER_ADDR", needs_master);
  look("MASTER_PORT", needs_master);
  LOCKSTEP_CHECK(missing.empty(), "init_process_group: env:// needs {}{}\n{}", missing,
                 present.empty() ? "" : " (" + present + ")", kHowToStart);
}

// Whether all ranks are on this host.
bool is_on_one_host(const Launcher& launcher, int size) {
  const auto local = launcher.local_size ? environment(launcher.local_size) : std::nullopt;
  if (local) {
    const int local_size = to_number(*local, launcher.local_size, 1, kMaxRanks);
    LOCKSTEP_CHECK(local_size <= size, "init_process_group: {} is {}, more than the {} ranks of {}",
                   launcher.local_size, local_size, size, launcher.size);
    return local_size == size;
  }
  const auto master = environment("MASTER_ADDR");
  if (master && (launcher.needs_master || is_loopback(*master))) return is_loopback(*master);
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
    if (const auto nodes = environment(name)) return to_number(*nodes, name, 1, kMaxRanks) == 1;
  }
  return true;
}

// Sets the socket's name and the job's id from the address and `job`. On one host the address is only a name; no
// process listens on the port.
void set_socket(Membership& own, const std::string& job) {
  const std::string name = own.address + "\n" + own.store.name;
  const XXH128_hash_t hash = XXH3_128bits(job.data(), job.size());
  own.local = {.socket = fmt::format("lockstep-{}-{:016x}", ::geteuid(), XXH3_64bits(name.data(), name.size())),
               .address = own.address,
               .job = {hash.low64, hash.high64}};
}

// A port for a SLURM job without MASTER_PORT, derived from its identity: steps and jobs that share a host differ.
int port_of_job(const std::string& job) {
  constexpr int kFirst = 20000, kSpan = 40000;
  return kFirst + static_cast<int>(XXH3_64bits(job.data(), job.size()) % kSpan);
}

void check_membership(const Membership& own) {
  LOCKSTEP_CHECK(own.size >= 1 && own.size <= kMaxRanks, "init_process_group: the world size is {}, expected 1 to {}",
                 own.size, kMaxRanks);
  LOCKSTEP_CHECK(own.rank >= 0 && own.rank < own.size,
                 "init_process_group: the rank is {}, expected 0 to {} (world size {})", own.rank, own.size - 1,
                 own.size);
}

// Sets the endpoint where rank 0 serves the store of ranks on several hosts.
void find_master(Membership& own, const Launcher& launcher, const std::optional<std::string>& job) {
  const auto master = environment("MASTER_ADDR"), port = environment("MASTER_PORT");
  const auto nodes = first_of({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  own.host = master ? *master : first_host(nodes.value_or(""));
  LOCKSTEP_CHECK(!own.host.empty(),
                 "init_process_group: {} started ranks on several hosts, but the address of rank 0 is unknown\n"
                 "Set MASTER_ADDR and MASTER_PORT on all of them{}",
                 launcher.name, launcher.local_size ? ", or give .init_method = \"mpi://\"" : "");
  const int given = port ? to_number(*port, "MASTER_PORT", 1, 65535) : port_of_job(job.value_or(""));
  own.port = given;
  own.port_name = fmt::format("{} {}", port ? "MASTER_PORT" : "the port of this job,", given);
  if (environment("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True") {
    const auto chosen = environment_number("LOCKSTEP_PORT", 1, 65535);
    LOCKSTEP_CHECK(chosen || given < 65535,
                   "init_process_group: torchrun's agent has MASTER_PORT {}, and no port is above that\n"
                   "Set LOCKSTEP_PORT on all ranks, or choose another MASTER_PORT",
                   given);
    own.port = chosen.value_or(given + 1);
    own.port_name = fmt::format("LOCKSTEP_PORT {}{} (torchrun's agent has MASTER_PORT {})", own.port,
                                chosen ? "" : ", by default MASTER_PORT + 1", given);
  }
  own.port_name += " of " + own.host;
  own.address = fmt::format("{}:{}", own.host, own.port);
}

}  // namespace

// Accepts all spellings of this host, so that the ranks derive the same name.
bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address == "[::1]" || address.starts_with("127.");
}

Membership membership_from_environment(const RendezvousOptions& options) {
  const Launcher* found = find_launcher();
  const Launcher& launcher = found ? *found : kLaunchers[0];
  const auto size = environment(launcher.size), rank = environment(launcher.rank);
  const auto job = launcher_job(launcher), port = environment("MASTER_PORT");

  Membership own = read_url(options);
  if (own.rank < 0 && own.size < 0 && !is_launched()) {
    warn("init_process_group",
         "init_process_group: no launcher has set RANK and WORLD_SIZE: the group has this process alone\n"
         "To start two ranks: lockstep-run --nproc-per-node 2 ./program (or torchrun, mpirun, srun)");
    own.rank = 0;
    own.size = 1;
    return own;
  }
  if (own.size < 0 && size) own.size = to_number(*size, launcher.size, 1, kMaxRanks);
  const bool is_alone = own.size == 1;  // a single rank needs no rendezvous
  check_nothing_missing(options, launcher, own, !is_alone && (launcher.needs_master || (!job && !port)));
  if (own.rank < 0) own.rank = to_number(*rank, launcher.rank, 0, kMaxRanks - 1);
  check_membership(own);
  if (is_alone) return own;

  const std::string run = fmt::format("run {} restart {} job {}", environment("TORCHELASTIC_RUN_ID").value_or("none"),
                                      environment("TORCHELASTIC_RESTART_COUNT").value_or("0"), job.value_or("none"));
  own.is_one_host = is_on_one_host(launcher, own.size);
  if (!own.is_one_host) {
    find_master(own, launcher, job);
    own.store.job = run;
    return own;
  }
  if (port) {
    const auto master = environment("MASTER_ADDR");
    const std::string host = !master || is_loopback(*master) ? "127.0.0.1" : *master;
    own.address = fmt::format("{}:{}", host, to_number(*port, "MASTER_PORT", 0, 65535));
  } else {
    own.address = fmt::format("{} job {}", launcher.name, *job);
  }
  set_socket(own, environment("LOCKSTEP_JOB_TOKEN").value_or("") + "\n" + run);
  return own;
}

// --- other URLs -----------------------------------------------------------------------------------------------------

namespace {

int to_number(const RendezvousOptions& options, const char* what, const std::string& text, int low, int high) {
  return parse_number(fmt::format("init_process_group: init_method {}: {}", in_quotes(options.init_method), what), text,
                      low, high);
}

// Whether the scheme of an init_method is the name of a module whose library knows the ranks.
bool knows_ranks(const std::string& scheme) { return is_backend_module(scheme) && backend_module(scheme).place; }

// "rank=0&world_size=2".
void read_query(const RendezvousOptions& options, const std::string& query, Membership& own) {
  std::istringstream parts(query);
  for (std::string part; std::getline(parts, part, '&');) {
    const std::size_t equal = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equal), value = part.substr(std::min(equal + 1, part.size()));
    LOCKSTEP_CHECK(name == "rank" || name == "world_size",
                   "init_process_group: init_method {}: unknown {}; expected rank=... and world_size=...",
                   in_quotes(options.init_method), in_quotes(name));
    int& number = name == "rank" ? own.rank : own.size;
    if (number < 0) number = to_number(options, name.c_str(), value, 0, kMaxRanks);
  }
}

void read_host(const RendezvousOptions& options, const std::string& text, Membership& own) {
  const std::size_t colon = text.rfind(':');
  LOCKSTEP_CHECK(colon != std::string::npos && colon > 0 && text.find(']', colon) == std::string::npos,
                 "init_process_group: init_method {}: expected tcp://host:port", in_quotes(options.init_method));
  own.host = text.substr(0, colon);
  if (own.host.starts_with('[') && own.host.ends_with(']')) own.host = own.host.substr(1, own.host.size() - 2);
  own.port = to_number(options, "the port", text.substr(colon + 1), 1, 65535);
}

}  // namespace

Membership read_url(const RendezvousOptions& options) {
  const std::string& text = options.init_method;
  const std::size_t colon = text.find("://");
  Membership own{.rank = options.rank,
                 .size = options.world_size,
                 .scheme = text.substr(0, colon),
                 .store = {.authenticate = options.authenticate, .name = options.group_name}};
  const std::string& scheme = own.scheme;
  LOCKSTEP_CHECK(
      colon != std::string::npos && (scheme == "env" || scheme == "tcp" || scheme == "file" || knows_ranks(scheme)),
      "init_process_group: init_method {} is none of env://, tcp://host:port, file:///path and mpi://",
      in_quotes(text));
  const std::string rest = text.substr(colon + 3);
  const std::size_t query = std::min(rest.find('?'), rest.size());
  const std::string target = rest.substr(0, query);
  read_query(options, rest.substr(std::min(query + 1, rest.size())), own);
  if (scheme == "tcp") {
    read_host(options, target, own);
  } else if (scheme == "file") {
    LOCKSTEP_CHECK(target.starts_with('/'),
                   "init_process_group: init_method {}: expected file:///path, an absolute path", in_quotes(text));
    own.path = target;
  } else {
    LOCKSTEP_CHECK(target.empty(), "init_process_group: init_method {}: nothing may follow {}://", in_quotes(text),
                   scheme);
  }
  return own;
}

std::string first_host(const std::string& list) {
  const std::size_t end = std::min(list.find_first_of(",["), list.size());
  std::string host = list.substr(0, end);
  if (end < list.size() && list[end] == '[') host += list.substr(end + 1, list.find_first_of(",-]", end + 1) - end - 1);
  return host;
}

// --- the URL of a module ---------------------------------------------------------------------------------------------

// init_method "mpi://": a module's library provides rank and size. The backend of that module needs nothing else; the
// other backends use a store, whose address, job and token rank 0 draws and the library broadcasts.

namespace {

// The data that ranks exchange: all fields from rank 0, only the backend from the others.
struct Shared {
  char backend[16] = {};
  char token[2 * kTokenBytes + 1] = {};
  char job[17] = {};
  char host[64] = {};
  int port = 0;
};

template <std::size_t N>
void put(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

Shared draw() {
  Shared out;
  const std::string token = random_hex(kTokenBytes), job = random_hex(8), host = address_on_network();
  put(out.token, token);
  put(out.job, job);
  put(out.host, host);
  std::string error;
  const Descriptor free = listen_tcp(resolve(host, 0), error);
  if (!free) throw CommError(fmt::format("init_process_group: rank 0 has no free port at {}: {}", host, error));
  out.port = address_of(free).port();
  return out;
}

// Without this check the ranks of the module's backend, which need no store, would wait for the others until the
// timeout.
void check_same_backend(const std::vector<Shared>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (std::string_view(all[rank].backend) != all[0].backend)
      throw CommError(
          fmt::format("init_process_group: ranks disagree about the backend: rank 0 has {}, rank {} has {}\n"
                      "Give all ranks the same .backend",
                      in_quotes(all[0].backend), rank, in_quotes(all[rank].backend)));
  }
}

// Asks the module's library, which this call initialises. Sets no address if the backend needs no store.
Membership membership_from_module(const RendezvousOptions& options, Membership own) {
  const BackendModule& module = backend_module(own.scheme);
  const int given_rank = own.rank, given_size = own.size;
  module.place(&own.rank, &own.size);
  LOCKSTEP_CHECK((given_rank < 0 || given_rank == own.rank) && (given_size < 0 || given_size == own.size),
                 "init_process_group: .rank is {} and .world_size is {}, but this process is rank {} of {} in {}\n"
                 "Leave them out with {}://, and start the program with mpirun -np",
                 given_rank, given_size, own.rank, own.size, own.scheme, own.scheme);
  if (own.size == 1) return own;
  Shared offer = own.rank == 0 && options.backend != own.scheme ? draw() : Shared();
  put(offer.backend, options.backend);
  std::vector<Shared> all(static_cast<std::size_t>(own.size));
  module.gather(&offer, all.data(), sizeof(offer));
  check_same_backend(all);
  if (options.backend == own.scheme) return own;
  const Shared& shared = all[0];
  own.is_one_host = environment_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxRanks).value_or(own.size) == own.size;
  own.host = shared.host;
  own.port = shared.port;
  own.port_name = fmt::format("port {} of {}, which was free when MPI's rank 0 chose it", shared.port, shared.host);
  own.store.token = shared.token;
  own.store.job = fmt::format("MPI job {}", shared.job);
  own.address = own.is_one_host ? own.store.job : fmt::format("{}:{}", own.host, own.port);
  set_socket(own, own.store.token);
  return own;
}

}  // namespace

// --- every init_method -----------------------------------------------------------------------------------------------

Membership find_membership(const RendezvousOptions& options) {
  Membership own{.rank = options.rank, .size = options.world_size};
  if (!options.store) own = read_url(options);
  if (own.scheme == "env") return membership_from_environment(options);
  if (knows_ranks(own.scheme)) return membership_from_module(options, std::move(own));
  LOCKSTEP_CHECK(!options.store || (own.rank >= 0 && own.size >= 0),
                 "init_process_group: with .store, .rank and .world_size must be given, too (they are {} and {})",
                 own.rank, own.size);
  LOCKSTEP_CHECK(own.rank >= 0 && own.size >= 0,
                 "init_process_group: {} needs .rank and .world_size (or ?rank=0&world_size=2 after the {})",
                 in_quotes(options.init_method), own.scheme == "tcp" ? "port" : "path");
  check_membership(own);
  if (own.scheme != "tcp") return own;
  own.is_one_host = is_loopback(own.host);
  own.port_name = fmt::format("port {} of {}", own.port, own.host);
  own.address = fmt::format("{}:{}", own.is_one_host ? "127.0.0.1" : own.host, own.port);
  set_socket(own, environment("LOCKSTEP_JOB_TOKEN").value_or(""));
  return own;
}

}  // namespace lockstep::parallel
