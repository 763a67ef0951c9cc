// Launches of shell scripts.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/descriptor_internal.h"
#include "lockstep/parallel/launch/launch.h"
#include "tests/support/testing.h"

namespace par = lockstep::parallel;

inline par::LaunchOptions shell(int nproc, const std::string& script, int max_restarts = 0) {
  return {.nproc = nproc,
          .command = {"sh", "-c", script},
          .max_restarts = max_restarts,
          .back_off = std::chrono::milliseconds(1)};
}

// A rank that is a test case of this program.
inline par::LaunchOptions rank_of_test(const std::string& name, int nproc = 1) {
  return {.nproc = nproc, .command = {"/proc/self/exe", "--no-skip", "--no-intro", "--test-case=" + name}};
}

// The request to stop: a pipe, as that of StopSignals.
class StopRequest {
 public:
  StopRequest() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    from_ = ls::Descriptor(ends[0]);
    to_ = ls::Descriptor(ends[1]);
  }
  int fd() const { return from_.get(); }
  void send(const std::string& bytes = std::string(1, '\0')) const {
    CHECK(::write(to_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  ls::Descriptor from_, to_;
};

using Lines = std::map<int, std::vector<std::string>>;  // by rank

// Launches the ranks, whose lines on stdout are added to `lines`, and requests a stop when all ranks have written "ready".
inline par::LaunchResult stop_when_ready(par::LaunchOptions options, Lines* lines = nullptr) {
  const StopRequest request;
  options.stop_fd = request.fd();
  int ready = 0;
  return par::launch(options, [&](int rank, bool is_stderr, const std::string& line) {
    if (lines && !is_stderr) (*lines)[rank].push_back(line);
    if (line == "ready" && ++ready == options.nproc) request.send();
  });
}
