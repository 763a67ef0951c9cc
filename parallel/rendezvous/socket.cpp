#include "lockstep/parallel/rendezvous/socket_internal.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// --- abstract Unix sockets ------------------------------------------------------------------------------------------

namespace {

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

// A leading zero byte makes the name abstract; the length, not a final zero, ends the name.
Address abstract_address(const std::string& name) {
  Address out;
  out.address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(!name.empty() && name.size() < sizeof(out.address.sun_path),
                 "socket name of {} bytes: 1 to {} are allowed", name.size(), sizeof(out.address.sun_path) - 1);
  std::memcpy(out.address.sun_path + 1, name.data(), name.size());
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

Descriptor open_socket(SocketKind kind) {
  const int type = kind == SocketKind::kStream ? SOCK_STREAM | SOCK_NONBLOCK : SOCK_SEQPACKET;
  return Descriptor(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
}

}  // namespace

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
    return {};
  return socket;
}

Descriptor connect_abstract(const std::string& name, SocketKind kind) {
  const Address address = abstract_address(name);
  Descriptor socket = open_socket(kind);
  if (!socket) return {};
  const int result = uninterrupted(
      [&] { return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size); });
  if (result != 0) return {};
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

bool wait_for(const Descriptor& socket, short events, Deadline& deadline) {
  for (;;) {
    const std::chrono::milliseconds slice = deadline.slice();  // first: it may move the deadline
    pollfd ready{socket.get(), events, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(slice.count()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR && errno != EAGAIN)
      throw CommError(fmt::format("store: cannot wait: {}", reason(errno)));
    if (deadline.passed()) return false;
  }
}

Transmission send_all(Stream& stream, std::string_view bytes, Deadline& deadline) {
  for (std::size_t sent = 0;;) {
    const Transmission transfer = stream.send(bytes, sent);
    if (transfer != Transmission::kWouldBlock || !wait_for(stream.socket(), stream.events(POLLOUT), deadline))
      return transfer;
  }
}

// Reads first without waiting: the stream may hold bytes that are no longer in its socket.
Transmission read_some(Stream& stream, std::string& into, std::size_t most, Deadline& deadline) {
  for (;;) {
    const Transmission transfer = stream.receive(into, most);
    if (transfer != Transmission::kWouldBlock || !wait_for(stream.socket(), stream.events(POLLIN), deadline))
      return transfer;
  }
}

// --- TCP ------------------------------------------------------------------------------------------------------------

namespace {

const sockaddr* pointer(const TcpAddress& address) { return reinterpret_cast<const sockaddr*>(&address.storage); }

void set_option(const Descriptor& socket, int level, int name, int value) {
  // No option is needed for correct results, so failures are ignored.
  static_cast<void>(::setsockopt(socket.get(), level, name, &value, sizeof(value)));
}

// Empty if the system does not support the address family. Throws without file descriptors, as a retry would not
// help.
Descriptor open_socket(const TcpAddress& address) {
  Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket && is_out_of_descriptors(errno))
    throw CommError(fmt::format("cannot make a socket for {}: {}", address.to_string(), reason(errno)));
  return socket;
}

template <class Call>
TcpAddress ask(const Descriptor& socket, Call call) {
  TcpAddress out;
  out.size = sizeof(out.storage);
  if (call(socket.get(), reinterpret_cast<sockaddr*>(&out.storage), &out.size) != 0) out = {};
  return out;
}

void add_reason(std::string& error, const TcpAddress& address, int number) {
  error += fmt::format("{}{}: {}", error.empty() ? "" : "; ", address.to_string(), reason(number));
}

// If no process listens, the kernel may give a local client the requested port, and the client connects to itself.
bool is_connected_with_itself(const Descriptor& socket) {
  return address_of(socket).to_string() == peer_address_of(socket).to_string();
}

}  // namespace

int TcpAddress::port() const {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

std::string TcpAddress::host() const {
  char host[NI_MAXHOST];
  if (::getnameinfo(pointer(*this), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "unknown";
  return host;
}

std::string TcpAddress::to_string() const {
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host(), port()) : fmt::format("{}:{}", host(), port());
}

std::vector<TcpAddress> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  errno = 0;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<TcpAddress> out;
  for (const addrinfo* entry = failed ? nullptr : list; entry; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    TcpAddress& address = out.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
  }
  if (out.empty() && is_out_of_descriptors(errno))
    throw CommError(fmt::format("cannot look up the host {}: {}", in_quotes(host), reason(errno)));
  if (out.empty())
    throw UnknownHost(
        fmt::format("the host {} has no address: {}\nCheck the name, and whether this host can resolve it",
                    in_quotes(host), failed == EAI_SYSTEM ? reason(errno) : ::gai_strerror(failed)));
  return out;
}

Descriptor listen_tcp(const std::vector<TcpAddress>& addresses, std::string& error) {
  int last = 0;
  for (const TcpAddress& address : addresses) {
    Descriptor socket = open_socket(address);
    // Allows a port whose last connections linger, but not a port on which a process listens.
    if (socket) set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (socket && address.storage.ss_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (socket && ::bind(socket.get(), pointer(address), address.size) == 0 && ::listen(socket.get(), SOMAXCONN) == 0)
      return socket;
    last = errno;
    add_reason(error, address, last);
  }
  errno = last;
  return {};
}

namespace {

// The kernel's numbers of the sockets that listen at the port. A line of its list has the local address in its second
// field ("0100007F:7530"), the state in the fourth ("0A": listens) and the number in the tenth.
std::vector<std::string> listening_sockets(int port) {
  std::vector<std::string> out;
  for (const char* list : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(list);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string field[10];
      for (std::string& text : field) fields >> text;
      if (field[1].ends_with(fmt::format(":{:04X}", port)) && field[3] == "0A")
        out.push_back(fmt::format("socket:[{}]", field[9]));
    }
  }
  return out;
}

bool has_open(const std::filesystem::path& process, const std::vector<std::string>& sockets) {
  std::error_code ignored;  // from processes of other users, or that end meanwhile
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(entry, ignored).string();
    if (std::ranges::find(sockets, target) != sockets.end()) return true;
  }
  return false;
}

}  // namespace

Listener find_listener(int port) {
  const std::vector<std::string> sockets = listening_sockets(port);
  std::error_code ignored;
  if (sockets.empty()) return {};
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto pid = whole_number<pid_t>(entry.path().filename().string());
    if (!pid || !has_open(entry.path(), sockets)) continue;
    Listener out{.pid = *pid};
    std::ifstream name(entry.path() / "comm");
    std::getline(name, out.program);
    return out;
  }
  return {};
}

TcpAddress address_of(const Descriptor& socket) { return ask(socket, ::getsockname); }
TcpAddress peer_address_of(const Descriptor& socket) { return ask(socket, ::getpeername); }

namespace {

// Returns 0, or the error.
int connect_once(const Descriptor& socket, const TcpAddress& address, Deadline& deadline) {
  int number = ::connect(socket.get(), pointer(address), address.size) == 0 ? 0 : errno;
  if (number == EINPROGRESS || number == EINTR) {
    socklen_t size = sizeof(number);
    if (!wait_for(socket, POLLOUT, deadline)) return ETIMEDOUT;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &number, &size) != 0) return errno;
  }
  if (number == 0 && is_connected_with_itself(socket)) {
    const linger no_linger{1, 0};  // frees the port without lingering
    static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger)));
    number = ECONNREFUSED;
  }
  return number;
}

}  // namespace

// A listener whose queue is full drops the request. The kernel repeats it after 1, 3 and 7 s, too rarely while others
// flood the port; a new socket sends another one at once.
Descriptor connect_tcp(const TcpAddress& address, Deadline& deadline, std::string& error) {
  for (std::chrono::milliseconds attempt{100};; attempt *= 2) {
    const std::chrono::milliseconds limit = std::min(attempt, deadline.left());
    Deadline until(limit);
    Descriptor socket = open_socket(address);
    const int number = socket ? connect_once(socket, address, until) : errno;
    if (number == 0) {
      tune_tcp(socket);
      return socket;
    }
    deadline.waited(limit);
    if (number == ETIMEDOUT && !deadline.passed()) continue;
    add_reason(error, address, number);
    return {};
  }
}

std::string address_towards(const std::vector<TcpAddress>& addresses) {
  for (const TcpAddress& address : addresses) {
    const Descriptor socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket && ::connect(socket.get(), pointer(address), address.size) == 0) return address_of(socket).host();
  }
  return {};
}

std::string address_on_network() {
  constexpr const char* kElsewhere = "192.0.2.1";  // a reserved address (RFC 5737); nothing is sent to it
  const std::string own = address_towards(resolve(kElsewhere, 9));
  return own.empty() ? "127.0.0.1" : own;
}

void tune_tcp(const Descriptor& socket) {
  constexpr int kIdleSeconds = 10, kProbeSeconds = 5, kProbes = 4;
  // Keep-alive does not probe while bytes are in flight: without this option a request to a dead host ends after 15
  // minutes.
  constexpr int kUnconfirmedMilliseconds = 1000 * (kIdleSeconds + kProbeSeconds * kProbes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnconfirmedMilliseconds);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

}  // namespace lockstep::parallel
