// MultiheadAttention and TransformerEncoderLayer with tensor parallelism: the same bits on any ranks. Ranks are threads.
#include "tests/parallel/model_parallel/tensor_subject.h"

using namespace tensor_training;

namespace {

enum class Mask { kNone, kCausal, kMatrix, kHeads, kPadding, kAll };

struct EncoderOptions {
  std::int64_t width = 32, heads = 8;
  Mask mask = Mask::kNone;
  bool recompute_style = false, sequence = false;
  bool norm_first = false, batch_first = true, cross = false, recompute = false, bf16 = false, deferred = false;
  double dropout = 0;
};

nn::MultiheadAttentionMasks masks_of(const EncoderOptions& options, std::int64_t batch) {
  nn::MultiheadAttentionMasks masks;
  const Mask mask = options.mask;
  masks.is_causal = mask == Mask::kCausal || mask == Mask::kAll;
  if (mask == Mask::kMatrix) masks.attn_mask = (ls::arange(kTime * kTime).reshape({kTime, kTime}) % 7 == 3);
  if (mask == Mask::kHeads || mask == Mask::kAll)
    masks.attn_mask = ls::sin(ls::arange(batch * options.heads * kTime * kTime).to(ls::kFloat32))
                          .reshape({batch * options.heads, kTime, kTime});
  if (mask == Mask::kPadding || mask == Mask::kAll)
    masks.key_padding_mask = ls::arange(batch * kTime).reshape({batch, kTime}) % kTime >= 4;
  return masks;
}

struct Encoder : nn::Module {
  explicit Encoder(const EncoderOptions& options)
      : options(options), tokens(add<nn::Embedding>("tokens", kVocabulary, options.width)),
        blocks(add<nn::ModuleList>("blocks")), head(add<nn::Linear>("head", options.width, kVocabulary)) {
    for (int i = 0; i < 2; ++i)
      blocks.push_back(nn::TransformerEncoderLayer(options.width, options.heads,
                                                   {.dim_feedforward = 2 * options.width,
                                                    .dropout = options.dropout,
                                                    .batch_first = options.batch_first,
                                                    .norm_first = options.norm_first}));
    if (options.cross)
      cross = &add<nn::MultiheadAttention>(
          "cross", options.width, options.heads,
          nn::MultiheadAttentionOptions{.dropout = options.dropout, .bias = false, .batch_first = options.batch_first});
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    const nn::MultiheadAttentionMasks masks = masks_of(options, ids.size(0));
    const ls::Tensor embedded = tokens(ids);
    ls::Tensor x = options.batch_first ? embedded : embedded.transpose(0, 1);
    const ls::Tensor memory = x;
    for (nn::Module& block : blocks) {
      const auto run = [&block, masks, this](const ls::Tensor& t) {
        const auto& layer = dynamic_cast<const nn::TransformerEncoderLayer&>(block);
        return options.mask == Mask::kNone ? layer(t) : layer.forward(t, masks);
      };
      x = options.recompute ? ls::autograd::checkpoint(run, x) : run(x);
    }
    if (cross) {
      x = x + cross->forward(x, memory, memory, masks);  // one entry for keys and values
      x = x + cross->forward(x, memory, memory * 0.5, masks);
    }
    return head(options.batch_first ? x : x.transpose(0, 1));
  }

  EncoderOptions options;
  nn::Embedding& tokens;
  nn::ModuleList& blocks;
  nn::Linear& head;
  nn::MultiheadAttention* cross = nullptr;
};

Subject subject_of(const EncoderOptions& options) {
  par::ParallelPlan plan = {{"blocks.*.self_attn", par::AttentionParallel{}},
                            {"blocks.*.linear1", par::ColwiseParallel{}},
                            {"blocks.*.linear2", par::RowwiseParallel{}}};
  if (options.cross) plan.emplace_back("cross", par::AttentionParallel{});
  if (options.recompute_style) plan.emplace_back("blocks.*", par::Recompute{});
  if (options.sequence)
    for (const char* pattern : {"blocks.*.norm1", "blocks.*.norm2", "tokens", "head"})
      plan.emplace_back(pattern, par::SequenceParallel{});
  return {.make = [options] { return std::make_unique<Encoder>(options); },
          .plan = plan,
          .bf16 = options.bf16,
          .deferred = options.deferred,
          .sequence = options.sequence};
}

const std::vector<Layout> kRanks = {{.tp = 1}, {.tp = 2}, {.tp = 4}};

}  // namespace

TEST_CASE("cut heads have the same bits on any number of ranks") {
  check_same_bits(4, subject_of({}), kRanks);
  check_same_bits(8, subject_of({}), {{.tp = 1}, {.tp = 2}, {.tp = 8}});
  check_same_bits(3, subject_of({.width = 24, .heads = 6}), {{.tp = 3}});
  check_same_bits(6, subject_of({.width = 24, .heads = 6}), {{.tp = 3}, {.tp = 6}});
  for (const EncoderOptions& options :
       {EncoderOptions{.norm_first = true}, EncoderOptions{.batch_first = false, .cross = true},
        EncoderOptions{.recompute = true}, EncoderOptions{.cross = true, .bf16 = true}})
    check_same_bits(4, subject_of(options), kRanks);
}

TEST_CASE("masks: of all heads, of each head, of keys, causal") {
  for (const Mask mask : {Mask::kCausal, Mask::kMatrix, Mask::kHeads, Mask::kPadding, Mask::kAll}) {
    if (LOCKSTEP_SLOWDOWN > 1 && mask != Mask::kAll) continue;
    CAPTURE(static_cast<int>(mask));
    const Subject subject = subject_of({.mask = mask, .cross = true});
    check_same_bits(4, subject, kRanks);
    check_near(4, {.tp = 2}, subject);
  }
}

TEST_CASE("dropout draws the elements of all heads") {
  for (const EncoderOptions& options :
       {EncoderOptions{.dropout = 0.2}, EncoderOptions{.mask = Mask::kHeads, .cross = true, .dropout = 0.2},
        EncoderOptions{.recompute = true, .dropout = 0.2},
        EncoderOptions{.mask = Mask::kAll, .sequence = true, .norm_first = true, .dropout = 0.2}}) {
    const Subject subject = subject_of(options);
    check_same_bits(4, subject, {{.tp = 1}, {.tp = 4}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .stage = 3}});
    check_near(4, {.tp = 2}, subject);
  }
  CHECK(train_subject(4, {.tp = 2}, subject_of({.recompute = true, .dropout = 0.2})) ==
        train_subject(4, {.tp = 2}, subject_of({.dropout = 0.2})));
  CHECK(train_subject(4, {.tp = 2}, subject_of({.recompute_style = true, .dropout = 0.2})) ==
        train_subject(4, {.tp = 2}, subject_of({.dropout = 0.2})));
}

TEST_CASE("cut heads and data parallelism; deferred initialisation") {
  std::vector<Layout> layouts{{.tp = 1}, {.tp = 2, .dp = 2}};
  for (const int stage : {1, 2, 3}) layouts.push_back({.tp = 2, .dp = 2, .stage = stage});
  layouts.push_back({.tp = 4, .dp = 2, .stage = 3});
  check_same_bits(4, subject_of({.cross = true}), layouts);
  CHECK(train_subject(4, {.tp = 2, .dp = 2, .stage = 3}, subject_of({.cross = true, .deferred = true})) ==
        train_subject(4, {}, subject_of({.cross = true})));
}

TEST_CASE("with cut heads, losses and norms are near those of one slice") {
  for (const int slices : {2, 4, 8}) check_near(slices, {.tp = 2}, subject_of({.cross = true}), kLongRun);
}

TEST_CASE("TransformerEncoder: its layers are named layers.*") {
  nn::TransformerEncoder encoder(2, 16, 4, {.dim_feedforward = 32, .dropout = 0});
  const ls::Tensor x = ls::randn({2, 5, 16});
  const std::vector<float> want = encoder(x).to_vector<float>();
  const par::TensorPlan plan = par::parallelize(encoder, par::DeviceMesh(nullptr, {{"tp", 1}}),
                                                {.tensor_slices = 4,
                                                 .plan = {{"layers.*.self_attn", par::AttentionParallel{}},
                                                          {"layers.*.linear1", par::ColwiseParallel{}},
                                                          {"layers.*.linear2", par::RowwiseParallel{}}}});
  const std::vector<float> got = encoder(x).to_vector<float>();
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-4));
  CHECK(plan.layers[0].path == "layers.0.self_attn");
  CHECK(plan.layers[0].columns == 16);
  CHECK(plan.layers[0].summed_outputs == 16);
  CHECK(plan.parameter_bytes == plan.whole_bytes);
}

TEST_CASE("each distinct input is entered once") {
  static constexpr std::int64_t kWidth = 16, kBatch = 3;
  struct Parent : nn::Module {
    nn::MultiheadAttention& attention =
        add<nn::MultiheadAttention>("attention", kWidth, 4, nn::MultiheadAttentionOptions{.batch_first = false});
  };
  with_threads("local", 2, [&](const Group& group) {
    Parent parent;
    const par::DeviceMesh mesh(group, {{"tp", 2}});
    const par::TensorPlan plan = par::parallelize(parent, mesh, {.plan = {{"attention", par::AttentionParallel{}}}});
    par::TrafficStats& traffic = mesh.group()->traffic();
    const ls::Tensor x = ls::randn({kTime, kBatch, kWidth}).requires_grad_(), y = ls::randn(x.shape()).requires_grad_(),
                     z = ls::randn(x.shape()).requires_grad_();
    const auto entries = [&](const ls::Tensor& query, const ls::Tensor& key, const ls::Tensor& value) {
      const ls::Tensor out = parent.attention.forward(query, key, value);
      traffic.clear();
      out.sum().backward();
      std::int64_t bytes = 0;
      for (const par::LinkTraffic& link : traffic.links()) bytes += link.from == group->rank() ? link.bytes : 0;
      return bytes / (kTime * kBatch * kWidth * 4);
    };
    CHECK(entries(x, x, x) == 1);
    CHECK(entries(x, y, y) == 2);
    CHECK(entries(x, x, y) == 2);
    CHECK(entries(x, y, x) == 2);
    CHECK(entries(x, y, z) == 3);
    CHECK(plan.bytes_per_micro_batch(kTime * kBatch) == 2 * kTime * kBatch * kWidth * 4);  // self-attention
  });
}

TEST_CASE("errors of cut heads, on all ranks") {
  const auto cut = [](const Group& group, int slices, par::ParallelPlan plan) {
    nn::TransformerEncoderLayer layer(24, 6);
    const ls::StateDict before = layer.state_dict();
    plan.emplace_back("self_attn", par::AttentionParallel{});
    const par::DeviceMesh mesh(group, {{"tp", group ? group->size() : 1}});
    try {
      par::parallelize(layer, mesh, {.tensor_slices = slices, .plan = plan});
    } catch (const ls::InvalidArgument&) {
      CHECK(layer.state_dict().size() == before.size());  // nothing was changed
      throw;
    }
  };
  const auto with_masks = [](const Group& group, const nn::MultiheadAttentionMasks& masks) {
    nn::TransformerEncoderLayer layer(24, 6);
    par::parallelize(layer, par::DeviceMesh(group, {{"tp", 2}}), {.plan = {{"self_attn", par::AttentionParallel{}}}});
    layer.forward(ls::ones({2, 4, 24}), masks);
  };
  with_threads("local", 2, [&](const Group& group) {
    CHECK_THROWS_WITH_AS(cut(group, 4, {}),
                         "parallelize: self_attn: 6 heads cannot be cut into 4 slices; use 1, 2, 3 or 6 slices",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(cut(group, 2, {{"self_attn.out_proj", par::RowwiseParallel{}}}),
                         "parallelize: self_attn.out_proj has the style RowwiseParallel, but self_attn is "
                         "AttentionParallel, which cuts it; remove it from .plan",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(with_masks(group, {.attn_mask = ls::zeros({4, 4}).requires_grad_()}),
                         "MultiheadAttention: attn_mask requires grad, and tensor parallelism has cut the heads: each "
                         "rank would have a part of its gradient; pass mask.detach()",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(
        with_masks(group, {.attn_mask = ls::zeros({6, 4, 4})}),
        "MultiheadAttention: attn_mask is (6, 4, 4) f32 cpu, expected shape (4, 4) or, for every head, "
        "(12, 4, 4)",
        ls::InvalidArgument);
  });
}
