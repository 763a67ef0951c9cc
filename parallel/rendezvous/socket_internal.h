// Sockets: abstract Unix sockets, TCP, and streams of bytes. An abstract socket has no file, so a killed
// process leaves nothing behind, and the kernel reports the process at the other end.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/descriptor_internal.h"
#include "lockstep/base/error.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"

namespace lockstep::parallel {

// The process at the other end of a socket; on the client's side, the process that called listen.
struct Peer {
  pid_t pid = -1;
  uid_t uid = 0;
};
Peer peer_of(const Descriptor& socket);
// Whether the peer belongs to this user or to root; other peers are rejected.
bool is_trusted(const Peer& peer);

// kStream: a non-blocking stream of bytes. kPackets: whole messages, and calls block.
enum class SocketKind { kStream, kPackets };
// Sockets are close-on-exec. On failure the result is empty and errno has the reason; EADDRINUSE and ECONNREFUSED
// (no process listens) are expected.
Descriptor listen_abstract(const std::string& name, SocketKind kind = SocketKind::kStream);
Descriptor connect_abstract(const std::string& name, SocketKind kind = SocketKind::kStream);
// Whether a socket has the name, listening or not.
bool is_abstract_name_taken(const std::string& name);

// What a read or write of a non-blocking socket did.
enum class Transmission { kDone, kWouldBlock, kClosed };
// Appends the bytes that have arrived, at most `most`.
Transmission receive_some(const Descriptor& socket, std::string& into, std::size_t most);
// Sends `data` from `offset` on, as much as the socket takes, and advances `offset`.
Transmission send_some(const Descriptor& socket, std::string_view data, std::size_t& offset);

// A connection of a store: bytes over a non-blocking socket, plain or encrypted (tls_internal.h). Both calls throw
// CommError if bytes of an encrypted connection were altered.
class Stream {
 public:
  explicit Stream(Descriptor socket) : socket_(std::move(socket)) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual Transmission receive(std::string& into, std::size_t most) { return receive_some(socket_, into, most); }
  virtual Transmission send(std::string_view data, std::size_t& offset) { return send_some(socket_, data, offset); }
  // The events of poll to wait for before another receive (POLLIN) or send (POLLOUT).
  virtual short events(short wanted) const { return wanted; }
  // Whether the peer has sent a proof that it has the job's token. A replayed recording passes as well.
  virtual bool has_proof() const { return false; }
  const Descriptor& socket() const { return socket_; }

 private:
  Descriptor socket_;
};

// Waits until the socket is ready for `events` or closed; false at the deadline.
bool wait_for(const Descriptor& socket, short events, Deadline& deadline);
// Sends all of `bytes`, or reads at most `most` bytes more into `into`. kWouldBlock: the deadline has passed.
Transmission send_all(Stream& stream, std::string_view bytes, Deadline& deadline);
Transmission read_some(Stream& stream, std::string& into, std::size_t most, Deadline& deadline);

// --- TCP ------------------------------------------------------------------------------------------------------------

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int port() const;
  std::string host() const;       // "127.0.0.1", "::1"
  std::string to_string() const;  // "127.0.0.1:29500", "[::1]:29500"
};

// A host name without an address. A retry may succeed: names are announced while the hosts of a job start.
class UnknownHost final : public CommError {
 public:
  using CommError::CommError;
};

// All addresses of `host`, a name or a numeric address. Throws UnknownHost if there is none.
std::vector<TcpAddress> resolve(const std::string& host, int port);

// A socket that listens on the first usable one of `addresses`, and on no other address of this host. Empty if none
// can be used, with the reasons in `error`: "127.0.0.1:80: Permission denied; [::1]:80: Permission denied", and the
// last reason in errno.
Descriptor listen_tcp(const std::vector<TcpAddress>& addresses, std::string& error);
// The process that listens at a port of this host, as far as this user may see it; pid -1 if none is found.
struct Listener {
  pid_t pid = -1;
  std::string program = {};
};
Listener find_listener(int port);
TcpAddress address_of(const Descriptor& socket);       // of this end
TcpAddress peer_address_of(const Descriptor& socket);  // of the other end

// A connection, or empty with the reason in `error`.
Descriptor connect_tcp(const TcpAddress& address, Deadline& deadline, std::string& error);

// This host's address on the network to the first reachable one of `addresses`; empty if none is reachable. Sends
// nothing.
std::string address_towards(const std::vector<TcpAddress>& addresses);

// This host's address on the default route's network; a loopback address if there is none.
std::string address_on_network();

// Sets options for both ends: small frames are sent without delay, and a lost host is noticed within 30 seconds.
void tune_tcp(const Descriptor& socket);

}  // namespace lockstep::parallel
