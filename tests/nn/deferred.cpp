// DeferredInit: parameters without storage, and the values they get.
#include <random>
#include <thread>

#include "support.h"

namespace {

using ls::Tensor;

struct Net : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", 20, 6, nn::EmbeddingOptions{.padding_idx = -2});
  nn::MultiheadAttention& attention = add<nn::MultiheadAttention>("attention", 6, 2);
  nn::Conv2d& conv = add<nn::Conv2d>("conv", 2, 3, 3);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{6});
  nn::BatchNorm2d& batch_norm = add<nn::BatchNorm2d>("batch_norm", 3);
  nn::Linear& head = add<nn::Linear>("head", 6, 20, nn::LinearOptions{.bias = false});
  nn::Parameter& own = add_parameter("own", ls::full({2}, 3.0));
  Net() {
    nn::init::normal_(head.weight, 0.5, 0.02);
    nn::init::xavier_uniform_(conv.weight);
    nn::init::constant_(norm.bias, 0.25);
    head.weight = tokens.weight;
  }
};

}  // namespace

TEST_CASE("a deferred model gets the bits that it would have had, whatever is drawn in between") {
  ls::manual_seed(3);
  const Net plain;
  ls::manual_seed(3);
  nn::DeferredInit deferred;
  Net net;
  deferred.end();
  const std::int64_t allocated = ls::allocator_stats().allocated_bytes;
  ls::manual_seed(99);
  nn::Linear(2, 2);
  ls::rand({3});
  nn::materialize(net);
  CHECK(nn::parameter_hash(net) == nn::parameter_hash(plain));
  CHECK(ls::allocator_stats().allocated_bytes > allocated);
  CHECK(net.head.weight == net.tokens.weight);
  for (const nn::Parameter& parameter : net.parameters()) CHECK((parameter->requires_grad() && parameter->is_leaf()));
  CHECK(ls::equal(net.tokens.weight->select(0, 18), ls::zeros({6})));
}

TEST_CASE("a deferred parameter has shape and dtype, and no storage") {
  const nn::DeferredInit deferred(1);
  const std::int64_t allocated = ls::allocator_stats().allocated_bytes;
  const nn::Linear wide(100000, 1000);
  CHECK(ls::allocator_stats().allocated_bytes - allocated < 10000);
  CHECK(wide.weight->shape() == ls::Shape{1000, 100000});
  CHECK(wide.weight->dtype() == ls::kFloat32);
  CHECK(nn::is_deferred(wide.weight));
  CHECK(wide.weight->device().to_string() == "deferred");
  CHECK(!nn::is_deferred(Net().own));
}

TEST_CASE("1000 random ranges of deferred parameters equal the elements of the whole parameters") {
  ls::manual_seed(5);
  const Net plain;
  ls::manual_seed(5);
  const nn::DeferredInit deferred;
  const Net net;
  std::mt19937 choose(2);
  const auto want = plain.named_parameters(), got = net.named_parameters();
  REQUIRE(want.size() == got.size());
  for (int i = 0; i < 1000; ++i) {
    const std::size_t which = choose() % got.size();
    const Tensor& parameter = got[which].second;
    if (!nn::is_deferred(parameter)) continue;
    const std::int64_t first = choose() % parameter.numel(), count = choose() % (parameter.numel() - first + 1);
    CHECK(same_bits(nn::initial_values(parameter, first, count),
                    want[which].second->detach().flatten().narrow(0, first, count)));
  }
}

TEST_CASE("the initial values of slices of deferred parameters are the slices of the whole parameters") {
  ls::manual_seed(5);
  const Net plain;
  ls::manual_seed(5);
  const nn::DeferredInit deferred;
  const Net net;
  const auto want = plain.named_parameters(), got = net.named_parameters();
  int strided = 0;
  for (std::size_t p = 0; p < got.size(); ++p) {
    const Tensor &parameter = got[p].second, &whole = want[p].second;
    if (!nn::is_deferred(parameter)) continue;
    INFO(got[p].first);
    for (int dim = 0; dim < parameter.dim(); ++dim) {
      for (std::int64_t of = 1; of <= parameter.size(dim); ++of) {
        if (parameter.size(dim) % of != 0) continue;
        const std::int64_t each = parameter.size(dim) / of;
        for (std::int64_t index = 0; index < of; ++index) {
          const ls::TensorPart part = ls::TensorPart::slice(parameter.shape(), dim, index, of);
          const Tensor values = whole.detach().narrow(dim, index * each, each).flatten();
          CHECK(same_bits(nn::initial_values(parameter, part), values));
          const std::int64_t from = part.numel / 3, count = part.numel / 2;
          CHECK(same_bits(nn::initial_values(parameter, part.narrow(from, count)), values.narrow(0, from, count)));
          strided += part.is_consecutive() ? 0 : 1;
        }
      }
    }
  }
  CHECK(strided > 10);
}

TEST_CASE("computing with a deferred parameter is an error that says what to do") {
  const nn::DeferredInit deferred;
  Net net;
  const auto refused = [](const auto& f) { return contains(error_of(f), "call nn::materialize(module)"); };
  const Tensor weight = net.head.weight->detach();
  CHECK(refused([&] { net.head(ls::ones({1, 6})); }));
  CHECK(refused([&] { weight * 2; }));
  CHECK(refused([&] { ls::ones({1}) + weight; }));
  CHECK(refused([&] { weight.copy_(weight); }));
  CHECK(refused([&] { weight.clone(); }));
  CHECK(refused([&] { weight.mul_(2); }));
  CHECK(refused([&] { weight[0][0].item<float>(); }));
  CHECK(refused([&] { net.to("cpu"); }));
  CHECK(refused([&] { nn::parameter_hash(net); }));
  CHECK(refused([&] { nn::init::zeros_(weight[0]); }));
  CHECK(contains(error_of([&] { nn::initial_values(weight, 1, 120); }), "elements 1 to 121 of a parameter with 120"));
  CHECK(contains(error_of([&] {
                   nn::initial_values(weight, ls::TensorPart::slice({200, 6}, 1, 0, 2));
                 }),
                 "elements [0, 600) of runs of 3 at 0, 6, ... of a parameter with 120"));
  CHECK(contains(error_of([] { nn::initial_values(ls::ones({2}), 0, 1); }), "has values already"));
}

TEST_CASE("a deferred model that is converted gets the values of a converted model, and loads in its dtype") {
  for (const ls::DType dtype : {ls::kBFloat16, ls::kFloat64, ls::kFloat32}) {
    CAPTURE(ls::name(dtype));
    ls::manual_seed(3);
    Net plain;
    plain.to(dtype);
    const auto deferred = [&] {
      const nn::DeferredInit deferring(3);
      auto net = std::make_unique<Net>();
      net->to(dtype);
      return net;
    };
    const auto net = deferred(), loaded = deferred();
    CHECK(nn::is_deferred(net->head.weight));
    CHECK(net->head.weight->dtype() == dtype);
    CHECK(net->head.weight.master().requires_grad());
    const Tensor part = nn::initial_values(net->head.weight, 3, 50);
    CHECK(same_bits(part, plain.head.weight->detach().flatten().narrow(0, 3, 50)));
    nn::materialize(*net);
    ls::save(plain.state_dict(), "converted.safetensors");
    nn::load_weights(*loaded, "converted.safetensors");
    for (const auto& each : plain.state_dict()) {
      CHECK_MESSAGE(same_bits(net->state_dict().at(each.first), each.second), each.first);
      CHECK_MESSAGE(same_bits(loaded->state_dict().at(each.first), each.second), each.first);
    }
  }
}

TEST_CASE("a module with deferred parameters is not changed by a load or conversion that fails") {
  const Net plain;
  const nn::DeferredInit deferred;
  Net net;
  plain.own->detach().fill_(7);
  CHECK(contains(error_of([&] { net.load_state_dict(plain.state_dict()); }), "call nn::materialize(module)"));
  CHECK(contains(error_of([&] { net.to("cpu"); }), "call nn::materialize(module)"));
  CHECK(ls::equal(net.own, ls::full({2}, 3.0)));
  CHECK(contains(error_of([&] { nn::init::normal_(net.head.weight->detach().t()); }), "transposition of a deferred"));
}

TEST_CASE("deferral nests, ends once, and belongs to one thread") {
  const auto is_deferred = [] { return nn::is_deferred(nn::Linear(1, 1).weight); };
  {
    nn::DeferredInit outer;
    {
      const nn::DeferredInit inner;
      CHECK(is_deferred());
    }
    CHECK(is_deferred());
    bool elsewhere = true;
    std::thread([&] { elsewhere = is_deferred(); }).join();
    CHECK(!elsewhere);
    outer.end();
    CHECK(!is_deferred());
    outer.end();
  }
  CHECK(!is_deferred());
}
