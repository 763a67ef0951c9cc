// ShardedDataParallel where a gather is a collective: gloo, whose canonical sums have the bits of accumulation.
#include "tests/parallel/sharded/sharded.h"
#include "tests/parallel/sharded/sharded_bias.h"

namespace par = ls::parallel;
using namespace sharded_test;

namespace {

// Without the block that only some micro-batches reach and the one that is used twice: on gloo all ranks have to reach a
// unit equally often.
struct Plain : ls::nn::Module {
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 7, 1);
  Plain() {
    for (int i = 0; i < 4; ++i) blocks.push_back(Block());
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    for (ls::nn::Module& block : blocks) {
      if (skipped != &block) y = block(y);
    }
    return head(y);
  }
  const ls::nn::Module* skipped = nullptr;
};

template <class Run>
std::pair<std::vector<double>, std::vector<double>> train_plain(Run& run, const Plain& model, std::int64_t first,
                                                                std::int64_t count) {
  const ls::Tensor x = ls::cos(ls::arange(0.0, 8.0 * 7)).reshape({8, 7}), y = ls::sum(x, {1}, true);
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.01});
  std::vector<double> losses, norms;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const ls::Tensor loss =
        run.backward(x.narrow(0, first, count), y.narrow(0, first, count),
                     [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    norms.push_back(run.clip_grad_norm_(0.5));
    optimizer.step();
    losses.push_back(loss.template item<double>());
  }
  return {losses, norms};
}

}  // namespace

TEST_CASE("over gloo every stage gives the bits of gradient accumulation, also where one rank skips a unit") {
  ls::manual_seed(3);
  Plain alone;
  par::GradientAccumulation reference(alone, {.micro_batches = 4});
  const auto want = train_plain(reference, alone, 0, 8);
  for (const int ranks : {2, 4}) {
    for (int stage = 1; stage <= 3; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      with_group("gloo", ranks,
                 [&](const Group& group) {
                   ls::manual_seed(3);
                   Plain model;
                   par::ShardedDataParallel run(model, group, {.stage = stage, .micro_batches_per_rank = 4 / ranks});
                   CHECK(train_plain(run, model, group->rank() * 8 / ranks, 8 / ranks) == want);

                   for (const int block : {1, 3}) {
                     model.skipped = group->rank() == 0 ? &model.blocks[static_cast<std::size_t>(block)] : nullptr;
                     CHECK(train_plain(run, model, group->rank() * 8 / ranks, 8 / ranks).first.size() == 5);
                   }
                   model.skipped = nullptr;
                   CHECK(train_plain(run, model, 0, group->rank() == 1 ? 0 : 4).first.size() == 5);  // no samples
                 },
                 {.reduction = par::Reduction::kCanonical});
    }
  }
}

TEST_CASE("over gloo gradients of layers with bias have the bits of gradient accumulation, whenever reductions end") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    with_group("gloo", ranks, [](const Group& group) { sharded_bias::check_bias_gradients(group); },
               {.reduction = par::Reduction::kCanonical});
  }
}

TEST_CASE("over gloo operator() and loss.backward() give the gradients of backward(x, y, loss_fn)") {
  for (int stage = 1; stage <= 3; ++stage) {
    with_group("gloo", 2,
               [&](const Group& group) {
                 const ls::Tensor x = ls::cos(ls::arange(0.0, 8.0 * 7)).reshape({8, 7}).narrow(0, group->rank() * 4, 4);
                 const ls::Tensor y = ls::sum(x, {1}, true);
                 ls::manual_seed(3);
                 Plain model;
                 model.eval();
                 par::ShardedDataParallel run(model, group, {.stage = stage});
                 run.backward(x, y,
                              [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
                 std::vector<ls::Tensor> want;
                 for (const ls::nn::Parameter& piece : run.parameters())
                   want.push_back(piece->grad().defined() ? piece->grad().clone() : ls::Tensor());
                 for (int step = 0; step < 3; ++step) {
                   for (const ls::nn::Parameter& piece : run.parameters()) piece->set_grad(ls::Tensor());
                   ls::nn::MSELoss()(run(x), y).backward();
                   std::size_t at = 0;
                   for (const ls::nn::Parameter& piece : run.parameters()) {
                     const ls::Tensor& expected = want[at++];
                     CHECK(piece->grad().defined() == expected.defined());
                     if (expected.defined()) CHECK(same_bits(piece->grad(), expected));
                   }
                   const ls::NoGradGuard no_grad;
                   CHECK(same_bits(run(x), run(x)));
                 }
               },
               {.reduction = par::Reduction::kCanonical});
  }
}

TEST_CASE("over gloo bf16 parameters give the bits that they give on one rank") {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const ls::DType reduce : {ls::kFloat32, ls::kBFloat16}) {
      const auto train = [&](const Group& group) {
        ls::manual_seed(3);
        Plain model;
        const int each = 2 / group->size();
        par::ShardedDataParallel run(model, group,
                                     {.stage = stage,
                                      .micro_batches_per_rank = each,
                                      .mixed_precision = {.parameters = ls::kBFloat16, .reduce = reduce}});
        return train_plain(run, model, group->rank() * 4, 4 * each);
      };
      with_group("gloo", 2,
                 [&](const Group& group) {
                   const auto sharded = train(group);
                   with_threads("local", 1, [&](const Group& alone) { CHECK(train(alone) == sharded); });
                 },
                 {.reduction = par::Reduction::kCanonical});
    }
  }
}
