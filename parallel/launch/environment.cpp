#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/device.h"

namespace lockstep::parallel {

namespace {

void replace(std::vector<std::string>& environment, const std::string& entry) {
  const std::string name = entry.substr(0, entry.find('=') + 1);
  const auto at = std::find_if(environment.begin(), environment.end(),
                               [&](const std::string& other) { return other.starts_with(name); });
  if (at == environment.end()) {
    environment.push_back(entry);
  } else {
    *at = entry;
  }
}

}  // namespace

std::string new_job_token() { return random_hex(kTokenBytes); }

namespace {

// Ranks of one run on one host meet at an address that follows from the port, so no other run may have it.
void claim_port(RunIdentity& run) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries && !run.claim; ++i) {
    const auto number = std::strtoul(random_hex(2).c_str(), nullptr, 16);
    run.port = std::to_string(20000 + number % 40000);
    run.claim = listen_abstract("lockstep-run-" + run.port);
    LOCKSTEP_CHECK_IO(run.claim || errno == EADDRINUSE, "launch: cannot claim a port number: {}", reason(errno));
  }
  LOCKSTEP_CHECK_IO(bool(run.claim), "launch: no free port number in {} tries", kTries);
}

}  // namespace

RunIdentity make_run_identity(const LaunchOptions& options) {
  RunIdentity run;
  run.id = options.run_id;
  if (options.nodes.count == 1) {
    if (run.id.empty()) run.id = random_hex(8);
    claim_port(run);
    run.token = new_job_token();
    return run;
  }
  const char* const token = std::getenv("LOCKSTEP_JOB_TOKEN");
  LOCKSTEP_CHECK(token && *token,
                 "launch: LOCKSTEP_JOB_TOKEN is not set, and a job on {} hosts needs it: ranks authenticate by it\n"
                 "`lockstep-run --new-token` prints a token; set it on all hosts",
                 options.nodes.count);
  if (run.id.empty()) run.id = "none";  // torchrun's default: the same on all hosts
  run.token = token;
  run.address = options.nodes.address;
  run.port = std::to_string(options.nodes.port);
  return run;
}

std::vector<std::string> environment_of(int local_rank, const Placement& place, const LaunchOptions& options,
                                        const RunIdentity& run, const std::string& error_file) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry) out.emplace_back(*entry);
  const auto set = [&](const char* name, const std::string& value) { replace(out, fmt::format("{}={}", name, value)); };
  const std::string rank = std::to_string(place.first_rank + local_rank), size = std::to_string(place.world_size);
  for (const char* name : {"RANK", "ROLE_RANK"}) set(name, rank);
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) set(name, size);
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(place.local_size));
  set("GROUP_RANK", std::to_string(place.group_rank));
  set("GROUP_WORLD_SIZE", std::to_string(place.group_size));
  set("ROLE_NAME", "default");
  set("MASTER_ADDR", run.address);
  set("MASTER_PORT", run.port);
  set("TORCHELASTIC_RUN_ID", run.id);
  set("TORCHELASTIC_RESTART_COUNT", std::to_string(place.attempt));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts));
  set("TORCHELASTIC_USE_AGENT_STORE", "False");  // MASTER_PORT is rank 0's
  set("TORCHELASTIC_ERROR_FILE", error_file);
  set("LOCKSTEP_JOB_TOKEN", run.token);
  if (!std::getenv("LOCKSTEP_NUM_THREADS"))
    set("LOCKSTEP_NUM_THREADS", std::to_string(std::max(usable_cores() / place.local_size, 1)));
  for (const std::string& entry : options.environment) {
    LOCKSTEP_CHECK(entry.find('=') != std::string::npos && entry[0] != '=',
                   "launch: environment: \"{}\" is not NAME=value", entry);
    replace(out, entry);
  }
  return out;
}

std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;  // execve says what is wrong with it
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw IoError(fmt::format("launch: no program \"{}\" in PATH\nOne in this folder is \"./{}\"", program, program));
}

}  // namespace lockstep::parallel
