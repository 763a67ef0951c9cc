#include "lockstep/autograd/graph_cut_internal.h"

#include "lockstep/autograd/engine_internal.h"
#include "tests/support/testing.h"

namespace ag = ls::autograd;

TEST_CASE("a graph that is cut ends at its own leaves, and at a new leaf for each earlier tensor") {
  const ls::Tensor own = numbers({3}, {.requires_grad = true}), leaf = numbers({3}, {.requires_grad = true}, 2);
  const ls::Tensor earlier = leaf * 2.0;
  const std::uint64_t before = ag::newest_sequence();
  const ls::Tensor mine = own * leaf;
  const ls::Tensor result = mine * earlier + mine + leaf;
  const ag::CutGraph graph = ag::cut_graph({&result, 1}, before, {&own, 1});
  REQUIRE(graph.cuts.size() == 2);  // `earlier`, and `leaf` once
  std::vector<ls::Tensor> inputs = {own};
  ls::Tensor of_leaf;
  for (const ag::Cut& cut : graph.cuts) {
    CHECK(cut.inside.shape() == ls::Shape{3});
    CHECK(cut.inside.is_leaf());
    if (cut.outside.leaf.defined()) of_leaf = cut.inside;
    CHECK((cut.outside.leaf.defined() ? cut.outside.leaf.raw_data() == leaf.raw_data()
                                      : std::string(cut.outside.node->name) == "mul"));
    inputs.push_back(cut.inside);
  }
  const ls::Tensor seed = ls::ones({3});
  const auto grads = ag::run_backward({.roots = {&graph.roots[0], 1}, .gradients = {&seed, 1}, .inputs = inputs});
  const ls::NoGradGuard no_grad;
  CHECK(ls::allclose(grads[0], leaf * earlier + leaf));
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    const bool is_leaf = inputs[i].ref() == of_leaf.ref();
    CHECK(ls::allclose(grads[i], is_leaf ? own * earlier + own + 1.0 : own * leaf));
  }
  CHECK(!leaf.grad().defined());
}

TEST_CASE("a result from before the cut is cut off completely") {
  const ls::Tensor leaf = numbers({3}, {.requires_grad = true});
  const ls::Tensor earlier = leaf * 2.0;
  const ag::CutGraph graph = ag::cut_graph({&earlier, 1}, ag::newest_sequence(), {});
  REQUIRE(graph.cuts.size() == 1);
  CHECK(graph.cuts[0].outside.node);
  CHECK(graph.roots[0].requires_grad());
}
