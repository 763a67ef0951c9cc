#include "lockstep/parallel/replicated/replicas/replicas_internal.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/thread_context_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/autocast.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::parallel {

Replicas::Replicas(const nn::Module& module, std::vector<Device> devices)
    : devices_(std::move(devices)), parameters_(module.parameters()) {
  LOCKSTEP_CHECK(!devices_.empty(), "DataParallel: no devices given");
  const auto check = [&](const std::string& name, const Tensor& tensor) {
    LOCKSTEP_CHECK(tensor.device() == devices_[0], "DataParallel: {} is on {}, expected {}; call module.to(devices[0])",
                   name, tensor.device().to_string(), devices_[0].to_string());
  };
  for (const auto& [name, parameter] : module.named_parameters()) check(name, parameter.master());
  for (const auto& [name, buffer] : module.named_buffers()) check(name, buffer.master());
  copies_.resize(devices_.size());
  for (std::size_t r = 1; r < devices_.size(); ++r) copies_[r].resize(parameters_.size());
  workers_ = std::make_shared<ReplicaWorkers>(devices_.size());
}

void Replicas::begin_run() {
  trained_.clear();
  for (const nn::Parameter& parameter : parameters_) {
    if (parameter.master().requires_grad()) trained_.push_back(parameter.master());
  }
}

std::int64_t Replicas::enter(int replica, nn::ReplicaView& view, bool recording, std::vector<Tensor>& leaves) {
  std::int64_t bytes = 0;
  std::size_t next = 0;  // position in trained_
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& master = parameters_[p].master();
    Copy* const copy = replica > 0 ? &copies_[static_cast<std::size_t>(replica)][p] : nullptr;
    if (copy) bytes += refresh(master, *copy, device(replica));
    Tensor own = copy ? copy->tensor : master;  // does not touch the reference count of the other
    const bool is_trained = next < trained_.size() && trained_[next].ref() == master.ref();
    if (is_trained) ++next;
    if (recording && is_trained) {
      own = raw::alias(own).requires_grad_();
      leaves.push_back(own);
    }
    view.set(parameters_[p].id(), own);
  }
  return bytes;
}

std::int64_t Replicas::refresh(const Tensor& master, Copy& copy, Device device) {
  const Ref<Storage>& source = master.impl().storage;
  if (copy.source == source && copy.version == source->version()) return 0;
  if (!copy.tensor.defined() || copy.tensor.shape() != master.shape() || copy.tensor.dtype() != master.dtype())
    copy.tensor = raw::empty(master.shape(), {.dtype = master.dtype(), .device = device});
  raw::copy(master, copy.tensor);
  copy.tensor.impl().storage->bump_version();
  copy.source = source;
  copy.version = source->version();
  return master.numel() * static_cast<std::int64_t>(item_size(master.dtype()));
}

void Replicas::run(int running, FunctionRef<const nn::ReplicaView*(int replica)> view,
                   FunctionRef<void(int replica)> body) {
  const bool recording = autograd::grad_mode(), finds_anomalies = autograd::anomaly_mode();
  const std::optional<DType> autocast = autocast_dtype();
  const random::SiteGuard* const sites = random::innermost_site_guard();
  const int first_micro_batch = random::current_micro_batch() * size();
  const std::shared_ptr<random::RankState> rank = random::rank_state();
  run_replicas(workers_.get(), {devices_.data(), static_cast<std::size_t>(running)}, [&](int r) {
    const EnableGradGuard mode(recording);
    const autograd::AnomalyModeGuard anomaly_mode(finds_anomalies);
    const AutocastGuard autocast_mode(autocast);
    const random::RankStateGuard of_rank(rank);
    const random::SiteContext site(sites);
    const random::MicroBatchGuard micro_batch(first_micro_batch + r);
    const nn::ReplicaViewGuard in_view(view(r));
    body(r);
  });
}

}  // namespace lockstep::parallel
