/// \file
/// Which sample the calling thread makes: random transforms draw by it.
#pragma once

#include <cstdint>

#include "lockstep/version.h"

namespace lockstep::data::detail {

// The draws of a sample are functions of seed, epoch, index and their number; without an index they are ordinary draws.
struct SampleContext {
  std::int64_t epoch = 0, index = -1, draws = 0;
};
SampleContext& sample_context();  // the calling thread's

// Sets the context while it exists.
class SampleGuard {
 public:
  explicit SampleGuard(const SampleContext& context) : before_(sample_context()) { sample_context() = context; }
  ~SampleGuard() { sample_context() = before_; }
  SampleGuard(const SampleGuard&) = delete;
  SampleGuard& operator=(const SampleGuard&) = delete;

 private:
  SampleContext before_;
};

}  // namespace lockstep::data::detail
