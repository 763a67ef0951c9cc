#include "lockstep/base/descriptor_internal.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/base/check_internal.h"

namespace lockstep {

void Descriptor::reset() {
  const int error = errno;
  if (number_ >= 0) ::close(std::exchange(number_, -1));  // Linux closes the descriptor even if EINTR is returned
  errno = error;
}

std::string reason(int error) {
  char buffer[128];
  std::string text = ::strerror_r(error, buffer, sizeof(buffer));  // needs no file descriptors, even under UBSan
  rlimit limit{};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    text += fmt::format(": this process may have {}; raise the limit with ulimit -n", limit.rlim_cur);
  return text;
}

std::uint64_t file_size_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace lockstep
