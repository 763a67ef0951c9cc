// Counters and traces of the bytes that the ranks of a step send.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/explain_mesh.h"
#include "support/step.h"
#include "support/strategy.h"
#include "tools/report/run.h"

namespace samples {

namespace par = ls::parallel;

namespace {

// The mode of a run in a report. Ranks of a pipeline alone have no buckets.
std::string mode_in_report(const Options& options, const std::vector<par::MeshAxis>& mesh) {
  if (!has_mesh(options.strategy)) return options.strategy;
  if (std::ranges::find(mesh, "fsdp", &par::MeshAxis::name) != mesh.end()) return "sharded";
  const bool has_only_stages = std::ranges::all_of(mesh, [](const par::MeshAxis& axis) { return axis.name == "pp"; });
  return has_only_stages ? "ranks" : "ddp";
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

void Step::gather(ls::FunctionRef<void()> body) {
  const std::vector<par::LinkTraffic> before = links();
  const std::vector<std::int64_t> axes_before = bytes_by_axis();
  with_run([&](auto& run) { run.gathered(body); });
  const std::vector<std::int64_t> axes_after = bytes_by_axis();
  for (std::size_t a = 0; a < axes_after.size(); ++a) gathered_by_axis_[a] += axes_after[a] - axes_before[a];
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

const par::TrafficStats& Step::traffic() {
  return *with_run([](auto& run) { return &run.traffic(); });
}

// The traffic counters of this process, without those of `gathered`.
std::vector<par::LinkTraffic> Step::links() { return difference(traffic().links(), gathered_links_); }

PhaseBytes Step::counted_bytes() {
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
    if (parameter.master().defined())
      gradient_bytes += parameter->numel() * static_cast<std::int64_t>(ls::item_size(parameter->dtype()));
  traces[0].notes = {{report::kModeNote, mode_in_report(options_, mesh_of(options_, ranks()))},
                     {report::kGradientsNote, std::to_string(gradient_bytes)},
                     report::counters_note(counters)};
  if (has_mesh(options_.strategy)) traces[0].notes.emplace_back(kTextsNote, std::to_string(texts_));
  return traces;
}

// The groups that send in steps: one for each axis with several ranks, but one for all axes that share gradients.
std::vector<Step::AxisGroup> Step::axis_groups() const {
  std::vector<AxisGroup> groups;
  if (!mesh_.defined()) return groups;
  std::vector<std::string> sharing;
  for (const par::MeshAxis& axis : mesh_.axes()) {
    if (axis.size == 1) continue;
    if (axis.name != "pp" && axis.name != "tp") sharing.push_back(axis.name);
    groups.push_back({axis.name, mesh_[axis.name].group()});
  }
  if (sharing.size() > 1)
    groups.push_back({fmt::format("{}", fmt::join(sharing, " and ")), std::get<par::Parallel>(run_).group()});
  return groups;
}

std::vector<std::int64_t> Step::bytes_by_axis() const {
  std::vector<std::int64_t> bytes;
  for (const AxisGroup& each : axis_groups())
    bytes.push_back(each.group->traffic().bytes() - each.group->traffic().bytes(par::Phase::kOther));
  return bytes;
}

Moved Step::moved() {
  const PhaseBytes now = counted_bytes();
  std::vector<std::int64_t> numbers(at_start_.begin(), at_start_.end());
  numbers.insert(numbers.end(), now.begin(), now.end());
  const std::vector<std::int64_t> by_axis = bytes_by_axis();
  for (std::size_t a = 0; a < by_axis.size(); ++a)
    numbers.push_back(by_axis[a] - axes_at_start_[a] - gathered_by_axis_[a]);
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
  const std::vector<AxisGroup> groups = axis_groups();
  for (std::size_t a = 0; a < groups.size(); ++a) moved.by_axis[groups[a].name] = numbers[2 * now.size() + a];
  return moved;
}

}  // namespace samples
