// Shared by the tests of traces: a small model, and the events of one kind.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;
using namespace lockstep::parallel;

namespace trace_test {

struct Net : nn::Module {
  nn::Linear& one = add<nn::Linear>("one", 3, 4);
  nn::Linear& two = add<nn::Linear>("two", 4, 1);
  Tensor forward(const Tensor& x) const override { return two(relu(one(x))); }
};

inline std::vector<TraceEvent> of_kind(const Trace& trace, TraceKind kind) {
  std::vector<TraceEvent> found;
  std::ranges::copy_if(trace.events, std::back_inserter(found),
                       [kind](const TraceEvent& event) { return event.kind == kind; });
  return found;
}

}  // namespace trace_test
using namespace trace_test;
