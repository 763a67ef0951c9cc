// Runs the sample programs as a user does: arguments, output, signals, exit codes.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return result;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns the name of an output folder after it has removed what an earlier run of the tests left in it.
inline std::string fresh(const std::string& folder) {
  std::filesystem::remove_all(folder);
  return folder;
}

// A running sample program, or any other by its path. Its output is written to a file in the test's scratch folder.
class Process {
 public:
  Process(const std::string& program, std::vector<std::string> arguments) {
    const bool is_path = program.find('/') != std::string::npos;
    arguments.insert(arguments.begin(), is_path ? program : std::string(LOCKSTEP_SAMPLES_DIR) + "/" + program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    static int count = 0;
    path_ = "output" + std::to_string(count++) + ".txt";
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(file >= 0);
    pid_ = fork();
    if (pid_ != 0) {
      close(file);
      REQUIRE(pid_ > 0);
      return;
    }
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  // Returns the exit code, or minus the signal that ended the program.
  int wait() {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    output_ = read_file(path_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Waits for the end, which must be this one as wait() returns it. A failure shows the output.
  void require_end(int code) {
    const int ended = wait();
    CAPTURE(output_);
    REQUIRE(ended == code);
  }
  const std::string& output() const { return output_; }
  const std::string& output_path() const { return path_; }  // grows while the program runs

 private:
  pid_t pid_ = -1;
  std::string path_, output_;
};

struct Finished {
  int code;
  std::string output;
};

inline Finished run(const std::string& program, const std::vector<std::string>& arguments) {
  Process process(program, arguments);
  const int code = process.wait();
  INFO(process.output());
  return {code, process.output()};
}

// Returns the process with this rank among `parent`'s children, or -1.
inline pid_t find_rank(pid_t parent, int rank) {
  const std::string base = "/proc/" + std::to_string(parent);
  std::istringstream children(read_file(base + "/task/" + std::to_string(parent) + "/children"));
  for (pid_t child = 0; children >> child;) {
    std::string environment = read_file("/proc/" + std::to_string(child) + "/environ");
    environment.insert(environment.begin(), '\0');
    const std::string wanted = std::string(1, '\0') + "RANK=" + std::to_string(rank) + std::string(1, '\0');
    if (contains(environment, wanted)) return child;
  }
  return -1;
}

// Waits until `condition` holds, for a minute at most.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

inline std::size_t epochs_written(const std::string& out) { return lines(read_file(out + "/metrics.jsonl")).size(); }

// metrics.jsonl without the only column that differs from run to run.
inline std::string metrics_without_times(const std::string& out) {
  std::string result;
  for (const std::string& line : lines(read_file(out + "/metrics.jsonl"))) {
    result += line.substr(0, line.find(",\"seconds\"")) + "\n";
  }
  return result;
}
