// The plan of the buckets: which parameters share one, and in which order.
#include "lockstep/parallel/replicated/buckets/bucket_plan_internal.h"
#include "tests/support/testing.h"

namespace par = ls::parallel;

TEST_CASE("buckets: by readiness, closed before their limit, modules in one piece unless they exceed it alone") {
  ls::optim::NamedParameters parameters;
  const auto add = [&](const char* name, std::int64_t n, ls::DType dtype = ls::kFloat32) {
    parameters.emplace_back(name, ls::nn::Parameter(ls::zeros({n}, {.dtype = dtype})));
  };
  add("a.weight", 30), add("a.bias", 10), add("b.weight", 20), add("b.bias", 5), add("c", 5, ls::kFloat64);
  using Positions = std::vector<std::size_t>;
  const auto plan = [&](const Positions& order, std::int64_t first_bytes, std::int64_t bytes) {
    std::vector<Positions> buckets;
    for (const auto& layout : par::plan_buckets(parameters, order, first_bytes, bytes))
      buckets.push_back(layout.parameters);
    return buckets;
  };
  const Positions likely = par::last_to_first(5);
  CHECK(likely == Positions{4, 3, 2, 1, 0});
  // f32 apart from f64; b.bias and b.weight have 100 bytes, a.bias and a.weight 160.
  CHECK(plan(likely, 1000, 1000) == std::vector<Positions>{{4}, {3, 2, 1, 0}});
  CHECK(plan(likely, 1000, 259) == std::vector<Positions>{{4}, {3, 2}, {1, 0}});
  CHECK(plan(likely, 1000, 159) == std::vector<Positions>{{4}, {3, 2, 1}, {0}});  // a alone exceeds 159
  CHECK(plan(likely, 1000, 1) == std::vector<Positions>{{4}, {3}, {2}, {1}, {0}});
  // Only the first bucket has the first limit, and a module is not cut for it.
  CHECK(plan({3, 2, 1, 0, 4}, 20, 1000) == std::vector<Positions>{{3, 2}, {1, 0}, {4}});
  // A module has the place of its last gradient.
  CHECK(plan({3, 1, 0, 2, 4}, 160, 160) == std::vector<Positions>{{1, 0}, {3, 2}, {4}});
  CHECK(par::plan_buckets(parameters, likely, 1000, 1000)[1].offsets ==
        std::vector<std::int64_t>{0, 16, 48, 64});  // aligned to 64 bytes
}
