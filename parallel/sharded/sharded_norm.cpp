// Each rank computes the nodes of the gradient norm's tree (nn/gradient_norm_internal.h) within its pieces. All ranks
// gather these nodes and finish the tree. Where the nodes are follows from the pieces alone, so only their sums are
// exchanged.
#include "lockstep/parallel/sharded/sharded_norm_internal.h"

#include <algorithm>
#include <span>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/gradient_norm_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/squared_norm_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

class ShardedNorm {
 public:
  ShardedNorm(ProcessGroup& group, const UnitGradients& gradients)
      : group_(group), pieces_(gradients.pieces()), gradients_(gradients) {}

  double compute(nn::Module& module, const optim::NamedParameters& parameters) {
    std::vector<double> own;
    for (std::size_t p = 0; p < pieces_.size(); ++p) append_own(p, own);
    const std::vector<double> all = gather(own);
    const std::size_t each = all.size() / static_cast<std::size_t>(ranks());
    std::vector<std::size_t> at(static_cast<std::size_t>(ranks()));
    SquaredNorm total(module);
    std::size_t position = 0;
    const auto add = [&](double sum) { total.add(parameters[position++].second.slice(), sum); };
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      nn::TreeSum parameter;
      for (int r = 0; r < ranks() && has_gradient(p); ++r) {
        for (nn::TreeNode node : nn::nodes_of(lines(p, r))) {
          auto& next = at[static_cast<std::size_t>(r)];
          node.sum = all[static_cast<std::size_t>(r) * each + next++];
          parameter.add(node);
        }
      }
      while (position < gradients_.position(p)) add(0);  // frozen parameters
      add(parameter.total());
    }
    while (position < parameters.size()) add(0);
    return total.norm();
  }

 private:
  int ranks() const { return group_.size(); }
  // All ranks agree on it.
  bool has_gradient(std::size_t p) const { return pieces_[p].parameter.master().grad().defined(); }

  // The lines of parameter p in rank r's piece.
  nn::Lines lines(std::size_t p, int r) const {
    const auto [f, offset] = gradients_.place_of(p);
    const TensorPart part = part_in_shard(gradients_.leaf(p).shape(), offset, gradients_.flats()[f].shard.numel(), r);
    return nn::lines_of(part, sum_dtype(pieces_[p].parameter.master().dtype()));
  }

  void append_own(std::size_t p, std::vector<double>& own) const {
    const nn::Lines at = lines(p, group_.rank());
    if (!has_gradient(p) || at.begin >= at.end) return;
    const nn::TreeSum sum = nn::sum_of_squares(pieces_[p].parameter.master().grad(), at.begin);
    for (const nn::TreeNode& node : sum.nodes()) own.push_back(node.sum);
  }

  // The nodes of all ranks, as many for each as the rank with most has.
  std::vector<double> gather(std::vector<double> own) const {
    std::size_t most = 0;
    for (int r = 0; r < ranks(); ++r) {
      std::size_t count = 0;
      for (std::size_t p = 0; p < pieces_.size(); ++p) count += has_gradient(p) ? nn::nodes_of(lines(p, r)).size() : 0;
      most = std::max(most, count);
    }
    own.resize(most);
    const auto count = static_cast<std::int64_t>(most);
    const Tensor all = raw::empty({ranks(), count}, {.dtype = kFloat64});
    group_
        .all_gather(all, raw::from_bytes(own.data(), {count}, kFloat64), {.phase = Phase::kGradients, .name = "norm"})
        ->wait();
    const std::span<const double> sums = all.span<double>();
    return {sums.begin(), sums.end()};
  }

  ProcessGroup& group_;
  const std::vector<TrainedPiece>& pieces_;
  const UnitGradients& gradients_;
};

}  // namespace

double clip_pieces(ProcessGroup& group, nn::Module& module, const optim::NamedParameters& parameters,
                   const UnitGradients& gradients, double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "clip_grad_norm_: max_norm is {}, expected 0 or more", max_norm);
  const NoGradGuard no_grad;
  const double norm = ShardedNorm(group, gradients).compute(module, parameters);
  std::vector<Tensor> of_pieces;
  for (const TrainedPiece& piece : gradients.pieces()) of_pieces.push_back(piece.parameter.master().grad());
  scale_to_norm(of_pieces, norm, max_norm);
  return norm;
}

}  // namespace lockstep::parallel
