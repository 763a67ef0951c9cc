#include "lockstep/parallel/step/model_check_internal.h"

#include <algorithm>
#include <set>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

struct Entry {
  std::string name;
  Tensor tensor;
};

std::vector<Entry> entries_of(const nn::Module& module) {
  std::vector<Entry> entries;
  for (const auto& [name, parameter] : module.named_parameters()) entries.push_back({name, parameter.master()});
  for (const auto& [name, buffer] : module.named_buffers()) entries.push_back({name, buffer.master()});
  return entries;
}

// Returns the options, then one line for each entry. Devices are numbered in order of appearance, as their names differ between ranks.
std::vector<std::string> lines_of(const nn::Module& module, const std::vector<std::string>& options) {
  std::vector<std::string> lines = options;
  std::vector<Device> devices;
  for (const Entry& entry : entries_of(module)) {
    auto at = std::ranges::find(devices, entry.tensor.device());
    if (at == devices.end()) at = devices.insert(at, entry.tensor.device());
    lines.push_back(fmt::format("{} {} {}{}{} on device {}", entry.name, entry.tensor.shape().to_string(),
                                name(entry.tensor.dtype()), entry.tensor.requires_grad() ? "" : " frozen",
                                nn::is_deferred(entry.tensor) ? " deferred" : "", at - devices.begin()));
  }
  return lines;
}

std::int64_t hash_of(const std::string& text) {
  nn::Hash hash;
  hash.update(std::as_bytes(std::span(text)));
  return static_cast<std::int64_t>(hash.digest());
}

std::int64_t hash_of(const Tensor& tensor) {
  const Tensor dense = raw::contiguous(reachable(tensor, Device()));
  nn::Hash hash;
  hash.update(nn::bytes_of(dense));
  return static_cast<std::int64_t>(hash.digest());
}

// Broadcasts line k of rank `rank`.
std::string line_from(ProcessGroup& group, const std::vector<std::string>& lines, std::size_t k, int rank) {
  constexpr std::int64_t kLongest = 256;
  std::string text = k < lines.size() ? lines[k] : "nothing";
  text.resize(kLongest);
  const Tensor bytes = raw::from_bytes(text.data(), {kLongest}, kUInt8);
  group.broadcast(bytes, rank)->wait();
  const std::span<const std::uint8_t> span = bytes.span<std::uint8_t>();
  return std::string(span.begin(), std::ranges::find(span, std::uint8_t{0}));
}

// `what` of a line's number begins the error.
void check_same_lines(FunctionRef<std::string(std::size_t line)> what, const std::vector<std::string>& lines,
                      ProcessGroup& group) {
  const Tensor counts = gather_numbers(&group, {static_cast<std::int64_t>(lines.size())});
  const std::int64_t longest = raw::to(counts, kInt64).max().item<std::int64_t>();
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(longest), 0);
  std::ranges::transform(lines, hashes.begin(), [](const std::string& line) { return hash_of(line); });
  const Tensor all = gather_numbers(&group, hashes);
  const std::span<const std::int64_t> each = all.span<std::int64_t>();
  for (int r = 1; r < group.size(); ++r) {
    for (std::size_t k = 0; k < hashes.size(); ++k) {
      if (each[static_cast<std::size_t>(r) * hashes.size() + k] == each[k]) continue;
      const std::string first = line_from(group, lines, k, 0), other = line_from(group, lines, k, r);
      throw CommError(fmt::format("{}: rank 0 has {}, rank {} has {}", what(k), first, r, other));
    }
  }
}

}  // namespace

void check_same_model(const char* mode, const nn::Module& module, ProcessGroup& group,
                      const std::vector<std::string>& options) {
  const auto what = [&](std::size_t line) {
    return fmt::format("{}: ranks have different {}", mode,
                       line >= options.size()       ? "models"
                       : line + 1 == options.size() ? "versions or CPUs"
                                                    : "options");
  };
  check_same_lines(what, lines_of(module, options), group);
}

void check_same_tensors(const char* op, const nn::Module& module, ProcessGroup& group) {
  const std::string what = fmt::format("{}: ranks have different models", op);
  check_same_lines([&](std::size_t) { return what; }, lines_of(module, {}), group);
}

namespace {

// All ranks get rank 0's values of the parameters and buffers for which `is_chosen`. Nothing is sent if there are none.
void share_chosen(const char* op, const nn::Module& module, ProcessGroup& group,
                  FunctionRef<bool(const nn::TensorHandle&)> is_chosen) {
  std::vector<Entry> entries;
  std::vector<Phase> phases;
  const auto add = [&](const auto& named, Phase phase) {
    for (const auto& [name, handle] : named) {
      if (!is_chosen(handle)) continue;
      entries.push_back({name, handle.master()});
      phases.push_back(phase);
    }
  };
  add(module.named_parameters(), Phase::kParameters);
  add(module.named_buffers(), Phase::kBuffers);
  if (entries.empty()) return;
  if (std::ranges::any_of(entries, [](const Entry& each) { return nn::is_deferred(each.tensor); }))
    check_same_text(fmt::format("{}: ranks have deferred parameters and different seeds", op),
                    fmt::format("seed {}", random::seed()), group);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!nn::is_deferred(entries[i].tensor))
      group.broadcast(entries[i].tensor, 0, {.phase = phases[i], .name = entries[i].name})->wait();
  }
  group.release_staging();
}

}  // namespace

void share_values(const char* op, const nn::Module& module, ProcessGroup& group) {
  share_chosen(op, module, group, [](const nn::TensorHandle&) { return true; });
}

void share_added_values(const char* mode, nn::Module& module) {
  ProcessGroup* slices = nullptr;  // all groups of kModel have the same ranks (require_runner_ranks)
  std::set<const nn::TensorSlot*> shared;
  for (const auto& runner : shared_runners(module)) {
    if (runner->part != SharedRunner::Part::kModel || !runner->group) continue;
    slices = runner->group.get();
    for (const nn::TensorHandle& handle : runner->shared_values()) shared.insert(handle.id());
  }
  if (!slices) return;
  share_chosen(mode, module, *slices,
               [&](const nn::TensorHandle& handle) { return !handle.slice() && !shared.contains(handle.id()); });
}

void check_same_text(const std::string& what, const std::string& text, ProcessGroup& group) {
  check_same_texts(what, {text}, group);
}

void check_same_texts(const std::string& what, const std::vector<std::string>& texts, ProcessGroup& group) {
  check_same_lines([&](std::size_t) { return what; }, texts, group);
}

namespace {

void check_same_entries(const char* mode, const std::vector<Entry>& entries, ProcessGroup& group) {
  if (entries.empty()) return;
  std::vector<std::int64_t> hashes;
  for (const Entry& entry : entries) hashes.push_back(hash_of(entry.tensor));
  const Tensor all = gather_numbers(&group, hashes);
  const std::span<const std::int64_t> each = all.span<std::int64_t>();
  for (std::size_t k = 0; k < hashes.size(); ++k) {
    for (int r = 1; r < group.size(); ++r) {
      if (each[static_cast<std::size_t>(r) * hashes.size() + k] == each[k]) continue;
      throw CommError(
          fmt::format("{}: replicas have diverged: {} of rank {} is not rank 0's", mode, entries[k].name, r));
    }
  }
}

}  // namespace

void check_same_values(const char* mode, const nn::Module& module, ProcessGroup& group, bool with_buffers) {
  std::vector<Entry> entries = entries_of(module);
  if (!with_buffers) entries.resize(module.parameters().size());  // parameters come first
  check_same_entries(mode, entries, group);
}

void check_same_whole_values(const char* mode, nn::Module& module) {
  std::vector<Entry> entries;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter.slice()) entries.push_back({name, parameter.master()});
  }
  for (const auto& [name, buffer] : module.named_buffers()) entries.push_back({name, buffer.master()});
  for (ProcessGroup* const slices : runner_groups(module, SharedRunner::Part::kModel))
    check_same_entries(mode, entries, *slices);
}

void check_same_whole_gradients(const char* mode, nn::Module& module, const std::vector<ShardedParameter>& parameters) {
  for (ProcessGroup* const slices : runner_groups(module, SharedRunner::Part::kModel)) {
    constexpr std::size_t kFields = 3;  // which elements, and the hash of their gradient
    std::vector<std::int64_t> own;
    std::vector<std::string> names;
    for (const ShardedParameter& each : parameters) {
      if (each.parameter.slice()) continue;
      const Tensor gradient = each.parameter.master().grad();
      own.insert(own.end(), {each.part.begin, each.part.numel, gradient.defined() ? hash_of(gradient) : 0});
      names.push_back(each.name);
    }
    if (names.empty()) continue;
    const Tensor all = gather_numbers(slices, own);
    const std::span<const std::int64_t> of_ranks = all.span<std::int64_t>();
    const auto at = [&](std::size_t rank, std::size_t p) { return of_ranks.data() + rank * own.size() + kFields * p; };
    for (std::size_t i = 0; i < of_ranks.size() / kFields; ++i) {
      const std::size_t rank = i / names.size(), p = i % names.size();
      // Ranks with slices of different sizes have other pieces of a sharded model.
      const bool has_same_elements = at(rank, p)[0] == at(0, p)[0] && at(rank, p)[1] == at(0, p)[1];
      if (!has_same_elements || at(rank, p)[2] == at(0, p)[2]) continue;
      const Tensor seeds = gather_numbers(slices, {static_cast<std::int64_t>(random::seed())});
      const std::int64_t first = seeds.span<std::int64_t>()[0], other = seeds.span<std::int64_t>()[rank];
      LOCKSTEP_CHECK(first == other,
                     "{}: the gradient of {} on rank {} of the axis is not that on rank 0: their seeds are {} and {}, "
                     "which give dropout other masks; call manual_seed with one seed on all ranks along it",
                     mode, names[p], rank, other, first);
      throw InvalidArgument(
          fmt::format("{}: the gradient of {} on rank {} of the axis is not that on rank 0, though both have the whole "
                      "parameter: it is used between a ColwiseParallel layer and the RowwiseParallel one, where each "
                      "rank has a part of it; use it before or after them",
                      mode, names[p], rank));
    }
  }
}

namespace {

constexpr const char* kBatchHashes = "batch hashes";  // the name of the collective in traces

// Ranks exchange one number: the hash of the batch, but for its two lowest bits. Returns whether any rank has the flag.
bool check_batch_and_any(const char* op, const char* name, const std::vector<Tensor>& batch, ProcessGroup& group,
                         const char* rule, const StepFlags& flags) {
  nn::Hash hash;
  for (const Tensor& each : batch) {
    if (!each.defined()) continue;
    const std::string text = describe(each);
    hash.update(std::as_bytes(std::span(text)));
    hash.update(nn::bytes_of(raw::contiguous(raw::to(each.detach(), Device()))));
  }
  const Tensor all = raw::empty({group.size()}, {.dtype = kInt64});
  constexpr std::int64_t kFlag = 1, kEvaluates = 2, kFlags = kFlag | kEvaluates;
  const std::int64_t own = (static_cast<std::int64_t>(hash.digest()) & ~kFlags) | (flags.evaluates ? kEvaluates : 0) |
                           (flags.wants_stop ? kFlag : 0);
  group.all_gather(all, raw::from_bytes(&own, {1}, kInt64), {.phase = Phase::kInputs, .name = name})->wait();
  const std::span<const std::int64_t> numbers = all.span<std::int64_t>();
  for (int r = 1; r < group.size(); ++r) {
    const std::int64_t difference = numbers[static_cast<std::size_t>(r)] ^ numbers[0];
    LOCKSTEP_CHECK(
        !(difference & kEvaluates),
        "{}: rank {} of the axis evaluates, but rank {} trains; all ranks along it must call the same method", op,
        numbers[0] & kEvaluates ? 0 : r, numbers[0] & kEvaluates ? r : 0);
    LOCKSTEP_CHECK(!(difference & ~kFlags),
                   "{}: rank {} of the axis has other tensors than rank 0, but all ranks along it {}", op, r, rule);
  }
  return std::ranges::any_of(numbers, [](std::int64_t each) { return (each & kFlag) != 0; });
}

}  // namespace

void check_same_batch(const char* op, const std::vector<Tensor>& batch, ProcessGroup& group, const char* rule) {
  check_batch_and_any(op, op, batch, group, rule, {});
}

// The flag passes along the slices first, then along the stages: so it reaches all ranks of both.
bool check_same_step_of_parts(const char* mode, nn::Module& module, const std::vector<Tensor>& batch, StepFlags flags) {
  if (!nn::ModuleRunner::exists()) return flags.wants_stop;
  for (ProcessGroup* const slices : runner_groups(module, SharedRunner::Part::kModel))
    flags.wants_stop = check_batch_and_any(
        mode, kBatchHashes, batch, *slices,
        "have slices of one model and must get the same batch; give a sampler the rank and size of the axis "
        "dp, and not of tp",
        flags);
  for (ProcessGroup* const stages : runner_groups(module, SharedRunner::Part::kStages))
    flags.wants_stop = check_batch_and_any(
        mode, kBatchHashes, batch, *stages,
        "have stages of one model and must get the same batch; give a sampler the rank and size of the axis "
        "dp, and not of pp",
        flags);
  return flags.wants_stop;
}

}  // namespace lockstep::parallel
