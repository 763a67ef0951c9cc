// Dropout, whose backward draws the mask again.
#include <optional>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep {
namespace {

using random::Share;

Share share_of(const Tensor& x) {
  const random::SliceContext* const context = random::slice_context();
  if (!context) return {};
  random::refuse_in_slice("dropout", "give the style to the layers inside of it, and none to the Dropout");
  const std::optional<Share> share = context->share_of(x.shape());
  LOCKSTEP_CHECK(
      share,
      "dropout: x is {}, and runs after {}, whose outputs tensor parallelism has cut; expected the {} columns "
      "of this rank: apply dropout to them, or before the layer or after the next RowwiseParallel one",
      describe(x), context->opened_by, context->columns.back().run * context->columns.back().parts);
  return *share;
}

// Where a mask is drawn. A run that is no number of whole counter blocks is cut out of the whole mask.
struct Place {
  random::Position position{};
  Share share;

  bool is_in_blocks() const { return share.run % 4 == 0; }
};

Place next_place(const Tensor& x) {
  Place place{.share = share_of(x)};
  const auto [run, ranks, rank] = place.share;
  const auto own = static_cast<std::uint64_t>(run / 4);
  random::BlockPart part;
  if (run > 0 && place.is_in_blocks())
    part = {
        .own = own, .all = own * static_cast<std::uint64_t>(ranks), .first = own * static_cast<std::uint64_t>(rank)};
  place.position = raw::next_dropout(x.numel() * ranks, x.device(), part);
  return place;
}

Tensor mask_at(const Place& place, double keep, const Tensor& x) {
  const auto [run, ranks, rank] = place.share;
  if (place.is_in_blocks()) return raw::dropout_mask(x.shape(), keep, x.options(), place.position);
  const Tensor whole = raw::dropout_mask({x.numel() / run, run * ranks}, keep, x.options(), place.position);
  return raw::reshape(raw::slice(whole, 1, run * rank, run * (rank + 1), 1), x.shape());
}

// Linear in x: the gradient is the same function of the gradient.
Tensor dropout_at(const Place& place, double keep, const Tensor& x) {
  return record("dropout", raw::mul(x, mask_at(place, keep, x)), {x},
                [place, keep](const Tensor& grad, const Needs&) { return Gradients{dropout_at(place, keep, grad)}; });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "dropout: p is {}, expected 0 to 1", p);
  if (!training || p == 0) return x;
  require_defined("dropout", x, "x");
  LOCKSTEP_CHECK(x.is_floating_point(), "dropout: x is {}, expected floating point", describe(x));
  if (is_half(x.dtype())) return dropout(x.to(kFloat32), p).to(x.dtype());
  return dropout_at(p < 1 ? next_place(x) : Place(), 1 - p, x);
}

}  // namespace lockstep
