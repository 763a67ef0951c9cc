// Ports for the servers of a test.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

// Returns a port of the loopback address that is free, and below the range from which the system picks ports (32768
// and up). Each call, and each process that starts at about the same time, gets another port.
inline int free_port() {
  constexpr int kFirst = 1024, kCount = 31000;
  static int calls = 0;
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = kFirst + (::getpid() * 64 + calls++) % kCount;
    const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int reuse = 1;
    ::setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    const bool free = ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    ::close(probe);
    if (free) return port;
  }
  throw std::runtime_error("no free port from 1024 to 32023");
}
