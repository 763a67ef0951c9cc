// Where modules draw random numbers: a site is the path below the module that was called.
#include <set>

#include "lockstep/tensor/random/random_draws_internal.h"
#include "support.h"

namespace {

using ls::Tensor;

struct Block : nn::Module {
  nn::Dropout& first = add<nn::Dropout>("first", 0.5);
  nn::Dropout& second = add<nn::Dropout>("second", 0.5);
  Tensor forward(const Tensor& x) const override { return first(x) + 3 * second(x); }
};

struct Net : nn::Module {
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  explicit Net(int depth) {
    for (int i = 0; i < depth; ++i) blocks.push_back(Block());
  }
  Tensor forward(const Tensor& x) const override {
    std::vector<Tensor> y;
    for (const nn::Module& block : blocks) y.push_back(block(x));
    return ls::stack(y);
  }
};

struct Site : nn::Module {
  Tensor forward(const Tensor&) const override {
    return ls::tensor({static_cast<std::int64_t>(ls::random::current_place().site)});
  }
};

struct Outer : nn::Module {
  nn::Sequential& body = add<nn::Sequential>("body", Site());
  nn::ModuleList& list = add<nn::ModuleList>("list", Site());
  Site helper;
  Tensor forward(const Tensor& x) const override { return ls::cat({body(x), list[0](x), helper(x)}); }
};

std::vector<std::int64_t> sites(const nn::Module& module) { return module(Tensor()).to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("equal layers at different paths draw different numbers, and each does so independently of the others") {
  const Tensor x = ls::ones({64});
  ls::manual_seed(1);
  const Tensor three = Net(3)(x);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < i; ++j) CHECK(!ls::equal(three[i], three[j]));
  ls::manual_seed(1);
  const Net net(2);
  CHECK(ls::equal(net(x), three.narrow(0, 0, 2)));
  CHECK(!ls::equal(net(x), three.narrow(0, 0, 2)));
}

TEST_CASE("a site is the path below the module that was called, through a list that does not run itself") {
  Outer net;
  nn::Sequential wrapped;
  wrapped.push_back(Outer());
  const std::vector<std::int64_t> in_net = sites(net), in_wrapped = sites(wrapped);
  CHECK(std::set<std::int64_t>(in_net.begin(), in_net.end()).size() == 3);
  CHECK(in_net[0] != in_wrapped[0]);  // "body.0", "0.body.0"
  CHECK(sites(wrapped[0])[0] == in_net[0]);
  CHECK(in_net[2] == sites(Site())[0]);  // not registered: a path of its own
  CHECK(ls::random::current_place().site == ls::random::kUserSite);
}

TEST_CASE("a module that was moved has the sites and error paths of its new place") {
  struct Thrower : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", 2, 2);
    Tensor forward(const Tensor& x) const override { return fc(x); }
  };
  nn::Sequential inner;
  inner.push_back(Thrower());
  nn::ModuleList list(std::move(inner));
  struct Model : nn::Module {
    nn::ModuleList& parts;
    explicit Model(nn::ModuleList list) : parts(add("parts", std::move(list))) {}
    Tensor forward(const Tensor& x) const override { return parts[0](x); }
  };
  const Model model(std::move(list));
  CHECK(contains(error_of([&] { model(ls::ones({3})); }), "parts.0.0.fc: linear:"));
}

TEST_CASE("initial values follow from the number of the initialisation and the element alone") {
  ls::manual_seed(4);
  const nn::Linear first(3, 5), second(7, 2);
  ls::manual_seed(4);
  const nn::Linear longer(3, 50);
  ls::rand({9});
  const nn::Linear again(7, 2);
  CHECK(ls::equal(longer.weight->narrow(0, 0, 5), first.weight));
  CHECK(ls::equal(again.weight, second.weight));
  CHECK(ls::equal(again.bias, second.bias));
  CHECK(!ls::equal(ls::zeros({2}), second.bias));
}

TEST_CASE("dropout's gradient has the mask of its forward") {
  const Tensor x = ls::randn({40, 5}).requires_grad_();
  const Tensor y = ls::dropout(x, 0.4);
  ls::rand({3});
  ls::sum(y).backward();
  CHECK(ls::equal(x.grad() * x, y));
  CHECK(ls::sum(y == 0).item<int>() > 0);
}
