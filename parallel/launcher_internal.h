// Parts of the launcher: what a rank is told, how it is started, and what it leaves behind.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/parallel/launcher.h"
#include "lockstep/parallel/socket_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

// What all ranks of one run share.
struct RunIdentity {
  std::string port;   // MASTER_PORT: a name only, nobody listens there
  std::string id;     // TORCHELASTIC_RUN_ID
  std::string token;  // LOCKSTEP_JOB_TOKEN
  Descriptor claim;   // keeps the port from other launchers on this host
};
RunIdentity make_run_identity();

// "NAME=value" for one rank: this process's environment, torchrun's variables over it, and `options.environment` over both.
std::vector<std::string> environment_of(int rank, const LaunchOptions& options, const RunIdentity& run,
                                        const std::string& error_file);

// `program` as execve wants it: searched in PATH where it has no slash. Throws IoError where there is none to run.
std::string find_program(const std::string& program);

// Cores by the text of cpu.max ("50000 100000", "max 100000"), at least 1; 0 where it sets no limit.
int cores_of_quota(const std::string& text);

// A process of its own that kills the ranks' process groups when the launcher dies, however it dies. (The parent-death
// signal reaches only the ranks themselves, not what they have started.)
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  int socket() const { return socket_.get(); }  // takes pid_t: a group to watch; negative: to forget
  void forget(pid_t group);

 private:
  pid_t pid_ = -1;
  Descriptor socket_;
};

struct WorkerSpec {
  std::string program;
  std::vector<std::string> command;
  std::vector<std::string> environment;
  int out = -1, err = -1;  // what become stdout and stderr; -1: inherited
  int watchdog = -1;
};

// Starts a program as leader of a session of its own, that dies with this process. Throws IoError where it cannot.
pid_t start_worker(const WorkerSpec& spec);

// An error file in memory: nothing to clean up, whoever dies. Ranks reach it by its path.
class ErrorFile {
 public:
  ErrorFile();
  const std::string& path() const { return path_; }
  std::string read() const;  // the error's text; empty where there is none that can be understood

 private:
  Descriptor file_;
  std::string path_;
};

// The message in an error file's JSON, as torchrun's ranks write it; empty where it is not of that form.
std::string message_in(const std::string& json);

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
