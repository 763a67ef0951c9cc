// Lets another thread draw where this one does: in the modules that run here.
#pragma once

#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::random {

// The innermost guard of the calling thread; null outside of modules.
const SiteGuard* innermost_site_guard();

// While it exists, the calling thread draws as the one whose innermost guard is `guard`, which must outlive it.
class SiteContext {
 public:
  explicit SiteContext(const SiteGuard* guard);
  ~SiteContext();
  SiteContext(const SiteContext&) = delete;
  SiteContext& operator=(const SiteContext&) = delete;

 private:
  const SiteGuard* previous_;
};

}  // namespace lockstep::random
