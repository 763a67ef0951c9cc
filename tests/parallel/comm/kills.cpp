// One rank is killed or stopped at a numbered point or at a random moment, on shm. scripts/chaos.sh runs more trials.
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/support/kill_sweeps.h"

// The points: these functions interpose those of the C library, for the library and its modules too.
namespace {

template <class Function>
Function* next_of(const char* name) {
  kill_points.pass();
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
int listen(int fd, int queue) noexcept { return next_of<decltype(listen)>("listen")(fd, queue); }
int connect(int fd, const sockaddr* address, socklen_t size) {
  return next_of<decltype(connect)>("connect")(fd, address, size);
}
int accept(int fd, sockaddr* address, socklen_t* size) {
  return next_of<decltype(accept)>("accept")(fd, address, size);
}
int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return next_of<decltype(accept4)>("accept4")(fd, address, size, flags);
}
ssize_t send(int fd, const void* data, size_t size, int flags) {
  return next_of<decltype(send)>("send")(fd, data, size, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return next_of<decltype(sendmsg)>("sendmsg")(fd, message, flags);
}
ssize_t writev(int fd, const iovec* parts, int count) { return next_of<decltype(writev)>("writev")(fd, parts, count); }
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return next_of<decltype(recvmsg)>("recvmsg")(fd, message, flags);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  return next_of<decltype(memfd_create)>("memfd_create")(name, flags);
}
}

TEST_CASE("shm: a rank that is killed at any C library call is named by the others, and soon") {
  sweep_kill_points("shm", 9);
}

TEST_CASE("shm: a rank that is stopped at any C library call is named by the others after the timeout") {
  sweep_stop_points("shm", 61);
}

TEST_CASE("shm: a rank that is killed at a random moment is named by the others, and soon") {
  run_random_kills("shm", 12);
}
