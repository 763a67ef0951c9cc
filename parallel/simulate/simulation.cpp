#include "lockstep/parallel/simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kLargestFile = 64 * 1024;
constexpr double kLongest = 3600, kSlowest = 1, kFastest = 1e18;  // limits of links in files: seconds, bytes/second

void check_link(const Link& link) {
  LOCKSTEP_CHECK(
      std::isfinite(link.latency) && link.latency >= 0 && std::isfinite(link.bandwidth) && link.bandwidth > 0,
      "simulation: a link of {} s and {} bytes/s; expected a latency from 0 and a bandwidth above 0", link.latency,
      link.bandwidth);
}

}  // namespace

Link parse_link(std::span<const std::byte> text, const std::string& name) {
  const char* const first = reinterpret_cast<const char*>(text.data());
  const auto json = nlohmann::json::parse(first, first + text.size(), nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* key) {
    const bool is_there = json.is_object() && json.contains(key) && json[key].is_number();
    if (!is_there)
      throw IoError(fmt::format("{}: no number \"{}\"\nExpected {{\"latency_us\": 12, \"gigabytes_per_second\": 1.1}}",
                                name, key));
    return json[key].get<double>();
  };
  const Link link{.latency = number("latency_us") * 1e-6, .bandwidth = number("gigabytes_per_second") * 1e9};
  if (!(link.latency >= 0 && link.latency <= kLongest && link.bandwidth >= kSlowest && link.bandwidth <= kFastest))
    throw IoError(fmt::format("{}: latency_us is {}, gigabytes_per_second {}; expected 0 to {}, and {} to {}", name,
                              link.latency * 1e6, link.bandwidth / 1e9, kLongest * 1e6, kSlowest / 1e9,
                              kFastest / 1e9));
  return link;
}

std::vector<NamedLink> link_presets() {
  return {{"NVLink", {2e-6, 450e9}}, {"PCIe4", {4e-6, 32e9}}, {"100GbE", {10e-6, 12.5e9}}, {"10GbE", {30e-6, 1.25e9}}};
}

Link find_link(const std::string& name_or_file) {
  std::string names;
  for (const NamedLink& preset : link_presets()) {
    if (preset.name == name_or_file) return preset.link;
    names += (names.empty() ? "" : ", ") + preset.name;
  }
  LOCKSTEP_CHECK(name_or_file.find_first_of("/.") != std::string::npos,
                 "simulation: there is no link \"{}\"; expected one of {}, or a JSON file (./link.json)",
                 name_or_file.substr(0, 80), names);
  return parse_link(read_file(name_or_file, kLargestFile), name_or_file);
}

void simulate(const Link& link, int steps, FunctionRef<std::vector<Hop>(int step)> hops, double item_bytes,
              std::vector<double>& times) {
  std::vector<double> sends, receives(times.size(), 0), next;  // ends of the ports' use
  for (int step = 0; step < steps; ++step) {
    next = sends = times;
    for (const Hop& hop : hops(step)) {
      const auto from = static_cast<std::size_t>(hop.from), to = static_cast<std::size_t>(hop.to);
      const double bytes = static_cast<double>(hop.end - hop.begin) * item_bytes;
      const double sent = std::max(sends[from], receives[to]) + bytes / link.bandwidth;
      sends[from] = receives[to] = sent;
      next[from] = std::max(next[from], sent);
      next[to] = std::max(next[to], sent + link.latency);
    }
    times.swap(next);
  }
}

Simulation::Simulation(const Link& link) : link_(link) { check_link(link); }

void Simulation::compute(double seconds) {
  LOCKSTEP_CHECK(std::isfinite(seconds) && seconds >= 0, "simulation: a rank computes for {} s, expected 0 or more",
                 seconds);
  seconds_ += seconds;
}

}  // namespace lockstep::parallel
