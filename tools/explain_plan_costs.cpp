#include "tools/explain_plan_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace par = lockstep::parallel;

namespace plan {
namespace {

std::int64_t divided(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

double all_reduce_seconds(const par::Link& link, int ranks, double bytes) {
  return 2 * half_seconds(link, ranks, bytes);
}
double all_reduce_sent(int ranks, double bytes) { return 2.0 * (ranks - 1) / ranks * bytes; }

// Numbers of one activation on a rank: b s h / c.
double activation(const Job& job, const Mesh& mesh) {
  return static_cast<double>(job.sequences * job.model.context / mesh.cp * job.model.width);
}

// The embedding of tokens is cut along tp, that of positions is not. docs/mesh.md: an all-reduce in forward.
ChainModule embedding_of(const Job& job, const Mesh& mesh) {
  const Gpt& m = job.model;
  const double bytes = kItemBytes * activation(job, mesh);
  return {.parameters = (divided(m.vocabulary, mesh.tp) + m.context) * m.width,
          .forward_messages = all_reduce_seconds(job.link, mesh.tp, bytes),
          .tensor_bytes = all_reduce_sent(mesh.tp, bytes)};
}

// Keys and values round the ring, and once more in backward, with their gradients: docs/mesh.md, "Bytes". A rank has
// 1 / t of the heads.
void add_ring(const Job& job, const Mesh& mesh, ChainModule& block) {
  if (mesh.cp == 1) return;
  const double keys = kItemBytes * activation(job, mesh) / mesh.tp, passes = mesh.cp - 1;
  block.forward_messages += passes * job.link.seconds(2 * keys);
  block.backward_messages += passes * job.link.seconds(2 * keys) + mesh.cp * job.link.seconds(2 * keys);
  block.context_bytes = 2 * passes * 2 * keys + 2 * mesh.cp * keys;
}

// Operations of a block. A product with a matrix of n numbers takes 2 n for each token (Kaplan et al., 2020), in forward
// and for each of both gradients; a block has 12 h^2 numbers. The causal half of attention is two products of s^2 h / 2 multiplications
// each, and five in backward, which computes the scores again (Dao et al., 2022). Half blocks in a zigzag share the work
// evenly, and heads likewise.
Operations operations_of_block(const Gpt& m, double sequences) {
  const auto s = static_cast<double>(m.context), h = static_cast<double>(m.width);
  const double matrices = 24 * sequences * s * h * h, product = sequences * s * s * h;
  return {.forward = matrices + 2 * product, .backward_input = matrices + 5 * product, .backward_weight = matrices};
}

Operations operations_of_head(const Gpt& m, double sequences) {
  const double logits = 2 * sequences * static_cast<double>(m.context * m.width) * static_cast<double>(m.vocabulary);
  return {logits, logits, logits};
}

void set_times(const Job& job, const Mesh& mesh, const Operations& whole, ChainModule& module) {
  const double share = 1.0 / (mesh.cp * mesh.tp);
  module.forward = share * whole.forward * job.speed.forward;
  module.backward_input = share * whole.backward_input * job.speed.backward;
  module.backward_weight = share * whole.backward_weight * job.speed.backward;
}

// docs/mesh.md, "Tensor parallelism": two all-reduces in forward and two in backward; 4 + 12 / t activations.
ChainModule block_of(const Job& job, const Mesh& mesh) {
  const std::int64_t h = job.model.width;
  const double numbers = activation(job, mesh), sum = all_reduce_seconds(job.link, mesh.tp, kItemBytes * numbers);
  ChainModule block{.parameters = divided(12 * h * h + 7 * h, mesh.tp) + 6 * h,
                    .activations = static_cast<std::int64_t>(kItemBytes * numbers * (4 + 12.0 / mesh.tp)),
                    .forward_messages = 2 * sum,
                    .backward_messages = 2 * sum,
                    .tensor_bytes = 4 * all_reduce_sent(mesh.tp, kItemBytes * numbers)};
  set_times(job, mesh, operations_of_block(job.model, static_cast<double>(job.sequences)), block);
  add_ring(job, mesh, block);
  return block;
}

// The last norm, and the logits, which are cut along tp. Its loss sums three numbers for each position, and backward the
// gradients of its input. It keeps input and output of the norm, the logits and their softmax.
ChainModule head_of(const Job& job, const Mesh& mesh) {
  const Gpt& m = job.model;
  const double numbers = activation(job, mesh), positions = numbers / static_cast<double>(m.width);
  const auto columns = static_cast<double>(divided(m.vocabulary, mesh.tp));
  ChainModule head{.parameters = (divided(m.vocabulary, mesh.tp) + 2) * m.width,
                   .activations = static_cast<std::int64_t>(kItemBytes * (2 * numbers + 2 * positions * columns)),
                   .forward_messages = 3 * all_reduce_seconds(job.link, mesh.tp, kItemBytes * positions),
                   .backward_messages = all_reduce_seconds(job.link, mesh.tp, kItemBytes * numbers),
                   .tensor_bytes = all_reduce_sent(mesh.tp, kItemBytes * (3 * positions + numbers))};
  set_times(job, mesh, operations_of_head(m, static_cast<double>(job.sequences)), head);
  return head;
}

// The stages of a balanced pipeline, from the last one, none of which takes longer than `limit`; empty: there are none.
std::vector<std::size_t> stages_below(const std::vector<ChainModule>& chain, int stages, double limit) {
  std::vector<std::size_t> begins(static_cast<std::size_t>(stages) + 1, chain.size());
  std::size_t at = chain.size();
  for (auto s = static_cast<std::size_t>(stages); s-- > 0;) {
    double seconds = 0;
    while (at > s && seconds + chain[at - 1].computing() <= limit) seconds += chain[--at].computing();
    if (at == begins[s + 1]) return {};
    begins[s] = at;
  }
  return at == 0 ? begins : std::vector<std::size_t>();
}

}  // namespace

std::int64_t Gpt::parameters() const {
  return layers * (12 * width * width + 13 * width) + (vocabulary + context + 2) * width;
}

std::string Mesh::axes() const {
  std::string text;
  const std::pair<const char*, int> all[] = {{"pp", pp}, {"dp", dp}, {"fsdp", fsdp}, {"cp", cp}, {"tp", tp}};
  for (const auto& [name, size] : all) {
    if (size > 1) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, size);
  }
  return text.empty() ? "dp=1" : text;
}

std::string Mesh::mode() const {
  std::string text = pp > 1 ? par::name(schedule) : "";
  if (fsdp > 1) text += fmt::format("{}stage {}", text.empty() ? "" : ", ", stage);
  return text;
}

Operations operations_of(const Gpt& model, std::int64_t sequences) {
  const auto b = static_cast<double>(sequences), layers = static_cast<double>(model.layers);
  const Operations block = operations_of_block(model, b), head = operations_of_head(model, b);
  return {.forward = layers * block.forward + head.forward,
          .backward_input = layers * block.backward_input + head.backward_input,
          .backward_weight = layers * block.backward_weight + head.backward_weight};
}

std::vector<ChainModule> chain_of(const Job& job, const Mesh& mesh) {
  std::vector<ChainModule> chain(static_cast<std::size_t>(job.model.layers) + 2, block_of(job, mesh));
  chain.front() = embedding_of(job, mesh);
  chain.back() = head_of(job, mesh);
  return chain;
}

std::vector<std::size_t> balanced_stages(const std::vector<ChainModule>& chain, int stages) {
  constexpr int kHalvings = 50;
  double low = 0, high = 0;
  for (const ChainModule& each : chain) high += each.computing();
  high *= 1 + 1e-9;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (stages_below(chain, stages, middle).empty() ? low : high) = middle;
  }
  return stages_below(chain, stages, high);
}

double half_seconds(const par::Link& link, int ranks, double bytes) {
  return ranks == 1 ? 0 : link.seconds((ranks - 1) * bytes / ranks);
}

}  // namespace plan
