// The public functions of process groups: construction, and checks of the arguments of operations.
#include "lockstep/parallel/comm/process_group.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/staging_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::parallel {
namespace {

// The backends built into the library. All others are modules.
struct BuiltIn {
  std::string_view name;
  decltype(make_local)* make;
  BackendNeeds needs = {};
};
constexpr BuiltIn kBuiltIn[] = {{"shm", make_shm, {.one_host = true}}, {"local", make_local}};

const BuiltIn* find_built_in(std::string_view name) {
  const auto* const found = std::ranges::find(kBuiltIn, name, &BuiltIn::name);
  return found == std::end(kBuiltIn) ? nullptr : found;
}

// A module that cannot be opened is reported when the backend is made, to all ranks.
BackendNeeds needs_of(const std::string& backend) {
  if (const BuiltIn* const built_in = find_built_in(backend)) return built_in->needs;
  try {
    return backend_module(backend).needs;
  } catch (const NotBuilt&) {
    return {};
  }
}

void check_tensor(const char* op, const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.defined(), "{}: the tensor is undefined", op);
}

void check_pair(const char* op, const Tensor& out, const Tensor& in, std::int64_t out_parts, std::int64_t in_parts) {
  check_tensor(op, out);
  check_tensor(op, in);
  LOCKSTEP_CHECK(out.device() == in.device() || (out.device().is_cpu() && in.device().is_cpu()),
                 "{}: out is {}, in is {}; expected both on one device", op, lockstep::describe(out),
                 lockstep::describe(in));
  LOCKSTEP_CHECK(out.dtype() == in.dtype() && out.numel() * in_parts == in.numel() * out_parts,
                 "{}: out is {}, in is {}; expected one dtype, and out with {} / {} of in's elements", op,
                 lockstep::describe(out), lockstep::describe(in), out_parts, in_parts);
}

void check_reduction(const char* op, const Tensor& tensor, ReduceOp reduce) {
  check_tensor(op, tensor);
  LOCKSTEP_CHECK(tensor.dtype() != kBool || (reduce != ReduceOp::kSum && reduce != ReduceOp::kAvg),
                 "{}: {} cannot be added; use kMax for \"any rank\", kMin for \"all ranks\", or to(kUInt8)", op,
                 lockstep::describe(tensor));
  LOCKSTEP_CHECK(reduce != ReduceOp::kAvg || tensor.is_floating_point(),
                 "{}: the average of {} is not an integer; use kSum and divide", op, lockstep::describe(tensor));
}

void check_scale(const char* op, const Tensor& tensor, double scale) {
  check_reduction(op, tensor, ReduceOp::kSum);
  LOCKSTEP_CHECK(scale == 1 || tensor.is_floating_point(), "{}: {} times {} is no integer; use kSum", op,
                 lockstep::describe(tensor), scale);
}

// Throws InvalidArgument for a backend that does not exist, and for options that it does not have.
void check_backend(const InitOptions& options) {
  const std::string& name = options.backend;
  const BuiltIn* const built_in = find_built_in(name);
  LOCKSTEP_CHECK(built_in || is_backend_module(name),
                 "init_process_group: there is no backend '{}'; there are shm, local, {}", name,
                 backend_module_names());
  const std::string_view options_of = options.backend_options.backend();
  LOCKSTEP_CHECK(
      options_of.empty() || options_of == name,
      "init_process_group: .backend_options are for the backend '{}', and .backend is '{}'; expected both for "
      "one backend, or no .backend_options",
      options_of, name);
  LOCKSTEP_CHECK(!*order_text(options.reduction) || built_in,
                 "init_process_group: sums {} are for the backends local and shm, not for '{}'",
                 order_text(options.reduction), name);
}

void clear(ScratchStore& scratch) {
  try {
    scratch.clear();
  } catch (const CommError&) {
    // The rank that serves the store has ended: the next barrier names the culprit.
  }
}

}  // namespace

ProcessGroup::ProcessGroup(Rendezvous place, InitOptions options)
    : staging_(std::make_unique<Staging>()), place_(std::move(place)), options_(std::move(options)),
      messages_(2 * static_cast<std::size_t>(size()), 0) {
  const std::shared_ptr<FormationWatch> watch = std::exchange(place_.watch, nullptr);
  const std::jthread answers = formation_answers(size() > 1 ? watch.get() : nullptr);
  std::shared_ptr<ScratchStore> scratch;
  try {
    scratch = make_backend(watch);
    if (scratch) barrier();  // after this no rank reads the keys of the formation
  } catch (const Error& error) {
    if (watch) watch->explain(error);
    throw;
  }
  try {
    if (scratch) clear(*scratch);
    if (backend_) barrier();  // no rank leaves, and its store with it, before all ranks have a backend
  } catch (const Error& error) {
    // After the first barrier the backend knows which rank hangs, and ranks that have the group do not reply.
    const bool hangs = scratch && dynamic_cast<const CommTimeout*>(&error);
    if (watch) hangs ? watch->pass_on(error) : watch->explain(error);
    throw;
  }
  if (watch) watch->finish();
}

// Returns the store that the backend has used, to be cleared; null if the backend keeps it, or without a store.
std::shared_ptr<ScratchStore> ProcessGroup::make_backend(const std::shared_ptr<FormationWatch>& watch) {
  const std::string& name = options_.backend;
  const BuiltIn* const built_in = find_built_in(name);
  if (size() == 1) return nullptr;
  const BackendModule* const module = built_in ? nullptr : &backend_module(name);
  const bool keeps_store = module && module->keeps_store;
  const auto scratch = place_.store && !keeps_store ? std::make_shared<ScratchStore>(place_.store) : nullptr;
  const std::shared_ptr<Store> store = scratch ? scratch : place_.store;
  Rendezvous place = place_;
  place.store = watch ? FormationWatch::watched(watch, store) : store;
  place.watch = watch;
  backend_ = (module ? module->make : built_in->make)(options_, place);
  return scratch;
}

ProcessGroup::~ProcessGroup() {
  if (std::uncaught_exceptions() > 0) return;  // peers may never arrive
  try {
    for (const auto& work : unfinished_) work->wait();
  } catch (const Error&) {
    // The user did not wait for the operation, so its error is ignored.
  }
}

void ProcessGroup::fail(const std::string& why) {
  if (backend_) backend_->fail_group(why);
}

bool ProcessGroup::has_failed() const { return backend_ && backend_->has_failed(); }

void ProcessGroup::step_failed(const std::string& why) {
  if (backend_) failed_steps_ = backend_->step_failed(calls_, why);
}

void ProcessGroup::check_rank(const char* op, const char* role, int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < size(), "{}: {} is {}, the group has ranks 0 to {}", op, role, rank, size() - 1);
}

int ProcessGroup::global_rank(int rank) const {
  check_rank("global_rank", "rank", rank);
  return place_.global_rank(rank);
}

std::shared_ptr<void>& ProcessGroup::attachment_of(std::type_index type) {
  const auto at = std::ranges::find(*attachments_, type, &Attachments::value_type::first);
  return at == attachments_->end() ? attachments_->emplace_back(type, nullptr).second : at->second;
}

Tensor ProcessGroup::empty(const Shape& shape, DType dtype, Device device) {
  const std::int64_t count = checked_numel("empty", shape);
  if (!backend_) return raw::empty(shape, {.dtype = dtype, .device = device});
  const std::size_t bytes = static_cast<std::size_t>(count) * item_size(dtype);
  const Call call{.kind = Kind::kEmpty,
                  .count = static_cast<std::int64_t>(bytes),
                  .number = calls_++,
                  .rank = rank(),
                  .global_rank = place_.global_rank(rank()),
                  .failed_steps = failed_steps_};
  const Device on = backend_->device_for(device);
  Ref<Storage> storage = backend_->allocate(call, bytes, on);
  if (on != device) storage = staging_->mirror(std::move(storage), device);
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), shape, count, dtype)));
}

std::vector<Tensor> ProcessGroup::views_of_all(const Tensor& own) const {
  if (!backend_) return {own};
  std::vector<Tensor> views;
  for (int r = 0; r < size(); ++r) {
    const std::size_t bytes = static_cast<std::size_t>(own.numel()) * item_size(own.dtype());
    void* const address = backend_->address_in(r, own.raw_data(), bytes);
    if (!address) return {};
    Ref<Storage> storage = Storage::wrap(address, bytes, own.device(), own.impl().storage->owner());
    views.push_back(
        Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), own.shape(), own.numel(), own.dtype()))));
  }
  return views;
}

std::shared_ptr<Work> ProcessGroup::broadcast(const Tensor& tensor, int root, const CallOptions& options) {
  check_tensor("broadcast", tensor);
  check_rank("broadcast", "root", root);
  return start({.kind = Kind::kBroadcast, .count = tensor.numel(), .root = root}, tensor, tensor, options);
}

std::shared_ptr<Work> ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, const CallOptions& options) {
  check_reduction("all_reduce", tensor, op);
  return start({.kind = Kind::kAllReduce, .count = tensor.numel(), .op = op}, tensor, tensor, options);
}

std::shared_ptr<Work> ProcessGroup::all_reduce_scaled(const Tensor& tensor, double scale, const CallOptions& options) {
  check_scale("all_reduce_scaled", tensor, scale);
  return start({.kind = Kind::kAllReduce, .count = tensor.numel(), .scale = scale}, tensor, tensor, options);
}

std::shared_ptr<Work> ProcessGroup::reduce(const Tensor& tensor, int root, ReduceOp op, const CallOptions& options) {
  check_reduction("reduce", tensor, op);
  check_rank("reduce", "root", root);
  const Call call{.kind = Kind::kReduce, .count = tensor.numel(), .op = op, .root = root};
  return start(call, tensor, rank() == root ? tensor : Tensor(), options);
}

std::shared_ptr<Work> ProcessGroup::all_gather(const Tensor& out, const Tensor& in, const CallOptions& options) {
  check_pair("all_gather", out, in, size(), 1);
  return start({.kind = Kind::kAllGather, .count = in.numel()}, in, out, options);
}

std::shared_ptr<Work> ProcessGroup::gather(const std::vector<Tensor>& outs, const Tensor& in, int root,
                                           const CallOptions& options) {
  check_tensor("gather", in);
  check_rank("gather", "root", root);
  const Call call{.kind = Kind::kGather, .count = in.numel(), .root = root};
  LOCKSTEP_CHECK(outs.size() == (rank() == root ? static_cast<std::size_t>(size()) : 0),
                 "gather: {} tensors in outs on rank {}; the root gives {}, the others none", outs.size(), rank(),
                 size());
  if (rank() != root) return start(call, in, Tensor(), options);
  for (const Tensor& out : outs) {
    check_pair("gather", out, in, 1, 1);
    raw::require_writable("gather", out);
  }
  const Tensor packed = raw::empty({size(), in.numel()}, {.dtype = in.dtype(), .device = in.device()});
  return keep(then(start(call, in, packed, options), [packed, outs] {
    for (std::size_t r = 0; r < outs.size(); ++r)
      raw::copy(raw::select(packed, 0, static_cast<std::int64_t>(r)).reshape(outs[r].shape()), outs[r]);
  }));
}

std::shared_ptr<Work> ProcessGroup::scatter(const Tensor& out, const std::vector<Tensor>& ins, int root,
                                            const CallOptions& options) {
  check_tensor("scatter", out);
  check_rank("scatter", "root", root);
  const Call call{.kind = Kind::kScatter, .count = out.numel(), .dtype = out.dtype(), .root = root};
  LOCKSTEP_CHECK(ins.size() == (rank() == root ? static_cast<std::size_t>(size()) : 0),
                 "scatter: {} tensors in ins on rank {}; the root gives {}, the others none", ins.size(), rank(),
                 size());
  if (rank() != root) return start(call, Tensor(), out, options);
  const Tensor packed = raw::empty({size(), out.numel()}, {.dtype = out.dtype(), .device = out.device()});
  for (std::size_t r = 0; r < ins.size(); ++r) {
    check_pair("scatter", out, ins[r], 1, 1);
    raw::copy(raw::reshape(ins[r], {out.numel()}), raw::select(packed, 0, static_cast<std::int64_t>(r)));
  }
  return start(call, packed, out, options);
}

std::shared_ptr<Work> ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op,
                                                   const CallOptions& options) {
  check_reduction("reduce_scatter", in, op);
  check_pair("reduce_scatter", out, in, 1, size());
  return start({.kind = Kind::kReduceScatter, .count = out.numel(), .op = op}, in, out, options);
}

std::shared_ptr<Work> ProcessGroup::reduce_scatter_scaled(const Tensor& out, const Tensor& in, double scale,
                                                          const CallOptions& options) {
  check_scale("reduce_scatter_scaled", in, scale);
  check_pair("reduce_scatter_scaled", out, in, 1, size());
  return start({.kind = Kind::kReduceScatter, .count = out.numel(), .scale = scale}, in, out, options);
}

std::shared_ptr<Work> ProcessGroup::all_to_all(const Tensor& out, const Tensor& in, const AllToAllOptions& splits,
                                               const CallOptions& options) {
  check_tensor("all_to_all", out);
  check_tensor("all_to_all", in);
  if (!splits.in_splits.empty() || !splits.out_splits.empty()) return all_to_all_uneven(out, in, splits, options);
  check_pair("all_to_all", out, in, 1, 1);
  LOCKSTEP_CHECK(in.dim() > 0 && in.size(0) % size() == 0, "all_to_all: {} cannot be cut into {} equal parts",
                 lockstep::describe(in), size());
  return start({.kind = Kind::kAllToAll, .count = in.numel() / size()}, in, out, options);
}

std::shared_ptr<Work> ProcessGroup::send(const Tensor& tensor, int to, int tag, const CallOptions& options) {
  check_tensor("send", tensor);
  check_rank("send", "to", to);
  LOCKSTEP_CHECK(to != rank(), "send: rank {} would send to itself", to);
  return start({.kind = Kind::kSend, .count = tensor.numel(), .root = to, .tag = tag}, tensor, Tensor(), options);
}

std::shared_ptr<Work> ProcessGroup::recv(const Tensor& tensor, int from, int tag, const CallOptions& options) {
  check_tensor("recv", tensor);
  check_rank("recv", "from", from);
  LOCKSTEP_CHECK(from != rank(), "recv: rank {} would receive from itself", from);
  return start({.kind = Kind::kRecv, .count = tensor.numel(), .dtype = tensor.dtype(), .root = from, .tag = tag},
               Tensor(), tensor, options);
}

void ProcessGroup::barrier(const CallOptions& options) {
  start({.kind = Kind::kBarrier}, Tensor(), Tensor(), options)->wait();
  for (const auto& work : unfinished_) work->wait();
  unfinished_.clear();
}

double ProcessGroup::mean(double value, const CallOptions& options) {
  const Tensor tensor = raw::full({}, value, {.dtype = kFloat64});
  all_reduce(tensor, ReduceOp::kAvg, options)->wait();
  return tensor.item<double>();
}

void ProcessGroup::release_staging() {
  if (backend_) backend_->release_staging();
  staging_->release();
}

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  check_backend(options);
  auto group = std::make_shared<ProcessGroup>(rendezvous({.backend = options.backend,
                                                          .init_method = options.init_method,
                                                          .timeout = options.timeout,
                                                          .world_size = options.world_size,
                                                          .rank = options.rank,
                                                          .store = options.store,
                                                          .group_name = options.group_name,
                                                          .authenticate = options.authenticate,
                                                          .needs = needs_of}),
                                              options);
  const bool ranks_are_threads = options.backend == "local" || options.backend == "sim";
  if (ranks_are_threads && group->size() > 1) group->rank_state_ = random::become_rank();
  return group;
}

}  // namespace lockstep::parallel
