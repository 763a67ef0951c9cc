// AveragedModel: the exponential and the plain mean, buffers, saving, and errors.
#include "tests/optim/support.h"

namespace {

struct Net : ls::nn::Module {
  ls::nn::Parameter& w = add_parameter("w", ls::zeros({2}));
  ls::nn::Buffer& seen = add_buffer("seen", ls::zeros({1}));
  ls::nn::Buffer& steps = add_buffer("steps", ls::zeros({}, {.dtype = ls::kInt64}));
  void set(double value) {
    w->detach().fill_(value);
    seen->fill_(10 * value);
    steps->fill_(value);
  }
};

}  // namespace

TEST_CASE("the average is the mean of all updates, or moves by 1 - decay") {
  Net net, mean, moving;
  ls::optim::AveragedModel swa(mean, {.use_buffers = true}), ema(moving, {.decay = 0.75});
  for (const double value : {4.0, 8.0, 0.0}) {
    net.set(value);
    swa.update_parameters(net);
    ema.update_parameters(net);
  }
  CHECK(values(mean.w)[1] == doctest::Approx(4));
  CHECK(values(mean.seen)[0] == doctest::Approx(40));
  CHECK(values(moving.w)[0] == doctest::Approx(0.75 * (0.75 * 4 + 0.25 * 8)));
  CHECK(values(moving.seen)[0] == 0);  // copied
  CHECK(mean.steps->item<std::int64_t>() == 0);
  CHECK(swa.n_averaged() == 3);
  CHECK(&swa.module() == &mean);
}

TEST_CASE("a tied parameter is averaged once") {
  struct Tied : ls::nn::Module {
    ls::nn::Parameter& first = add_parameter("first", ls::zeros({2}));
    ls::nn::Parameter& second = add_parameter("second", first);
  };
  Tied net, average;
  ls::optim::AveragedModel ema(average, {.decay = 0.5});
  for (const double value : {4.0, 8.0}) {
    net.first->detach().fill_(value);
    ema.update_parameters(net);
  }
  CHECK(values(average.second)[0] == 6);
}

TEST_CASE("a saved and loaded average continues, and states and models that do not fit are refused") {
  Net net, one, two;
  ls::optim::AveragedModel first(one), second(two);
  net.set(2);
  first.update_parameters(net);
  CHECK(first.state_dict().contains("module.w"));
  second.load_state_dict(first.state_dict().clone());
  net.set(6);
  first.update_parameters(net);
  second.update_parameters(net);
  CHECK(same_bits(first.state_dict(), second.state_dict()));
  CHECK(values(two.w)[0] == 4);
  CHECK(contains(error_of([&] { first.update_parameters(ls::nn::Linear(2, 2)); }), "missing"));
  CHECK(contains(error_of([&] { first.load_state_dict({}); }), "\"n_averaged\" is missing"));
  CHECK(contains(error_of([&] { ls::optim::AveragedModel(one, {.decay = 2}); }), "decay is 2"));
  net.w.set_sharding(ls::nn::Sharding::kSharded);
  CHECK(contains(error_of([&] { first.update_parameters(net); }), "distributed over the ranks"));
  CHECK(first.n_averaged() == 2);
}
