// Attention over sequence blocks, whose ranks are threads.
#include "tests/parallel/model_parallel/context_attention.h"

using namespace context_attention;

TEST_CASE("attention over sequence blocks equals attention of one rank") {
  for (const Kind kind : kKinds) {
    for (const int ranks : {2, 3}) {
      for (const Masking masking :
           {Masking::kNone, Masking::kCausal, Masking::kBool, Masking::kAdded, Masking::kPadding, Masking::kPerHead})
        check_case({.ranks = ranks, .kind = kind, .masking = masking});
    }
    check_case({.ranks = 4, .kind = kind, .heads = 8, .kv_heads = 8, .time = 32});
    check_case({.ranks = 2, .kind = kind, .dtype = ls::kFloat64});
    check_case({.ranks = 3, .kind = kind, .masking = Masking::kBool, .dtype = ls::kFloat64});
    check_case({.ranks = 2, .kind = kind, .dtype = ls::kBFloat16});
  }
}

TEST_CASE("with fewer heads in keys and values") {
  for (const Kind kind : kKinds) {
    for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
      for (const Masking masking : {Masking::kCausal, Masking::kPerHead, Masking::kPadding})
        check_case({.ranks = 2, .kind = kind, .masking = masking, .kv_heads = kv_heads});
      check_case({.ranks = 3, .kind = kind, .kv_heads = kv_heads});
    }
  }
}

namespace {

struct Padded : ls::nn::Module {
  ls::nn::MultiheadAttention& attention = add<ls::nn::MultiheadAttention>("attention", 12, 6);
  ls::Tensor padding;  // (batch, all positions)
  bool causal = false;
  ls::Tensor forward(const ls::Tensor& x) const override {
    return attention.forward(x, x, x, {.key_padding_mask = padding, .is_causal = causal});
  }
};

// The result, and the gradient of x.
std::pair<ls::Tensor, ls::Tensor> run(const Padded& net, const ls::Tensor& x, const ls::Tensor& grad) {
  const ls::Tensor leaf = x.clone().requires_grad_();
  const ls::Tensor out = net(leaf);
  out.backward(grad);
  return {out.detach(), leaf.grad()};
}

}  // namespace

// It makes masks for this rank's queries and the keys of all ranks.
TEST_CASE("MultiheadAttention with padding, causal or not") {
  const Case base{.ranks = 3, .kind = Kind::kRing, .time = 24};
  ls::manual_seed(1);
  Padded whole;
  whole.padding = ls::arange(base.time) >= ls::tensor({base.time - 5, base.time / 3}).reshape({2, 1});
  const ls::Tensor x = ls::randn({2, base.time, 12}), grad = ls::randn({2, base.time, 12});
  for (const Kind kind : kKinds) {
    for (const bool causal : {false, true}) {
      whole.causal = causal;
      const std::pair<ls::Tensor, ls::Tensor> want = run(whole, x, grad);
      with_threads("local", base.ranks, [&](const Group& group) {
        Case of = base;
        of.kind = kind;
        Padded net;
        net.load_state_dict(whole.state_dict());
        net.padding = whole.padding, net.causal = causal;
        par::context_parallel(net, par::DeviceMesh(group, {{"cp", of.ranks}}), {.attention = kind});
        const auto mine = [&](const ls::Tensor& t) { return block(t, of, group->rank()); };
        const std::pair<ls::Tensor, ls::Tensor> got = run(net, mine(x), mine(grad));
        check_close(got.first, mine(want.first), ls::kFloat32);
        check_close(got.second, mine(want.second), ls::kFloat32);
      });
    }
  }
}

TEST_CASE("one position for each rank, many positions, and none") {
  for (const Kind kind : kKinds) {
    for (const Masking masking : {Masking::kCausal, Masking::kAdded, Masking::kPadding, Masking::kPerHead}) {
      if (kind != Kind::kRingZigzag) check_case({.ranks = 3, .kind = kind, .masking = masking, .time = 3});
      check_case({.ranks = 2, .kind = kind, .masking = masking, .heads = 2, .kv_heads = 2, .time = 360});
    }
    with_threads("local", 2, [&](const Group& group) {
      Attention attention;
      par::context_parallel(attention, par::DeviceMesh(group, {{"cp", 2}}), {.attention = kind});
      const ls::Tensor none = ls::zeros({2, 4, 0, 8}).requires_grad_();
      const ls::Tensor out = attention({none, none, none});
      CHECK(out.shape() == none.shape());
      out.sum().backward();
    });
  }
}

// With dropout there is no result of one rank to compare with: backward must use the masks of forward.
TEST_CASE("with dropout, the gradients are the derivatives of what forward has computed") {
  constexpr double kStep = 1e-5;
  for (const Kind kind : kKinds) {
    for (const bool gather : {false, true}) {
      CAPTURE(static_cast<int>(kind));
      with_threads("local", 3, [&](const Group& group) {
        ls::manual_seed(static_cast<std::uint64_t>(group->rank()));
        Attention attention;
        attention.causal = true, attention.dropout = 0.3;
        par::context_parallel(attention, par::DeviceMesh(group, {{"cp", 3}}),
                              {.attention = kind, .gather_keys = gather});
        const ls::TensorOptions f64{.dtype = ls::kFloat64};
        const ls::Shape shape{2, 3, 8, 4};
        std::vector<ls::Tensor> in, along;
        for (int i = 0; i < 3; ++i) in.push_back(ls::randn(shape, f64)), along.push_back(ls::randn(shape, f64));
        const ls::Tensor weights = ls::randn(shape, f64);
        const auto loss_at = [&](double t) {  // of all ranks, with the same masks each time
          ls::manual_seed(7 + static_cast<std::uint64_t>(group->rank()));
          std::vector<ls::Tensor> moved;
          for (std::size_t i = 0; i < 3; ++i) moved.push_back(in[i] + along[i] * t);
          return group->mean((attention(moved) * weights).sum().item<double>());
        };
        ls::manual_seed(7 + static_cast<std::uint64_t>(group->rank()));
        for (ls::Tensor& each : in) each.requires_grad_();
        (attention(in) * weights).sum().backward();
        double by = 0;
        for (std::size_t i = 0; i < 3; ++i) by += (in[i].grad() * along[i]).sum().item<double>();
        const double analytic = group->mean(by);
        for (ls::Tensor& each : in) each = each.detach();
        const double numeric = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
        CHECK(analytic == doctest::Approx(numeric).epsilon(1e-7));
      });
    }
  }
}

TEST_CASE("gradients of some of the operands only") {
  for (const Kind kind : kKinds) {
    for (const bool gather : {false, true}) {
      with_threads("local", 2, [&](const Group& group) {
        Attention attention;
        attention.causal = true;
        par::context_parallel(attention, par::DeviceMesh(group, {{"cp", 2}}),
                              {.attention = kind, .gather_keys = gather});
        std::vector<ls::Tensor> in;
        for (int i = 0; i < 3; ++i) in.push_back(ls::randn({1, 2, 6, 4}));
        const auto gradients = [&](unsigned wanted) {
          std::vector<ls::Tensor> leaves;
          for (unsigned i = 0; i < 3; ++i) leaves.push_back(in[i].clone().requires_grad_((wanted >> i & 1u) != 0));
          attention(leaves).sum().backward();
          return leaves;
        };
        const std::vector<ls::Tensor> all = gradients(7);
        for (unsigned wanted = 1; wanted < 7; ++wanted) {
          const std::vector<ls::Tensor> some = gradients(wanted);
          for (unsigned i = 0; i < 3; ++i) {
            if ((wanted >> i & 1u) != 0) CHECK(same_bits(some[i].grad(), all[i].grad()));
          }
        }
      });
    }
  }
}

TEST_CASE("a mask that is changed between forward and backward") {
  with_threads("local", 2, [](const Group& group) {
    Attention attention;
    par::context_parallel(attention, par::DeviceMesh(group, {{"cp", 2}}), {.attention = Kind::kRing});
    const ls::Tensor x = ls::randn({1, 2, 4, 4}).requires_grad_(), mask = ls::zeros({4, 8});
    const ls::Tensor y = attention({x, x, x, mask}).sum();
    mask.fill_(1);
    CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("changed in place after it was saved for backward"),
                         ls::InvalidArgument);
  });
}
