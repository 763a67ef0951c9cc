// Reads any text: the result is a link on which every message takes a finite time, or an error with a short text.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/parallel/simulate/simulate.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    const par::Link link = par::parse_link(std::as_bytes(std::span(data, size)), "fuzz");
    if (!std::isfinite(link.latency) || link.latency < 0 || !std::isfinite(link.bandwidth)) std::abort();
    if (!(link.bandwidth > 0) || !std::isfinite(link.seconds(1e18))) std::abort();
    par::Simulation simulation(link);
  } catch (const ls::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  }
}
