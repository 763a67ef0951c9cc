/// \file
/// A simulated network: how long messages take, and a clock for each rank.
///
/// A message of m bytes takes latency + m / bandwidth. Each rank has one port in each direction: it sends one message
/// at a time, and receives one at a time (so n - 1 devices that send to device 0 share its port). Clocks show the
/// model's prediction; nothing waits, and real time has no effect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/parallel/simulate/hops.h"

namespace lockstep::parallel {

/// The two numbers of a link (alpha and 1 / beta in the literature).
struct Link {
  double latency = 0;                                                         ///< seconds
  double bandwidth = 0;                                                       ///< bytes a second, in each direction
  double seconds(double bytes) const { return latency + bytes / bandwidth; }  ///< of one message
};

/// A link that has a name.
struct NamedLink {
  std::string name;  ///< "10GbE"
  Link link;         ///< its two numbers
};
/// NVLink, PCIe4, 100GbE and 10GbE: the nominal rates of NVLink 4 (18 links), PCIe 4.0 x16 and Ethernet in one
/// direction, and typical latencies of messages between two processes. For real hardware measure your own.
std::vector<NamedLink> link_presets();
/// Returns a preset by name, or reads a JSON file {"latency_us": 12, "gigabytes_per_second": 1.1} if the argument
/// contains '/' or '.'. Throws InvalidArgument for an unknown name, IoError for a file that cannot be read or is
/// invalid.
Link find_link(const std::string& name_or_file);
/// Parses the text of such a file; error messages name it `name`.
Link parse_link(std::span<const std::byte> text, const std::string& name);

/// Simulates `steps` steps of messages whose elements have `item_bytes` bytes. `times` holds the time at which each
/// rank can begin, and on return the time at which it is done. A rank begins a step after all its messages of the
/// previous step.
void simulate(const Link& link, int steps, FunctionRef<std::vector<Hop>(int step)> hops, double item_bytes,
              std::vector<double>& times);

/// One rank's simulation: its link, and its clock in seconds. Each rank needs its own; splits and duplicates of a
/// group share it. Collectives of one group use the network one after another; those of different groups do not delay
/// each other. Only Work::wait advances the clock to the end of an operation: is_completed tells whether the operation
/// is complete in real time.
class Simulation {
 public:
  /// Throws InvalidArgument for a latency below 0 or a bandwidth that is not above 0.
  explicit Simulation(const Link& link);
  const Link& link() const { return link_; }   ///< the simulated link
  double seconds() const { return seconds_; }  ///< the clock
  /// Advances the clock by a computation, during which started collectives continue. Throws InvalidArgument below 0.
  void compute(double seconds);
  /// Advances the clock to `seconds` if it is earlier, as at the end of a wait.
  void wait_until(double seconds) { seconds_ = seconds_ < seconds ? seconds : seconds_; }

 private:
  Link link_;
  double seconds_ = 0;
};

}  // namespace lockstep::parallel
