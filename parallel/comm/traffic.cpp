#include "lockstep/parallel/comm/traffic.h"

#include <algorithm>
#include <tuple>

namespace lockstep::parallel {

const char* name(Phase phase) {
  constexpr const char* kNames[kPhaseCount] = {
      "other",   "inputs",  "parameters",      "outputs",     "loss gradient",       "gradients",
      "buffers", "offload", "keys and values", "activations", "activation gradients"};
  return kNames[static_cast<std::size_t>(phase)];
}

namespace {

void add_to(std::vector<LinkTraffic>& links, const LinkTraffic& wanted) {
  const auto key = [](const LinkTraffic& link) { return std::tuple(link.from, link.to, link.phase); };
  const auto at = std::ranges::lower_bound(links, key(wanted), {}, key);
  if (at == links.end() || key(*at) != key(wanted)) {
    links.insert(at, wanted);
    return;
  }
  at->bytes += wanted.bytes;
  at->transfers += wanted.transfers;
}

template <class Wanted>
std::int64_t sum_where(const std::vector<LinkTraffic>& links, Wanted wanted) {
  std::int64_t sum = 0;
  for (const LinkTraffic& link : links) sum += wanted(link) ? link.bytes : 0;
  return sum;
}

}  // namespace

void TrafficStats::add(int from, int to, Phase phase, std::int64_t bytes) { add({from, to, phase, bytes, 1}); }

void TrafficStats::add(const LinkTraffic& link) {
  if (link.bytes == 0) return;
  add_to(links_, link);
  add_to(step_links_, link);
}

void TrafficStats::add(const TrafficStats& other) {
  for (const LinkTraffic& link : other.links_) add_to(links_, link);
  for (const LinkTraffic& link : other.step_links_) add_to(step_links_, link);
}

void TrafficStats::begin_step() {
  step_links_.clear();
  ++steps_;
}

void TrafficStats::open_step() {
  if (!is_open_) begin_step();
  is_open_ = true;
}

std::int64_t TrafficStats::bytes() const {
  return sum_where(links_, [](const LinkTraffic&) { return true; });
}
std::int64_t TrafficStats::bytes(Phase phase) const {
  return sum_where(links_, [phase](const LinkTraffic& link) { return link.phase == phase; });
}
std::int64_t TrafficStats::bytes_from(int end) const {
  return sum_where(links_, [end](const LinkTraffic& link) { return link.from == end; });
}
std::int64_t TrafficStats::bytes_to(int end) const {
  return sum_where(links_, [end](const LinkTraffic& link) { return link.to == end; });
}

}  // namespace lockstep::parallel
