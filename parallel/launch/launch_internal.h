// Parts of the launcher: what a rank is told, how it is started, and what it leaves behind.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/launch.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

// What all ranks of one run share.
struct RunIdentity {
  std::string address = "127.0.0.1";  // MASTER_ADDR
  std::string port;                   // MASTER_PORT: on one host a name only, nobody listens there
  std::string id;                     // TORCHELASTIC_RUN_ID
  std::string token;                  // LOCKSTEP_JOB_TOKEN
  Descriptor claim;                   // keeps the port from other launchers on this host
};
// On several hosts the token is the environment's. Throws InvalidArgument if it is not set.
RunIdentity make_run_identity(const LaunchOptions& options);

// The ranks of one host among all, in one attempt.
struct Placement {
  int first_rank = 0;
  int local_size = 1;
  int world_size = 1;
  int attempt = 0;
  int group_rank = 0, group_size = 1;  // this host's number, and the number of hosts
};

// "NAME=value" for one rank: this process's environment, torchrun's variables over it, and `options.environment` over both.
std::vector<std::string> environment_of(int local_rank, const Placement& place, const LaunchOptions& options,
                                        const RunIdentity& run, const std::string& error_file);

// `program` as execve wants it: searched in PATH where it has no slash. Throws IoError where there is none to run.
std::string find_program(const std::string& program);

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

// A program that start_worker has started. It is killed with all that it has started where this ends first.
class WorkerProcess {
 public:
  WorkerProcess(const WorkerSpec& spec, Watchdog& watchdog);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool is_running() const { return bool(pidfd_); }
  int ended() const { return pidfd_.get(); }  // readable when it has ended; -1 once that is taken in
  void signal(int number) const;              // to its group

  struct End {
    int code = 0;  // 128 + signal for signals
    int signal = 0;
  };
  End take_end();                     // once it has ended; what it has started and left is killed
  void abandon() { pidfd_.reset(); }  // it cannot be killed

 private:
  Watchdog& watchdog_;
  pid_t pid_ = -1;
  Descriptor pidfd_;
};

// What a process writes on one pipe, line by line.
class LineReader {
 public:
  // The end that the process writes to; `what` is for the message of an IoError.
  Descriptor open(const std::string& what);
  int fd() const { return pipe_.get(); }  // -1 before, and when all has been read
  // Lines that are complete by now, without their ends; one that is longer than kMaxOutputLine comes in pieces.
  std::vector<std::string> read();
  // What is there when the process has ended. Something that it has started may hold the other end, so this does not wait
  // for its end.
  std::vector<std::string> finish();

 private:
  Descriptor pipe_;
  std::string rest_;
};

// The files that ranks' output goes to.
class RankLogs {
 public:
  // Makes the folder of this run. Throws IoError where it cannot.
  RankLogs(const LogOptions& options, const std::string& run_id);

  bool wants(int local_rank, bool is_stderr) const;      // whether the stream goes to a file
  bool redirects(int local_rank, bool is_stderr) const;  // ... and nowhere else
  void begin(const Placement& place);                    // a new attempt: new files
  void write(int local_rank, bool is_stderr, const std::string& line);
  void write_error(int local_rank, const std::string& error);  // error.json

 private:
  std::string path_of(int local_rank, const char* name) const;
  Descriptor& file_of(int local_rank, bool is_stderr);

  LogOptions options_;
  std::string run_folder_, attempt_folder_;
  std::vector<Descriptor> files_;  // stdout and stderr of each rank
};

// What LaunchOptions::stop_fd has to say: a signal, or 0 for nothing. Where nobody will ask any more it becomes -1.
int take_request(int& stop_fd);

// What one attempt runs with.
struct AttemptContext {
  const LaunchOptions& options;
  const RunIdentity& identity;
  Placement place;
  Watchdog& watchdog;
  RankLogs* logs;  // null: none
  const OutputCallback& on_line;
};
LaunchResult run_attempt(const AttemptContext& context);

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
// The JSON of that form for a message.
std::string error_json(const std::string& message);

}  // namespace lockstep::parallel
