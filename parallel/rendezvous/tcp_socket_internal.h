// TCP sockets of the store: listening on one address and reaching one of several, without reverse DNS.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int port() const;
  TcpAddress with_port(int port) const;
  std::string host() const;       // "127.0.0.1", "::1"
  std::string to_string() const;  // "127.0.0.1:29500", "[::1]:29500"
};

// A name that has no address, which may change: names are announced while the hosts of a job start.
class UnknownHost final : public CommError {
 public:
  using CommError::CommError;
};

// All addresses of `host`, a name or a number. Throws UnknownHost where there is none.
std::vector<TcpAddress> resolve(const std::string& host, int port);
// The same, tried again until the deadline. Throws CommTimeout.
std::vector<TcpAddress> resolve(const std::string& host, int port, Deadline& deadline);

// A socket that listens on the first of `addresses` that can be had; no other address of this host reaches it. Empty
// where none can, with the reasons in `error`: "127.0.0.1:80: Permission denied; [::1]:80: Permission denied", and the last
// one in errno.
Descriptor listen_tcp(const std::vector<TcpAddress>& addresses, std::string& error);
// The process that listens at a port of this host, as far as this user may know; pid -1 where nothing is found.
struct Listener {
  pid_t pid = -1;
  std::string program = {};
};
Listener find_listener(int port);
TcpAddress address_of(const Descriptor& socket);       // its own
TcpAddress peer_address_of(const Descriptor& socket);  // of the other end

// A connection, or empty with the reason in `error`.
Descriptor connect_tcp(const TcpAddress& address, Deadline& deadline, std::string& error);

// This host's address on the network that leads to the first of `addresses` that can be reached; empty where none can.
// Nothing is sent.
std::string address_towards(const std::vector<TcpAddress>& addresses);

// This host's address on the network that leads to the rest of the world; a loopback one where there is none.
std::string address_on_network();

// For both ends: small frames go out at once, and a host that has vanished is noticed within half a minute.
void tune_tcp(const Descriptor& socket);

}  // namespace lockstep::parallel
