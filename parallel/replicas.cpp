#include "lockstep/parallel/replicas.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops.h"
#include "lockstep/tensor/random.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

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
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    workers_.push_back(std::make_unique<ReplicaWorker>());
    if (r > 0) copies_[r].resize(parameters_.size());
  }
}

const Tensor& Replicas::leaf(int replica, std::size_t parameter) const {
  return replica == 0 ? parameters_[parameter].master() : copies_[static_cast<std::size_t>(replica)][parameter].tensor;
}

std::int64_t Replicas::refresh(int replica) {
  std::int64_t bytes = 0;
  for (std::size_t p = 0; p < parameters_.size() && replica > 0; ++p) {
    const Tensor& master = parameters_[p].master();
    Copy& copy = copies_[static_cast<std::size_t>(replica)][p];
    const Storage* const source = master.impl().storage.get();
    if (copy.tensor.defined()) copy.tensor.requires_grad_(master.requires_grad());
    if (copy.tensor.defined() && copy.source == source && copy.version == source->version()) continue;
    const TensorOptions options{.dtype = master.dtype(), .device = device(replica)};
    if (!copy.tensor.defined() || copy.tensor.shape() != master.shape() || copy.tensor.dtype() != master.dtype())
      copy.tensor = raw::empty(master.shape(), options);
    copy.tensor.requires_grad_(master.requires_grad());
    raw::copy(master, copy.tensor);
    copy.tensor.impl().storage->bump_version();
    copy.source = source;
    copy.version = source->version();
    bytes += master.numel() * static_cast<std::int64_t>(item_size(master.dtype()));
  }
  return bytes;
}

void Replicas::run(const std::vector<nn::ReplicaView>& views, FunctionRef<void(int replica)> body) {
  const bool recording = autograd::grad_mode();
  const int first_shard = random::current_shard() * size();
  std::vector<Callback<void()>> tasks;
  for (std::size_t r = 0; r < views.size(); ++r) {
    tasks.emplace_back([&, r] {
      const EnableGradGuard mode(recording);
      const random::ShardGuard shard(first_shard + static_cast<int>(r));
      const nn::ReplicaViewGuard view(&views[r]);
      body(static_cast<int>(r));
    });
  }
  for (std::size_t r = 0; r < tasks.size(); ++r) workers_[r]->start(&tasks[r]);
  std::exception_ptr first_error;
  int failed = 0;
  for (std::size_t r = 0; r < tasks.size(); ++r) {
    const std::exception_ptr error = workers_[r]->wait();
    if (!error || first_error) continue;
    first_error = error;
    failed = static_cast<int>(r);
  }
  if (!first_error) return;
  try {
    std::rethrow_exception(first_error);
  } catch (Error& error) {
    error.add_context(fmt::format("DataParallel: replica {} on {}", failed, device(failed).to_string()));
    throw;
  } catch (const std::exception& error) {
    throw Error(fmt::format("DataParallel: replica {} on {}: {}", failed, device(failed).to_string(), error.what()));
  }
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
