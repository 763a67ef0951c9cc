// Released memory is requested on the thread that calls an operation, also where the pool computes.
#include "tests/support/moving_storage.h"

TEST_CASE("threads of the pool do not request released memory") {
  const int before = ls::num_threads();
  ls::set_num_threads(3);
  const ls::Tensor values = ls::sin(ls::arange(1 << 18)).reshape({512, 512}), other = values.t().contiguous();
  const Moving moving(values);
  const std::vector<std::pair<const char*, ls::Tensor (*)(const ls::Tensor&, const ls::Tensor&)>> operations = {
      {"add", [](const ls::Tensor& x, const ls::Tensor& y) { return y + x; }},
      {"strided add", [](const ls::Tensor& x, const ls::Tensor& y) { return x.t() + y; }},
      {"exp", [](const ls::Tensor& x, const ls::Tensor&) { return x.exp(); }},
      {"sum", [](const ls::Tensor& x, const ls::Tensor&) { return x.sum({1}); }},
      {"softmax", [](const ls::Tensor& x, const ls::Tensor&) { return x.softmax(1); }},
      {"matmul", [](const ls::Tensor& x, const ls::Tensor& y) { return x.matmul(y.t()); }},
      {"index_select", [](const ls::Tensor& x, const ls::Tensor&) { return x.index_select(0, ls::arange(400)); }},
      {"norm", [](const ls::Tensor& x, const ls::Tensor&) { return x.norm(); }},
      {"clone", [](const ls::Tensor& x, const ls::Tensor&) { return x.t().clone(); }},
  };
  for (const auto& [name, run] : operations) {
    const char* const operation = name;
    CAPTURE(operation);
    const ls::Tensor expected = run(values, other);
    moving.release();
    moving.supplier->requests = 0;
    moving.supplier->requester = {};
    CHECK(same_bits(run(moving.tensor, other), expected));
    CHECK(moving.supplier->requests == 1);
    CHECK(moving.supplier->requester == std::this_thread::get_id());
  }
  ls::set_num_threads(before);
}
