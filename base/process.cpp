#include "lockstep/base/process_internal.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/descriptor_internal.h"
#include "lockstep/base/file_internal.h"

namespace lockstep {

namespace {

// Field 22 of the process's `stat`, in clock ticks after the boot. Field 2, the program's name, may hold any character.
std::string start_time(pid_t process) {
  constexpr int kAfterName = 20;
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text, field;
  std::getline(file, text, '\0');
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  for (int i = 0; i < kAfterName && fields >> field; ++i) {
  }
  return fields ? field : "";
}

}  // namespace

std::string namespace_id(const char* kind) {
  const std::string boot = boot_id();
  if (boot.empty()) return "";
  char name[64] = {};
  const ssize_t size = ::readlink(fmt::format("/proc/self/ns/{}", kind).c_str(), name, sizeof(name));
  return size <= 0 ? "" : boot + " " + std::string(name, static_cast<std::size_t>(size));
}

std::string process_identity(pid_t process) {
  const std::string start = start_time(process), space = namespace_id("pid");
  return start.empty() || space.empty() ? "" : fmt::format("{} {} {}", process, start, space);
}

bool has_ended(const std::string& identity) {
  pid_t process = 0;
  std::string start, space;
  std::istringstream fields(identity);
  fields >> process >> start;
  std::getline(fields >> std::ws, space);
  if (!fields || process <= 0 || process == ::getpid() || space != namespace_id("pid")) return false;
  const Descriptor file(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!file && errno == ESRCH) return true;
  pollfd ended{file.get(), POLLIN, 0};  // without a descriptor it is -1, which poll ignores
  if (::poll(&ended, 1, 0) > 0) return true;
  const std::string now = start_time(process);
  return !now.empty() && now != start;  // the id belongs to a newer process
}

}  // namespace lockstep
