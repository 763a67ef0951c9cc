#include "support/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/explain_mesh.h"
#include "support/gpt.h"
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

// The mode of a run in a report.
std::string mode_in_report(const Options& options, const std::vector<par::MeshAxis>& mesh) {
  if (!has_mesh(options.strategy)) return options.strategy;
  return std::ranges::find(mesh, "fsdp", &par::MeshAxis::name) != mesh.end() ? "sharded" : "ddp";
}

// The traffic of `links` that `before` does not have.
std::vector<par::LinkTraffic> difference(std::vector<par::LinkTraffic> links,
                                         const std::vector<par::LinkTraffic>& before) {
  for (par::LinkTraffic& link : links) {
    for (const par::LinkTraffic& earlier : before) {
      if (link.from != earlier.from || link.to != earlier.to || link.phase != earlier.phase) continue;
      link.bytes -= earlier.bytes;
      link.transfers -= earlier.transfers;
    }
  }
  std::erase_if(links, [](const par::LinkTraffic& link) { return link.transfers == 0; });
  return links;
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
  at_start_ = booked();
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

void Step::gather(ls::FunctionRef<void()> body) {
  const std::vector<par::LinkTraffic> before = links();
  with_run([&](auto& run) { run.gathered(body); });
  for (const par::LinkTraffic& link : difference(links(), before)) {
    const auto is_same = [&](const par::LinkTraffic& each) {
      return each.from == link.from && each.to == link.to && each.phase == link.phase;
    };
    const auto known = std::ranges::find_if(gathered_links_, is_same);
    if (known == gathered_links_.end()) {
      gathered_links_.push_back(link);
    } else {
      known->bytes += link.bytes;
      known->transfers += link.transfers;
    }
  }
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

const par::TrafficStats& Step::traffic() {
  return *with_run([](auto& run) { return &run.traffic(); });
}

// The traffic counters of this process, without those of `gathered`.
std::vector<par::LinkTraffic> Step::links() { return difference(traffic().links(), gathered_links_); }

PhaseBytes Step::booked() {
  PhaseBytes bytes = {};
  for (const par::LinkTraffic& link : links()) bytes[static_cast<std::size_t>(link.phase)] += link.bytes;
  return bytes;
}

// The traffic counters of all processes, without Phase::kOther, which is not part of the training, and without copies
// inside a process (traffic.h: a negative end).
std::vector<par::LinkTraffic> Step::links_of_all() {
  std::vector<par::LinkTraffic> links = this->links();
  std::erase_if(links, [](const par::LinkTraffic& link) {
    return link.phase == par::Phase::kOther || link.from < 0 || link.to < 0;
  });
  if (!group_) return links;
  // Every rank counts what it sends: (to, phase, bytes or transfers).
  const std::int64_t n = group_->size();
  const ls::Tensor own = ls::zeros({n, par::kPhaseCount, 2}, {.dtype = ls::kInt64}),
                   all = ls::zeros({n, n, par::kPhaseCount, 2}, {.dtype = ls::kInt64});
  const auto at = [](std::int64_t link, int phase) {
    return static_cast<std::size_t>((link * par::kPhaseCount + phase) * 2);
  };
  for (const par::LinkTraffic& link : links) {
    own.span<std::int64_t>()[at(link.to, static_cast<int>(link.phase))] = link.bytes;
    own.span<std::int64_t>()[at(link.to, static_cast<int>(link.phase)) + 1] = link.transfers;
  }
  group_->all_gather(all, own)->wait();
  links.clear();
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      for (int phase = 0; phase < par::kPhaseCount; ++phase) {
        const std::int64_t* const numbers = &all.span<std::int64_t>()[at(from * n + to, phase)];
        if (numbers[1] > 0) links.push_back({from, to, static_cast<par::Phase>(phase), numbers[0], numbers[1]});
      }
    }
  }
  return links;
}

std::vector<ls::Trace> Step::traces(ls::Trace trace) {
  const report::Counters counters{
      .steps = steps_, .at_start = links_at_start_, .in_steps = difference(links_of_all(), links_at_start_)};
  std::vector<ls::Trace> traces;
  if (group_)
    traces = par::gather_traces(*group_, trace);
  else
    traces.push_back(std::move(trace));
  if (traces.empty()) return traces;
  for (ls::Trace& each : traces)
    each.process = group_ ? fmt::format("{} rank {}", options_.strategy, each.rank) : options_.strategy;
  std::int64_t gradient_bytes = 0;
  for (const ls::nn::Parameter& parameter : model_.parameters())
    gradient_bytes += parameter->numel() * static_cast<std::int64_t>(ls::item_size(parameter->dtype()));
  traces[0].notes = {{report::kModeNote, mode_in_report(options_, mesh_of(options_, ranks()))},
                     {report::kGradientsNote, std::to_string(gradient_bytes)},
                     report::counters_note(counters)};
  if (has_mesh(options_.strategy)) traces[0].notes.emplace_back(kTextsNote, std::to_string(texts_));
  return traces;
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

Moved Step::moved() {
  const PhaseBytes now = booked();
  std::vector<std::int64_t> numbers(at_start_.begin(), at_start_.end());
  numbers.insert(numbers.end(), now.begin(), now.end());
  if (group_) {
    const ls::Tensor sum = ls::tensor(numbers);
    group_->all_reduce(sum)->wait();
    numbers = sum.to_vector<std::int64_t>();
  }
  Moved moved{.steps = steps_};
  for (std::size_t p = 0; p < now.size(); ++p) {
    moved.at_start[p] = numbers[p];
    moved.in_steps[p] = numbers[now.size() + p] - numbers[p];
  }
  return moved;
}

Memory Step::memory() {
  const par::TrainingPlan plan = with_run([](auto& run) {
    if constexpr (std::is_same_v<decltype(run), par::Parallel&>)
      return run.training_plan();
    else
      return run.plan();
  });
  return {.parameters = plan.parameter_bytes,
          .gradients = plan.gradient_bytes,
          .optimizer = plan.optimizer_bytes,
          .units = plan.unit_bytes};
}

}  // namespace samples
