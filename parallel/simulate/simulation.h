/// \file
/// A simulated network: how long messages take, and a clock for each rank.
///
/// A message of m bytes takes latency + m / bandwidth. Each rank has one port in each direction: what it sends goes out one
/// after another, and so does what it receives (so n - 1 devices that send to device 0 share its port). Clocks say what the
/// model predicts; nothing waits, and no real time enters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/hops.h"
#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/error.h"

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
/// NVLink, PCIe4, 100GbE and 10GbE: the nominal rates of NVLink 4 (18 links), PCIe 4.0 x16 and Ethernet in one direction, and
/// latencies as messages between two processes have them over each. For real hardware measure your own.
std::vector<NamedLink> link_presets();
/// A preset by its name, or a JSON file {"latency_us": 12, "gigabytes_per_second": 1.1}, if there is a '/' or a '.' in it.
/// Throws InvalidArgument for another name, IoError for a file that cannot be read or has other or senseless values.
Link find_link(const std::string& name_or_file);
/// The same from such a file's text; `name` stands for the file in messages.
Link parse_link(std::span<const std::byte> text, const std::string& name);

/// The time of `steps` steps of messages, element by element of `item_bytes`. `times` says when each rank can begin, and
/// afterwards when it is done. A rank begins a step when it has sent and received all of the one before.
void simulate(const Link& link, int steps, FunctionRef<std::vector<Hop>(int step)> hops, double item_bytes,
              std::vector<double>& times);

/// One rank's side of the backend sim: its link, and its clock in seconds. Not to be shared by ranks; splits and duplicates of a
/// group keep it. Collectives of one group follow one another on the network; those of different groups do not get in each
/// other's way.
class Simulation {
 public:
  /// Throws InvalidArgument for a latency below 0 or a bandwidth that is not above 0.
  explicit Simulation(const Link& link);
  const Link& link() const { return link_; }   ///< what it was made with
  double seconds() const { return seconds_; }  ///< the clock
  /// This rank computes for so long; collectives that were started go on meanwhile. Throws InvalidArgument below 0.
  void compute(double seconds);
  /// A wait ends: the clock is at least there.
  void wait_until(double seconds) { seconds_ = seconds_ < seconds ? seconds : seconds_; }

 private:
  Link link_;
  double seconds_ = 0;
};

}  // namespace lockstep::parallel
