// Watches for the end of a process that is not a child of this one.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "lockstep/parallel/rendezvous/socket_internal.h"

class WatchedProcess {
 public:
  explicit WatchedProcess(pid_t pid) : pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
    REQUIRE((pidfd_ || errno == ESRCH));  // the process has ended already
  }
  // Waits for the end of the process; false after `at_most`.
  bool ends(std::chrono::milliseconds at_most = std::chrono::seconds(20)) const {
    pollfd ended{pidfd_.get(), POLLIN, 0};
    return !pidfd_ || poll(&ended, 1, static_cast<int>(at_most.count())) == 1;
  }

 private:
  lockstep::Descriptor pidfd_;
};
