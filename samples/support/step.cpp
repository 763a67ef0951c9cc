#include "support/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/gpt.h"
#include "support/pipeline.h"
#include "support/stop.h"
#include "support/strategy.h"

namespace samples {

namespace par = ls::parallel;

void check_split(const Options& options, int ranks) {
  if (options.strategy == "single") return;
  const std::int64_t batch = options.batch, micro_batches = options.micro_batches;
  if (batch % micro_batches != 0) {
    const std::int64_t below = batch / micro_batches * micro_batches;
    throw ls::InvalidArgument(
        fmt::format("--batch {} cannot be divided into {} micro-batches of the same size; use --batch {}{}", batch,
                    micro_batches, below > 0 ? fmt::format("{} or ", below) : "", below + micro_batches));
  }
  const int sharing = data_ranks(options, ranks);
  if (micro_batches % sharing != 0 && has_mesh(options.strategy))
    throw ls::InvalidArgument(fmt::format(
        "--micro-batches {} cannot be distributed evenly to the {} ranks along dp or fsdp of --mesh {}; use "
        "--micro-batches {}",
        micro_batches, sharing, options.mesh, (micro_batches / sharing + 1) * sharing));
  if (micro_batches % sharing != 0) {
    std::int64_t fewer = ranks;
    while (micro_batches % fewer != 0) --fewer;
    throw ls::InvalidArgument(fmt::format(
        "--micro-batches {} cannot be distributed evenly to {} ranks; use --nproc {}, or --micro-batches {}",
        micro_batches, ranks, fewer, (micro_batches / ranks + 1) * ranks));
  }
  check_pipeline(options, ranks);
  Injection::parse(options.inject).check_rank(ranks);
}

// Division by a power of two is exact, so it may precede or follow the sum.
bool has_same_bits_outside(const Options& options) {
  return std::has_single_bit(static_cast<std::uint64_t>(options.micro_batches));
}

namespace {

par::Reduction reduction_of(const Options& options) {
  if (options.backend == "nccl") return par::Reduction::kNative;  // NCCL chooses the order
  if (options.order == "own-first") return par::Reduction::kOwnFirst;
  return options.order == "arrival" ? par::Reduction::kArrival : par::Reduction::kCanonical;
}

std::shared_ptr<par::CommHook> hook_of(const Options& options) {
  if (options.comm_hook == "fp16") return par::fp16_compress_hook();
  if (options.comm_hook == "bf16") return par::bf16_compress_hook();
  return std::make_shared<par::PowerSgdHook>(par::PowerSgdOptions{.rank = 4, .start_iteration = 10});
}

// The rank of this process on its host.
int local_rank() {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* const text = std::getenv(name);
    if (!text || !*text) continue;
    int rank = -1;
    const char* const end = text + std::strlen(text);
    if (const auto read = std::from_chars(text, end, rank); read.ec != std::errc() || read.ptr != end || rank < 0)
      throw ls::InvalidArgument(fmt::format("{} is \"{}\", expected a number of at least 0", name, text));
    return rank;
  }
  return 0;
}

// The devices of this process: for dp one for each micro-batch, otherwise one.
std::vector<ls::Device> devices_of(const Options& options) {
  const std::int64_t count = options.strategy == "dp" ? options.micro_batches : 1;
  const int gpus = options.device == "cuda" ? std::max(ls::device_count(ls::DeviceType::kCuda), 1) : 1;
  std::vector<ls::Device> devices;
  for (int i = 0; i < count; ++i) {
    if (options.device == "cpu")
      devices.emplace_back("cpu:" + std::to_string(i));
    else if (options.device != "cuda")
      devices.emplace_back(options.device);
    else
      devices.emplace_back(ls::DeviceType::kCuda, (has_ranks(options.strategy) ? local_rank() : i) % gpus);
  }
  return devices;
}

// Without an axis pp there are no stages.
std::vector<std::string> chain_of(const Options& options, int ranks) {
  return has_stages(options, ranks) ? chain_of_gpt() : std::vector<std::string>();
}

}  // namespace

Step::Step(const Options& options, ls::nn::Module& model)
    : options_(options), model_(model), devices_(devices_of(options)),
      is_loss_outside_(options.strategy == "single" || (options.strategy == "dp" && options.loss == "outside")),
      injection_(Injection::parse(options.inject)) {
  model.to(devices_[0]);
  if (has_ranks(options.strategy))
    group_ = par::init_process_group({.backend = options.backend,
                                      .init_method = options.backend == "mpi" ? "mpi://" : "env://",
                                      .timeout = std::chrono::milliseconds(static_cast<long>(options.timeout * 1000)),
                                      .device = devices_[0],
                                      .reduction = reduction_of(options)});
  check_split(options, ranks());
  make_run(static_cast<int>(options.micro_batches));
  at_start_ = counted_bytes();
  axes_at_start_ = bytes_by_axis();
  gathered_by_axis_.resize(axes_at_start_.size());
  if (is_traced(options)) links_at_start_ = links_of_all();
}

void Step::make_run(int micro_batches) {
  const std::string& strategy = options_.strategy;
  if (strategy == "single" || strategy == "accumulate") {
    const int in_turn = strategy == "single" ? 1 : micro_batches;
    run_.emplace<par::GradientAccumulation>(model_, par::GradientAccumulationOptions{.micro_batches = in_turn});
  } else if (strategy == "dp") {
    run_.emplace<par::DataParallel>(model_, devices_);
  } else if (has_mesh(strategy)) {
    const std::vector<par::MeshAxis> axes = mesh_of(options_, ranks());
    mesh_ = par::DeviceMesh(group_, axes);
    run_.emplace<par::Parallel>(model_, mesh_,
                                par::ParallelOptions{.partition = {.micro_batches = micro_batches,
                                                                   .tensor_slices = slices_of_matrices(),
                                                                   .sequence_blocks = ranks_along(axes, "cp"),
                                                                   .attention = attention_of(options_)},
                                                     .plan = tensor_plan(*options_.gpt),
                                                     .chain = chain_of(options_, ranks()),
                                                     .table = schedule_of(options_, ranks()),
                                                     .units = options_.units});
  } else if (const std::optional<Sharded> sharded = sharded_of(strategy)) {
    run_.emplace<par::ShardedDataParallel>(
        model_, group_,
        par::ShardedDataParallelOptions{.stage = sharded->stage,
                                        .units = options_.units,
                                        .micro_batches_per_rank = micro_batches / ranks(),
                                        .offload_optimizer = sharded->offloads});
  } else {
    // Compare the parameters after each step, to detect a wrong gradient.
    const int check_every = injection_.kind() == Injection::Kind::kCorrupt ? 1 : 0;
    auto& run = run_.emplace<par::DistributedDataParallel>(
        model_, group_,
        par::DistributedDataParallelOptions{.micro_batches_per_rank = micro_batches / ranks(),
                                            .check_every = check_every});
    if (options_.comm_hook != "none") run.register_comm_hook(hook_of(options_));
  }
}

std::vector<par::ShardedParameter> Step::named_parameters() {
  return with_run([](auto& run) { return run.named_parameters(); });
}

std::vector<ls::nn::Parameter> Step::parameters() {
  return with_run([](auto& run) { return run.parameters(); });
}

ls::data::DataLoader<> Step::loader(std::shared_ptr<const ls::data::Dataset> set) const {
  if (options_.strategy == "single")
    return ls::data::DataLoader<>(set, {.batch_size = options_.batch, .shuffle = true, .seed = options_.seed});
  const auto* const on_mesh = std::get_if<par::Parallel>(&run_);
  const std::int64_t here = on_mesh ? on_mesh->micro_batches() : options_.micro_batches / ranks();
  const std::int64_t first = on_mesh ? on_mesh->first_micro_batch() : group_ ? group_->rank() * here : 0;
  auto sampler = std::make_shared<ls::data::MicroBatchSampler>(
      set->size(), ls::data::MicroBatchSamplerOptions{.micro_batches = options_.micro_batches,
                                                      .first = first,
                                                      .count = here,
                                                      .batch_size = options_.batch / options_.micro_batches,
                                                      .shuffle = true,
                                                      .seed = options_.seed});
  return ls::data::DataLoader<>(set, {.batch_sampler = sampler});
}

void Step::begin() {
  ++steps_;
  if (group_) injection_.before_step(steps_, *group_);
}

// Ranks send the request with the next step's gradients.
bool Step::stop_requested() {
  return with_run([](auto& run) {
    if (stop_signal() != 0) run.request_stop();
    return run.stop_requested();
  });
}

void Step::clip_grad_norm_(double max_norm) {
  with_run([&](auto& run) { run.clip_grad_norm_(max_norm); });
}

bool Step::agree(bool wanted) {
  if (!group_) return wanted;
  const ls::Tensor answer = ls::tensor({static_cast<std::int64_t>(wanted)});
  group_->broadcast(answer, 0)->wait();
  return answer.item<std::int64_t>() != 0;
}

par::CheckpointParts Step::of_run(const ls::CheckpointParts& parts) {
  return {.model = with_run([](auto& run) { return par::CheckpointModel(&run); }),
          .optimizer = parts.optimizer,
          .scheduler = parts.scheduler,
          .extra = parts.extra,
          .metadata = parts.metadata};
}

// Where every process has the whole model, one saves alone.
void Step::save(const std::string& path, const ls::CheckpointParts& parts) {
  if (!is_sharded()) return ls::save_checkpoint(path, parts);
  par::save_checkpoint(path, of_run(parts));
}

void Step::load(const std::string& path, const ls::CheckpointParts& parts) {
  if (!is_sharded()) return ls::load_checkpoint(path, parts);
  par::load_checkpoint(path, of_run(parts));
}

void Step::share_random_state() {
  if (group_) par::share_random_state(*group_);
}

void Step::wait_for_others() {
  if (group_) group_->barrier();
}

// All ranks have done the same number of steps, so all of them throw. They wait until the main rank has written its
// files, because a launcher stops all ranks when the first one fails.
void Step::check_injection() {
  if (!injection_.is_pending(steps_)) return;
  wait_for_others();
  throw ls::InvalidArgument(
      fmt::format("--inject \"{}\": the fault never happened: this run had {} steps\n"
                  "Steps count from 1 since the start of the ranks; choose an earlier step, or more --epochs",
                  options_.inject, steps_));
}

std::vector<std::uint64_t> Step::hashes() {
  const std::uint64_t hash = gathered([&] { return ls::nn::parameter_hash(model_); });
  if (!group_) return {hash};
  const ls::Tensor all = ls::zeros({group_->size()}, {.dtype = ls::kInt64});
  group_->all_gather(all, ls::tensor({static_cast<std::int64_t>(hash)}))->wait();
  std::vector<std::uint64_t> hashes;
  for (const std::int64_t each : all.span<std::int64_t>()) hashes.push_back(static_cast<std::uint64_t>(each));
  return hashes;
}

bool Step::has_sums_by_module() const { return has_stages(options_, ranks()) && !options_.gpt->untied; }

double Step::idle_share() const {
  const std::optional<par::ScheduleTable> table = schedule_of(options_, ranks());
  return table ? par::simulate(*table, {}).idle : std::numeric_limits<double>::quiet_NaN();
}

Memory Step::memory() {
  const par::TrainingPlan plan = with_run([](auto& run) {
    if constexpr (std::is_same_v<decltype(run), par::Parallel&>)
      return run.training_plan();
    else
      return run.plan();
  });
  Memory own{.parameters = plan.parameter_bytes,
             .gradients = plan.gradient_bytes,
             .optimizer = plan.optimizer_bytes,
             .units = plan.unit_bytes};
  if (!group_) return own;
  const ls::Tensor all = ls::zeros({group_->size(), 4}, {.dtype = ls::kInt64});
  group_->all_gather(all, ls::tensor({own.parameters, own.gradients, own.optimizer, own.units}))->wait();
  const std::vector<std::int64_t> numbers = all.to_vector<std::int64_t>();
  for (std::size_t at = 0; at < numbers.size(); at += 4) {
    const Memory other{.parameters = numbers[at],
                       .gradients = numbers[at + 1],
                       .optimizer = numbers[at + 2],
                       .units = numbers[at + 3]};
    if (other.total() > own.total()) own = other;
  }
  return own;
}

}  // namespace samples
