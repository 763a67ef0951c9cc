// Parameters on a releasable storage: what reads a module asks for their memory.
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "support.h"
#include "tests/support/moving_storage.h"

namespace {

using ls::Tensor;

struct Net : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", 5, 7);
  nn::Linear& last = add<nn::Linear>("last", 7, 3);
  Tensor forward(const Tensor& x) const override { return last(ls::tanh(first(x))); }
};

std::vector<Tensor> elements(const nn::Module& module) {
  std::vector<Tensor> out;
  for (const nn::Parameter& p : module.parameters()) out.push_back(p.master().detach().reshape({-1}));
  return out;
}

// Moves all parameters into one releasable storage, one after the other.
Moving gather(const nn::Module& module) {
  Moving unit(ls::cat(elements(module), 0));
  std::int64_t offset = 0;
  for (const nn::Parameter& p : module.parameters()) {
    const Tensor& tensor = p.master();
    nn::replace_elements(tensor, ls::raw::as_strided(unit.tensor, tensor.shape(), tensor.strides(), offset));
    offset += tensor.numel();
  }
  return unit;
}

Tensor loss_of(const nn::Module& module) {
  return module(ls::cos(ls::arange(20).to(ls::kFloat32)).reshape({4, 5})).pow(2).sum();
}

}  // namespace

TEST_CASE("a parameter keeps its identity, hooks and gradient when its elements are replaced") {
  Net net;
  const Tensor before = net.first.weight.master();
  int calls = 0;
  net.first.weight->register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor old_loss = loss_of(net);
  old_loss.backward();
  const Tensor gradient = net.first.weight->grad().clone();
  const Tensor values = before.detach().clone();
  const Moving unit = gather(net);
  CHECK(net.first.weight.master().ref() == before.ref());
  CHECK(before.impl().storage == unit.storage);
  CHECK(same_bits(before.detach(), values));
  CHECK(same_bits(before.grad(), gradient));
  loss_of(net).backward();
  CHECK(calls == 2);
  CHECK(same_bits(before.grad(), gradient + gradient));
  CHECK(contains(error_of([&] { nn::replace_elements(before, ls::zeros({5, 7})); }), "(7, 5)"));
}

TEST_CASE("what reads a module asks for released parameters") {
  ls::manual_seed(1);
  Net plain;
  ls::manual_seed(1);
  Net net;
  const Moving unit = gather(net);
  const std::uint64_t hash = nn::parameter_hash(plain);
  const std::string expected = "released_expected.safetensors", actual = "released_actual.safetensors";
  const auto asks = [&](auto use) {
    unit.release();
    unit.supplier->requests = 0;
    use();
    CHECK(unit.supplier->requests == 1);
  };
  asks([&] { CHECK(nn::parameter_hash(net) == hash); });
  asks([&] { ls::save(net.state_dict(), actual); });
  ls::save(plain.state_dict(), expected);
  const ls::StateDict a = ls::load(actual), b = ls::load(expected);
  for (const auto& [name, tensor] : b) CHECK(same_bits(a.at(name), tensor));
  asks([&] { net.load_state_dict(plain.state_dict()); });
  asks([&] { loss_of(net); });
  unit.release();
  unit.supplier->refuses = true;
  CHECK(contains(error_of([&] { nn::parameter_hash(net); }), "compute inside gathered()"));
  CHECK(contains(error_of([&] { ls::save(net.state_dict(), actual); }), "compute inside gathered()"));
  CHECK(contains(error_of([&] { net.to(ls::kFloat64); }), "compute inside gathered()"));
  CHECK(net.state_dict().size() == 4);
}

TEST_CASE("training with parameters released between forward and backward gives the same bits") {
  ls::manual_seed(2);
  Net plain;
  ls::manual_seed(2);
  Net net;
  const Moving unit = gather(net);
  ls::optim::AdamW expected(plain.parameters(), {.lr = 0.1}), actual(net.parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = loss_of(plain), same = loss_of(net);
    CHECK(same_bits(loss.detach(), same.detach()));
    unit.release();
    loss.backward();
    same.backward();
    unit.move();
    expected.step();
    actual.step();
    expected.zero_grad();
    actual.zero_grad();
    CHECK(nn::parameter_hash(net) == nn::parameter_hash(plain));
  }
}
