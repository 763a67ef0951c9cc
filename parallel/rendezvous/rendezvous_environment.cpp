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
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
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

constexpr const char* kWaysOut =
    "Start it with lockstep-run --nproc-per-node 2 ./program (or torchrun, mpirun, srun), set what is missing,\n"
    "or give .store, .rank and .world_size";

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

// The launcher's name of this job, for a launcher that sets no master address.
std::optional<std::string> launcher_job(const Launcher& launcher) {
  if (launcher.needs_master) return std::nullopt;
  if (launcher.local_size) return first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  const auto job = environment("SLURM_JOB_ID"), step = environment("SLURM_STEP_ID");
  if (!job) return std::nullopt;
  return *job + "." + step.value_or("0");
}

void check_nothing_missing(const Launcher& launcher, const Place& place, bool needs_master) {
  std::string missing, present;
  const auto look = [&](const char* name, bool is_needed) {
    const auto value = environment(name);
    if (value) present += fmt::format("{}{} is {}", present.empty() ? "" : ", ", name, in_quotes(*value));
    if (!value && is_needed) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
  look(launcher.rank, place.rank < 0);
  look(launcher.size, place.size < 0);
  look("MASTER_ADDR", needs_master);
  look("MASTER_PORT", needs_master);
  LOCKSTEP_CHECK(missing.empty(), "init_process_group: env:// needs {}{}\n{}", missing,
                 present.empty() ? "" : " (" + present + ")", kWaysOut);
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
void set_socket(Place& place, const std::string& job) {
  const std::string name = place.address + "\n" + place.store_name;
  place.socket = fmt::format("lockstep-{}-{:016x}", ::geteuid(), XXH3_64bits(name.data(), name.size()));
  const XXH128_hash_t hash = XXH3_128bits(job.data(), job.size());
  place.job = {hash.low64, hash.high64};
}

// A port for a SLURM job without MASTER_PORT, derived from its identity: steps and jobs that share a host differ.
int port_of_job(const std::string& job) {
  constexpr int kFirst = 20000, kSpan = 40000;
  return kFirst + static_cast<int>(XXH3_64bits(job.data(), job.size()) % kSpan);
}

void check_place(const Place& place) {
  LOCKSTEP_CHECK(place.size >= 1 && place.size <= kMaxRanks,
                 "init_process_group: the world size is {}, expected 1 to {}", place.size, kMaxRanks);
  LOCKSTEP_CHECK(place.rank >= 0 && place.rank < place.size,
                 "init_process_group: the rank is {}, expected 0 to {} (world size {})", place.rank, place.size - 1,
                 place.size);
}

// Sets the endpoint where rank 0 serves the store of ranks on several hosts.
void find_master(Place& place, const Launcher& launcher, const std::optional<std::string>& job) {
  const auto master = environment("MASTER_ADDR"), port = environment("MASTER_PORT");
  const auto nodes = first_of({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  place.host = master ? *master : first_host(nodes.value_or(""));
  LOCKSTEP_CHECK(!place.host.empty(),
                 "init_process_group: {} started ranks on several hosts, but the address of rank 0 is unknown\n"
                 "Set MASTER_ADDR and MASTER_PORT on all of them{}",
                 launcher.name, launcher.local_size ? ", or give .init_method = \"mpi://\"" : "");
  const int given = port ? to_number(*port, "MASTER_PORT", 1, 65535) : port_of_job(job.value_or(""));
  place.port = given;
  place.port_name = fmt::format("{} {}", port ? "MASTER_PORT" : "the port of this job,", given);
  if (environment("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True") {
    const auto own = environment_number("LOCKSTEP_PORT", 1, 65535);
    LOCKSTEP_CHECK(own || given < 65535,
                   "init_process_group: torchrun's agent has MASTER_PORT {}, and no port is above that\n"
                   "Set LOCKSTEP_PORT on all ranks, or choose another MASTER_PORT",
                   given);
    place.port = own.value_or(given + 1);
    place.port_name = fmt::format("LOCKSTEP_PORT {}{} (torchrun's agent has MASTER_PORT {})", place.port,
                                  own ? "" : ", by default MASTER_PORT + 1", given);
  }
  place.port_name += " of " + place.host;
  place.address = fmt::format("{}:{}", place.host, place.port);
}

}  // namespace

// All spellings of this host, so that the ranks derive the same name.
bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address == "[::1]" || address.starts_with("127.");
}

Place place_from_environment(const RendezvousOptions& options) {
  const Launcher* found = find_launcher();
  const Launcher& launcher = found ? *found : kLaunchers[0];
  const auto size = environment(launcher.size), rank = environment(launcher.rank);
  const auto job = launcher_job(launcher), port = environment("MASTER_PORT");

  Place place = read_url(options);
  if (place.rank < 0 && place.size < 0 && !is_launched()) {
    warn("init_process_group",
         "init_process_group: no launcher has set RANK and WORLD_SIZE: the group has this process alone\n"
         "To start two ranks: lockstep-run --nproc-per-node 2 ./program (or torchrun, mpirun, srun)");
    place.rank = 0;
    place.size = 1;
    return place;
  }
  if (place.size < 0 && size) place.size = to_number(*size, launcher.size, 1, kMaxRanks);
  const bool is_alone = place.size == 1;  // a single rank needs no rendezvous
  check_nothing_missing(launcher, place, !is_alone && (launcher.needs_master || (!job && !port)));
  if (place.rank < 0) place.rank = to_number(*rank, launcher.rank, 0, kMaxRanks - 1);
  check_place(place);
  if (is_alone) return place;

  const std::string run = fmt::format("run {} restart {} job {}", environment("TORCHELASTIC_RUN_ID").value_or("none"),
                                      environment("TORCHELASTIC_RESTART_COUNT").value_or("0"), job.value_or("none"));
  place.is_one_host = is_on_one_host(launcher, place.size);
  if (!place.is_one_host) {
    find_master(place, launcher, job);
    place.job_text = run;
    return place;
  }
  if (port) {
    const auto master = environment("MASTER_ADDR");
    const std::string host = !master || is_loopback(*master) ? "127.0.0.1" : *master;
    place.address = fmt::format("{}:{}", host, to_number(*port, "MASTER_PORT", 0, 65535));
  } else {
    place.address = fmt::format("{} job {}", launcher.name, *job);
  }
  set_socket(place, environment("LOCKSTEP_JOB_TOKEN").value_or("") + "\n" + run);
  return place;
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
void read_query(const RendezvousOptions& options, const std::string& query, Place& place) {
  std::istringstream parts(query);
  for (std::string part; std::getline(parts, part, '&');) {
    const std::size_t equal = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equal), value = part.substr(std::min(equal + 1, part.size()));
    LOCKSTEP_CHECK(name == "rank" || name == "world_size",
                   "init_process_group: init_method {}: unknown {}; expected rank=... and world_size=...",
                   in_quotes(options.init_method), in_quotes(name));
    int& number = name == "rank" ? place.rank : place.size;
    if (number < 0) number = to_number(options, name.c_str(), value, 0, kMaxRanks);
  }
}

void read_host(const RendezvousOptions& options, const std::string& text, Place& place) {
  const std::size_t colon = text.rfind(':');
  LOCKSTEP_CHECK(colon != std::string::npos && colon > 0 && text.find(']', colon) == std::string::npos,
                 "init_process_group: init_method {}: expected tcp://host:port", in_quotes(options.init_method));
  place.host = text.substr(0, colon);
  if (place.host.starts_with('[') && place.host.ends_with(']'))
    place.host = place.host.substr(1, place.host.size() - 2);
  place.port = to_number(options, "the port", text.substr(colon + 1), 1, 65535);
}

}  // namespace

Place read_url(const RendezvousOptions& options) {
  const std::string& text = options.init_method;
  const std::size_t colon = text.find("://");
  Place place{.rank = options.rank,
              .size = options.world_size,
              .scheme = text.substr(0, colon),
              .store_name = options.group_name,
              .authenticate = options.authenticate};
  const std::string& scheme = place.scheme;
  LOCKSTEP_CHECK(
      colon != std::string::npos && (scheme == "env" || scheme == "tcp" || scheme == "file" || knows_ranks(scheme)),
      "init_process_group: init_method {} is none of env://, tcp://host:port, file:///path and mpi://",
      in_quotes(text));
  const std::string rest = text.substr(colon + 3);
  const std::size_t query = std::min(rest.find('?'), rest.size());
  const std::string target = rest.substr(0, query);
  read_query(options, rest.substr(std::min(query + 1, rest.size())), place);
  if (scheme == "tcp") {
    read_host(options, target, place);
  } else if (scheme == "file") {
    LOCKSTEP_CHECK(target.starts_with('/'),
                   "init_process_group: init_method {}: expected file:///path, an absolute path", in_quotes(text));
    place.path = target;
  } else {
    LOCKSTEP_CHECK(target.empty(), "init_process_group: init_method {}: nothing may follow {}://", in_quotes(text),
                   scheme);
  }
  return place;
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
// time-out.
void check_same_backend(const std::vector<Shared>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (std::string_view(all[rank].backend) != all[0].backend)
      throw CommError(
          fmt::format("init_process_group: ranks disagree about the backend: rank 0 has {}, rank {} has {}\n"
                      "Give all ranks the same .backend",
                      in_quotes(all[0].backend), rank, in_quotes(all[rank].backend)));
  }
}

// Asks the library, which this call initialises. Without an address if the backend needs no store.
Place place_from_module(const RendezvousOptions& options, Place place) {
  const BackendModule& module = backend_module(place.scheme);
  const int given_rank = place.rank, given_size = place.size;
  module.place(&place.rank, &place.size);
  LOCKSTEP_CHECK((given_rank < 0 || given_rank == place.rank) && (given_size < 0 || given_size == place.size),
                 "init_process_group: .rank is {} and .world_size is {}, but this process is rank {} of {} in {}\n"
                 "Leave them out with {}://, and start the program with mpirun -np",
                 given_rank, given_size, place.rank, place.size, place.scheme, place.scheme);
  if (place.size == 1) return place;
  Shared own = place.rank == 0 && options.backend != place.scheme ? draw() : Shared();
  put(own.backend, options.backend);
  std::vector<Shared> all(static_cast<std::size_t>(place.size));
  module.gather(&own, all.data(), sizeof(own));
  check_same_backend(all);
  if (options.backend == place.scheme) return place;
  const Shared& shared = all[0];
  place.is_one_host = environment_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxRanks).value_or(place.size) == place.size;
  place.host = shared.host;
  place.port = shared.port;
  place.port_name = fmt::format("port {} of {}, which was free when MPI's rank 0 chose it", shared.port, shared.host);
  place.token = shared.token;
  place.job_text = fmt::format("MPI job {}", shared.job);
  place.address = place.is_one_host ? place.job_text : fmt::format("{}:{}", place.host, place.port);
  set_socket(place, place.token);
  return place;
}

}  // namespace

// --- every init_method -----------------------------------------------------------------------------------------------

Place find_place(const RendezvousOptions& options) {
  Place place{.rank = options.rank, .size = options.world_size};
  if (!options.store) place = read_url(options);
  if (place.scheme == "env") return place_from_environment(options);
  if (knows_ranks(place.scheme)) return place_from_module(options, std::move(place));
  LOCKSTEP_CHECK(!options.store || (place.rank >= 0 && place.size >= 0),
                 "init_process_group: with .store, .rank and .world_size must be given, too (they are {} and {})",
                 place.rank, place.size);
  LOCKSTEP_CHECK(place.rank >= 0 && place.size >= 0,
                 "init_process_group: {} needs .rank and .world_size (or ?rank=0&world_size=2 after the {})",
                 in_quotes(options.init_method), place.scheme == "tcp" ? "port" : "path");
  check_place(place);
  if (place.scheme != "tcp") return place;
  place.is_one_host = is_loopback(place.host);
  place.port_name = fmt::format("port {} of {}", place.port, place.host);
  place.address = fmt::format("{}:{}", place.is_one_host ? "127.0.0.1" : place.host, place.port);
  set_socket(place, environment("LOCKSTEP_JOB_TOKEN").value_or(""));
  return place;
}

}  // namespace lockstep::parallel
