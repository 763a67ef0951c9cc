#include "lockstep/parallel/replicated/replicas/gradient_sums_internal.h"

#include <algorithm>

#include "lockstep/tensor/ops/combine_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kShare = 1 << 14;  // elements for which it is worth waking another thread

// Adds pairs, level by level, until all gradients are defined or one is left.
void close_holes(std::vector<Tensor>& gradients, Device device) {
  while (gradients.size() > 1 && !std::ranges::all_of(gradients, &Tensor::defined)) {
    for (std::size_t i = 0; i < gradients.size(); i += 2) {
      Tensor& a = gradients[i];
      const Tensor b = i + 1 < gradients.size() ? gradients[i + 1] : Tensor();
      if (a.defined() && b.defined())
        a = raw::add(raw::to(a, device), raw::to(b, device));
      else if (b.defined())
        a = b;
      gradients[i / 2] = a;
    }
    gradients.resize((gradients.size() + 1) / 2);
  }
}

}  // namespace

void GradientSums::add(std::vector<Tensor> gradients, const autograd::Needs& needs, std::size_t input) {
  Sum sum;
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    if (!gradients[r].defined()) continue;
    sum.dtype = gradients[r].dtype();
    traffic_.add(0, static_cast<int>(r), 0, Phase::kGradients, bytes_of(gradients[r]));
    sent_.resize(std::max(sent_.size(), r + 1));
    sent_[r] += bytes_of(gradients[r]);
    gradients[r] = widened(raw::contiguous(gradients[r]));
  }
  close_holes(gradients, device_);
  sum.first = elements_;
  if (const Tensor& like = gradients[0]; like.defined()) {
    if (like.dtype() == sum.dtype) sum.out = needs.view(input);
    if (!sum.out.defined()) sum.out = raw::empty(like.shape(), {.dtype = like.dtype(), .device = device_});
    sum.inputs = std::move(gradients);
    elements_ += sum.out.numel();
  }
  sums_.push_back(std::move(sum));
}

autograd::Gradients GradientSums::run(ReplicaWorkers* workers, const std::vector<Device>& devices) {
  const TraceTime begin = TraceTime::now();
  // On a GPU one thread launches all kernels.
  const std::int64_t shares =
      device_.is_cpu() ? std::clamp<std::int64_t>(elements_ / kShare, 1, std::ssize(devices)) : 1;
  if (shares == 1)
    combine(0, elements_);
  else
    run_replicas(workers, {devices.data(), static_cast<std::size_t>(shares)},
                 [&](int w) { combine(elements_ * w / shares, elements_ * (w + 1) / shares); });
  for (std::size_t r = 1; r < sent_.size(); ++r) {
    if (sent_[r] > 0)
      trace_event(
          TraceKind::kCopy, name(Phase::kGradients), begin,
          {.bytes = sent_[r], .from = static_cast<int>(r), .to = 0, .phase = static_cast<int>(Phase::kGradients)});
  }
  autograd::Gradients out;
  for (const Sum& sum : sums_) {
    scale_gradient(sum.out, scale_.second);
    const bool is_rounded = sum.out.defined() && sum.out.dtype() != sum.dtype;
    out.push_back(is_rounded ? raw::to(sum.out, sum.dtype) : sum.out);
  }
  return out;
}

// Computes the elements [begin, end) of the concatenated sums.
void GradientSums::combine(std::int64_t begin, std::int64_t end) const {
  std::vector<const void*> inputs;
  for (const Sum& sum : sums_) {
    if (!sum.out.defined()) continue;
    const std::int64_t from = std::max(begin, sum.first), to = std::min(end, sum.first + sum.out.numel());
    if (from >= to) continue;
    inputs.clear();
    std::vector<Tensor> here;  // the inputs, copied to the device if needed
    for (const Tensor& each : sum.inputs) inputs.push_back(here.emplace_back(reachable(each, device_)).raw_data());
    void* const target = sum.out.raw_data();
    raw::combine({.inputs = inputs, .outputs = {&target, 1}, .dtype = sum.out.dtype(), .scale = scale_.first},
                 from - sum.first, to - from, device_);
  }
}

}  // namespace lockstep::parallel
