#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "lockstep/base/device.h"
#include "lockstep/base/environment_internal.h"

namespace lockstep {

namespace {

// The first line of one of the kernel's small files; empty if it cannot be read.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The smallest limit of a control group and its ancestors; 0 if there is none.
int cores_of_groups(const std::string& root, std::string path) {
  int least = 0;
  for (;;) {
    std::string quota = first_line(root + path + "/cpu.max");
    if (quota.empty())  // version 1
      quota = first_line(root + path + "/cpu.cfs_quota_us") + " " + first_line(root + path + "/cpu.cfs_period_us");
    const int cores = cores_of_quota(quota);
    if (cores > 0) least = least == 0 ? cores : std::min(least, cores);
    if (path.empty()) return least;
    path.resize(std::min(path.rfind('/'), path.size()));  // the parent of "/a" is ""
  }
}

}  // namespace

int cores_of_quota(const std::string& text) {
  std::istringstream stream(text);
  std::int64_t quota = 0, period = 0;
  if (!(stream >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::clamp<std::int64_t>((quota + period - 1) / period, 1, 1 << 20));
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  int count = ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  // Lines are "number:controllers:path"; version 2 has one, with number 0 and no controllers.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const int limit = cores_of_groups(controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", path);
    if (limit > 0) count = std::min(count, limit);
  }
  return std::max(count, 1);
}

}  // namespace lockstep
