#include "tools/explain_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "lockstep/base/error.h"
#include "tools/explain.h"
#include "tools/explain_scaling.h"

namespace par = lockstep::parallel;

namespace {

constexpr double kGiga = 1e9;
constexpr std::int64_t kHeadSize = 64;

// The GPT with heads of 64 numbers, four times any number of them, and about as many layers as heads.
plan::Gpt gpt_of(double parameters, plan::Gpt model) {
  constexpr std::int64_t kStep = 4;
  const auto with_heads = [&](std::int64_t heads) {
    plan::Gpt other = model;
    other.layers = other.heads = heads;
    other.width = kHeadSize * heads;
    return other;
  };
  std::int64_t heads = kStep;
  while (static_cast<double>(with_heads(heads + kStep / 2).parameters()) <= parameters) heads += kStep;
  plan::Gpt gpt = with_heads(heads);
  const double of_block = static_cast<double>(gpt.width * (12 * gpt.width + 13)),
               others = static_cast<double>(gpt.parameters()) - static_cast<double>(gpt.layers) * of_block;
  gpt.layers = std::max<std::int64_t>(1, std::llround((parameters - others) / of_block));
  return gpt;
}

// A profile's times, as those of one operation each. Its step has one micro-batch of this model.
plan::Speed speed_of(const PlanQuestion& question, const plan::Gpt& model) {
  if (question.profile.empty()) return {.forward = 1e-12 / question.teraflops, .backward = 1e-12 / question.teraflops};
  const par::StepProfile profile = read_profile(question.profile);
  const plan::Operations all = plan::operations_of(model, question.sequences);
  return {.forward = profile.forward / all.forward,
          .backward = profile.backward() / all.backward(),
          .optimizer = profile.optimizer / static_cast<double>(model.parameters())};
}

// All meshes of `ranks` ranks.
std::vector<plan::Mesh> all_meshes(int ranks) {
  std::vector<plan::Mesh> meshes;
  const auto divisors = [](int n) {
    std::vector<int> all;
    for (int d = 1; d <= n; ++d) {
      if (n % d == 0) all.push_back(d);
    }
    return all;
  };
  for (const int pp : divisors(ranks)) {
    for (const int tp : divisors(ranks / pp)) {
      for (const int cp : divisors(ranks / pp / tp)) {
        const int data = ranks / pp / tp / cp;
        for (const int dp : divisors(data))
          meshes.push_back({.pp = pp, .dp = dp, .fsdp = data / dp, .cp = cp, .tp = tp});
      }
    }
  }
  return meshes;
}

struct Refusal {
  std::string why, way_out;
};

bool is_power(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

// The next number of micro-batches that `ranks` can share.
int next_micro_batches(int micro_batches, int ranks, bool has_blocks) {
  int next = has_blocks ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks))) : ranks;
  while (next <= micro_batches) next *= 2;
  return next;
}

// The rules of Parallel (parallel/model_parallel/parallel.cpp), of zigzag rings and of slices of whole heads. Ranks of dp
// or fsdp whose bits would be those of no other mesh are refused.
std::optional<Refusal> refusal_of(const plan::Job& job, const plan::Mesh& mesh) {
  const plan::Gpt& m = job.model;
  const int n = mesh.data_ranks(), all = job.micro_batches;
  if (mesh.dp > 1 && mesh.fsdp > 1)
    return Refusal{"dp and fsdp both above 1 is not supported", "give their ranks to one of them"};
  if (all % n != 0 || (n > 1 && (!is_power(all / n) || (mesh.cp > 1 && !is_power(all)))))
    return Refusal{fmt::format("{} cannot be shared with equal bits", plural(all, "micro-batch")),
                   fmt::format("--micro-batches {}", next_micro_batches(all, n, mesh.cp > 1))};
  if (m.heads % mesh.tp != 0)
    return Refusal{fmt::format("tp does not divide {} heads", m.heads),
                   fmt::format("a model with {} heads", (m.heads / mesh.tp + 1) * mesh.tp)};
  if (m.context % (2 * mesh.cp) != 0)
    return Refusal{fmt::format("2 cp does not divide {} positions", m.context),
                   fmt::format("--context {}", (m.context / (2 * mesh.cp) + 1) * 2 * mesh.cp)};
  if (mesh.pp > m.layers + 2)
    return Refusal{fmt::format("pp is above {}, the number of modules", m.layers + 2),
                   fmt::format("a model with {} layers", mesh.pp - 2)};
  return std::nullopt;
}

// The refused meshes of one reason, with the fix that is tried first: the smallest number.
class Refusals {
 public:
  void add(const Refusal& refusal) {
    RefusedMeshes& each = all_[refusal.why];
    const auto is_less = [](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    };
    if (each.count == 0 || is_less(refusal.way_out, each.way_out)) each.way_out = refusal.way_out;
    each.why = refusal.why;
    ++each.count;
  }
  std::vector<RefusedMeshes> list() const {
    std::vector<RefusedMeshes> result;
    for (const auto& [why, each] : all_) result.push_back(each);
    std::ranges::stable_sort(result, std::greater<>(), &RefusedMeshes::count);
    return result;
  }

 private:
  std::map<std::string, RefusedMeshes> all_;
};

// Two decimals, or four of little memory.
std::string memory_cell(std::int64_t bytes) {
  const double gigabytes = static_cast<double>(bytes) / kGiga;
  return gigabytes < 0.1 ? fmt::format("{:.4f}", gigabytes) : fmt::format("{:.2f}", gigabytes);
}

std::string in_gigabytes(double bytes) { return memory_cell(static_cast<std::int64_t>(bytes)) + " GB"; }

// A mesh in each of its modes.
std::vector<PlannedMesh> estimates_of(const plan::Job& job, const plan::Mesh& axes) {
  std::vector<PlannedMesh> all;
  for (const plan::Mesh& mesh : modes_of(job, axes)) all.push_back({mesh, plan::estimate(job, mesh)});
  return all;
}

std::string question_text(const SeenPlan& seen) {
  const PlanQuestion& q = seen.question;
  const plan::Gpt& m = seen.job.model;
  const std::string speed = q.profile.empty() ? fmt::format("{:g} TFLOP/s", q.teraflops) : "the times of " + q.profile;
  return fmt::format(
      "plan: a GPT of {} x width {}, {}, {} positions, {} tokens: {:.1f} million parameters\n"
      "{} with {:g} GB and {}; link {}: {:.1f} us, {:.3f} GB/s\n"
      "A step: {} of {} each, {} tokens; f32, Adam\n",
      plural(m.layers, "layer"), m.width, plural(m.heads, "head"), m.context, m.vocabulary,
      static_cast<double>(m.parameters()) / 1e6, plural(q.ranks, "rank"), q.memory_gb, speed, q.link,
      seen.job.link.latency * 1e6, seen.job.link.bandwidth / kGiga, plural(q.micro_batches, "micro-batch"),
      plural(q.sequences, "sequence"), seen.job.tokens());
}

// "12.3", or "-" for an axis that sends nothing.
std::string in_megabytes(double bytes) { return bytes > 0 ? fmt::format("{:.1f}", bytes / 1e6) : "-"; }

std::string feasible_text(const SeenPlan& seen) {
  const std::size_t shown = std::min(seen.feasible.size(), static_cast<std::size_t>(seen.question.shown));
  std::size_t width = 21;
  for (std::size_t i = 0; i < shown; ++i) width = std::max(width, seen.feasible[i].mesh.axes().size());
  std::string text = fmt::format(
      "\n{:>3}  {:<{}}  {:<20} {:>6} {:>6} {:>9} {:>5}  MB that a rank sends in a step\n"
      "{:>3}  {:<{}}  {:<20} {:>6} {:>6} {:>9} {:>5}  {:>8} {:>8} {:>8} {:>8}\n",
      "", "", width, "", "memory", "activ.", "step", "idle", "", "mesh", width, "mode", "GB", "GB", "ms", "%", "pp",
      "dp, fsdp", "cp", "tp");
  for (std::size_t i = 0; i < shown; ++i) {
    const plan::Mesh& mesh = seen.feasible[i].mesh;
    const plan::Estimate& e = seen.feasible[i].estimate;
    text += fmt::format("{:>3}  {:<{}}  {:<20} {:>6} {:>6} {:>9.2f} {:>5.1f}  {:>8} {:>8} {:>8} {:>8}\n", i + 1,
                        mesh.axes(), width, mesh.mode(), memory_cell(e.memory), memory_cell(e.activations),
                        e.seconds * 1e3, 100 * e.idle, in_megabytes(e.sent.pipeline), in_megabytes(e.sent.data),
                        in_megabytes(e.sent.context), in_megabytes(e.sent.tensor));
  }
  text += "     memory: of the rank that needs most, with activations; idle: all but computing forward and backward\n";
  if (seen.feasible.size() > shown)
    text += fmt::format("     and {} that {} slower: --top {}\n",
                        plural(static_cast<std::int64_t>(seen.feasible.size() - shown), "mesh"),
                        seen.feasible.size() - shown == 1 ? "is" : "are", seen.feasible.size());
  return text;
}

// "embed to blocks.3"
std::string modules_text(std::size_t begin, std::size_t end, std::size_t count) {
  const auto name = [&](std::size_t k) {
    return k == 0 ? std::string("embed") : k + 1 == count ? std::string("head") : fmt::format("blocks.{}", k - 1);
  };
  return end == begin + 1 ? name(begin) : fmt::format("{} to {}", name(begin), name(end - 1));
}

std::string first_text(const SeenPlan& seen) {
  if (seen.feasible.empty()) return "";
  const PlannedMesh& first = seen.feasible[0];
  const plan::Estimate& e = first.estimate;
  std::string text = fmt::format("\nFirst choice: {}, {:.0f} tokens a second\n", first.mesh.axes(),
                                 static_cast<double>(seen.job.tokens()) / e.seconds);
  const auto count = static_cast<std::size_t>(seen.job.model.layers) + 2;
  for (std::size_t s = 0; s + 1 < e.begins.size() && first.mesh.pp > 1; ++s)
    text += fmt::format("  stage {}: {}\n", s, modules_text(e.begins[s], e.begins[s + 1], count));
  return text;
}

std::string refused_text(const SeenPlan& seen) {
  if (seen.refused.empty()) return "";
  std::string text = "\nOther meshes, the first reason against each, and the least that helps\n";
  for (const RefusedMeshes& each : seen.refused)
    text += fmt::format("{:>3}  {}: {}\n", each.count, each.why, each.way_out);
  return text;
}

}  // namespace

plan::Job job_of(const PlanQuestion& q) {
  const plan::Gpt model = q.parameters > 0 ? gpt_of(q.parameters, q.model) : q.model;
  if (model.width % model.heads != 0)
    throw lockstep::InvalidArgument(fmt::format("plan: {} heads do not divide a width of {}; use --width {}",
                                                model.heads, model.width,
                                                (model.width / model.heads + 1) * model.heads));
  return {.model = model,
          .micro_batches = q.micro_batches,
          .sequences = q.sequences,
          .link = par::find_link(q.link),
          .speed = speed_of(q, model)};
}

std::vector<plan::Mesh> modes_of(const plan::Job& job, const plan::Mesh& axes) {
  if (refusal_of(job, axes)) return {};
  std::vector<plan::Mesh> schedules, all;
  const int micro_batches = job.micro_batches / axes.data_ranks();
  const auto add = [&](par::Schedule schedule, int chunks) {
    plan::Mesh& mesh = schedules.emplace_back(axes);
    mesh.schedule = schedule;
    mesh.chunks = chunks;
  };
  add(par::Schedule::k1F1B, 1);
  if (axes.pp > 1) add(par::Schedule::kZeroBubble, 1);
  if (axes.pp > 1 && micro_batches % axes.pp == 0 && 2 * axes.pp <= job.model.layers + 2)
    add(par::Schedule::kInterleaved, 2);
  for (const plan::Mesh& each : schedules) {
    const int last = each.schedule == par::Schedule::kZeroBubble ? 2 : 3;  // stage 3 would gather for W, too
    for (int stage = axes.fsdp > 1 ? 1 : 0; stage <= (axes.fsdp > 1 ? last : 0); ++stage)
      all.emplace_back(each).stage = stage;
  }
  return all;
}

SeenPlan plan_of(const PlanQuestion& question) {
  SeenPlan seen{.question = question, .job = job_of(question), .feasible = {}, .refused = {}};
  const auto memory = static_cast<std::int64_t>(question.memory_gb * kGiga);
  Refusals refusals;
  int too_large = 0;
  std::optional<PlannedMesh> smallest;  // of those that do not fit
  for (const plan::Mesh& axes : all_meshes(question.ranks)) {
    if (const auto refusal = refusal_of(seen.job, axes)) {
      refusals.add(*refusal);
      continue;
    }
    std::vector<PlannedMesh> all = estimates_of(seen.job, axes);
    const auto least = *std::ranges::min_element(all, {}, [](const PlannedMesh& m) { return m.estimate.memory; });
    std::erase_if(all, [&](const PlannedMesh& each) { return each.estimate.memory > memory; });
    if (!all.empty()) {
      seen.feasible.push_back(
          *std::ranges::min_element(all, {}, [](const PlannedMesh& m) { return m.estimate.seconds; }));
      continue;
    }
    ++too_large;
    if (!smallest || least.estimate.memory < smallest->estimate.memory) smallest = least;
  }
  std::ranges::stable_sort(seen.feasible, {}, [](const PlannedMesh& m) { return m.estimate.seconds; });
  if (smallest)
    seen.refused.push_back(
        {.why = fmt::format("needs more than {:g} GB per device", question.memory_gb),
         .way_out =
             fmt::format("{} with {}{}{}", in_gigabytes(static_cast<double>(smallest->estimate.memory)),
                         smallest->mesh.axes(), smallest->mesh.mode().empty() ? "" : ", ", smallest->mesh.mode()),
         .count = too_large});
  for (const RefusedMeshes& each : refusals.list()) seen.refused.push_back(each);
  return seen;
}

std::string plan_text(const SeenPlan& seen) {
  const std::string none = seen.feasible.empty() ? "\nNo mesh fits.\n" : feasible_text(seen) + first_text(seen);
  return question_text(seen) + none + refused_text(seen) +
         "\nMeshes with equal cp and tp have the same partition, and end with the same bits. With pp, "
         "where stages\nshare a matrix, these are the bits of pp=1 with the same chain.\n";
}
