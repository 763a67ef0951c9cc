// lockstep-run --hosts: both ends of it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/hosts_options_internal.h"

struct HostsArguments {
  std::string list, file, ssh = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15", remote_path;
  std::vector<std::string> exported;
  bool only_preflight = false, no_preflight = false;
  bool is_wanted() const { return !list.empty() || !file.empty(); }
};

// One write for a line: what several runs write to one terminal stays readable.
void print_line(const std::string& text, bool is_stderr);

// The options that were given, for the launchers on the hosts: "--name=value"; without those about hosts.
std::vector<std::string> flags_of(const CLI::App& app);
lockstep::parallel::HostsOptions to_hosts(const HostsArguments& arguments, std::vector<std::string> flags);
// Looks at the hosts and runs the job on them. Returns the exit code.
int run_hosts(const HostsArguments& arguments, lockstep::parallel::HostsOptions options);

// On a host: reads from stdin what to do, and makes folder and environment those of the job.
lockstep::parallel::Assignment take_assignment();
