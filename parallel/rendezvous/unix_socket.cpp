#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

// A leading zero byte makes it abstract; the length, not a final zero, ends it.
Address abstract_address(const std::string& name) {
  Address out;
  out.address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(!name.empty() && name.size() < sizeof(out.address.sun_path), "socket name of {} bytes: 1 to {} go",
                 name.size(), sizeof(out.address.sun_path) - 1);
  std::memcpy(out.address.sun_path + 1, name.data(), name.size());
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

Descriptor open_socket(SocketKind kind) {
  const int type = kind == SocketKind::kStream ? SOCK_STREAM | SOCK_NONBLOCK : SOCK_SEQPACKET;
  return Descriptor(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
}

// Closing the socket must not hide why.
Descriptor failed(Descriptor socket) {
  const int error = errno;
  socket.reset();
  errno = error;
  return {};
}

}  // namespace

void Descriptor::reset() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));  // after EINTR it is closed as well (Linux)
}

std::string reason(int error) {
  char buffer[128];
  std::string text =
      ::strerror_r(error, buffer, sizeof(buffer));  // works without file descriptors, under UBSan as well
  rlimit limit{};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    text += fmt::format(": this process may have {}; raise the limit with ulimit -n", limit.rlim_cur);
  return text;
}

std::uint64_t file_size_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

Peer peer_of(const Descriptor& socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {-1, uid_t(-1)};
  return {credentials.pid, credentials.uid};
}

bool is_trusted(const Peer& peer) { return peer.uid == ::geteuid() || peer.uid == 0; }

Descriptor listen_abstract(const std::string& name, SocketKind kind) {
  constexpr int kBacklog = 128;
  const Address address = abstract_address(name);
  Descriptor socket = open_socket(kind);
  if (!socket) return {};
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return failed(std::move(socket));
  return socket;
}

Descriptor connect_abstract(const std::string& name, SocketKind kind) {
  const Address address = abstract_address(name);
  Descriptor socket = open_socket(kind);
  if (!socket) return {};
  const int result = uninterrupted(
      [&] { return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size); });
  if (result != 0) return failed(std::move(socket));
  return socket;
}

// The kernel lists all sockets of this network namespace, one a line, with their names at the end.
bool is_abstract_name_taken(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  const std::string end = " @" + name;
  for (std::string line; std::getline(sockets, line);) {
    if (line.ends_with(end)) return true;
  }
  return false;
}

Transmission receive_some(const Descriptor& socket, std::string& into, std::size_t most) {
  char buffer[16 << 10];
  const ssize_t count =
      uninterrupted([&] { return ::recv(socket.get(), buffer, std::min(most, sizeof(buffer)), MSG_DONTWAIT); });
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Transmission::kWouldBlock;
  if (count <= 0) return Transmission::kClosed;
  into.append(buffer, static_cast<std::size_t>(count));
  return Transmission::kDone;
}

Transmission send_some(const Descriptor& socket, std::string_view data, std::size_t& offset) {
  while (offset < data.size()) {
    const ssize_t count = uninterrupted(
        [&] { return ::send(socket.get(), data.data() + offset, data.size() - offset, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Transmission::kWouldBlock;
    if (count < 0) return Transmission::kClosed;
    offset += static_cast<std::size_t>(count);
  }
  return Transmission::kDone;
}

}  // namespace lockstep::parallel
