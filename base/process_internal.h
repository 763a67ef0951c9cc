// Processes of this host, recognised after their numbers have been used again.
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep {

// The boot of this host and one namespace of this process, such as "net" or "pid". Empty, with errno set, if either
// cannot be read.
std::string namespace_id(const char* kind);
// Identifies a process of this host among those of all hosts: its id, start time, boot and pid namespace. Empty if
// /proc cannot be read.
std::string process_identity(pid_t process);
// Whether another process of this host and pid namespace has ended. False if that cannot be found out.
bool has_ended(const std::string& identity);

}  // namespace lockstep
