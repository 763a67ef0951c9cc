#include "support/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/mesh.h"
#include "support/strategy.h"

namespace samples {
namespace {

namespace par = lockstep::parallel;

par::Schedule schedule_named(const std::string& name) {
  for (const par::Schedule each : {par::Schedule::kGPipe, par::Schedule::kInterleaved, par::Schedule::kZeroBubble}) {
    if (name == par::name(each)) return each;
  }
  return par::Schedule::k1F1B;
}

int chunks_of(const Options& options) {
  if (options.strategy == "model_parallel") return 1;
  return options.chunks > 0 ? options.chunks : options.schedule == "interleaved" ? 2 : 1;
}

// One micro-batch after another passes all stages, forward and back, so that one rank works at a time.
par::ScheduleTable one_at_a_time(int ranks, int micro_batches) {
  std::vector<std::vector<par::ScheduleAction>> rows(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    for (int m = 0; m < micro_batches; ++m) {
      rows[static_cast<std::size_t>(r)].push_back({par::ActionKind::kForward, r, m});
      rows[static_cast<std::size_t>(r)].push_back({par::ActionKind::kBackward, r, m});
    }
  }
  return par::ScheduleTable(std::move(rows));
}

int micro_batches_of_rank(const Options& options, int ranks) {
  return static_cast<int>(options.micro_batches) / data_ranks(options, ranks);
}

}  // namespace

bool has_stages(const Options& options, int ranks) {
  if (!has_mesh(options.strategy)) return false;
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  return std::ranges::find(mesh, "pp", &par::MeshAxis::name) != mesh.end();
}

std::optional<par::ScheduleTable> schedule_of(const Options& options, int ranks) {
  if (!has_stages(options, ranks)) return std::nullopt;
  const int stages = ranks_along(mesh_of(options, ranks), "pp"), micro_batches = micro_batches_of_rank(options, ranks);
  if (options.strategy == "model_parallel") return one_at_a_time(stages, micro_batches);
  return par::ScheduleTable::make(schedule_named(options.schedule), stages, micro_batches, chunks_of(options));
}

void check_pipeline(const Options& options, int ranks) {
  if (!has_stages(options, ranks)) return;
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  const GptOptions& gpt = *options.gpt;
  const int along = ranks_along(mesh, "pp"), chunks = chunks_of(options), sharing = data_ranks(options, ranks);
  const bool is_free = options.strategy != "model_parallel";  // to choose a schedule
  if (const std::int64_t stages = std::int64_t{along} * chunks, modules = gpt.layers + 2; stages > modules)
    throw lockstep::InvalidArgument(fmt::format(
        "--layers {} makes a chain of {} modules, with embed and head, for {} stages ({} ranks along pp with {} model "
        "chunk{} each); use --layers {}, or fewer ranks{}",
        gpt.layers, modules, stages, along, chunks, chunks == 1 ? "" : "s", stages - 2,
        chunks == 1 ? "" : " or --chunks"));
  if (is_free && options.schedule == "interleaved" && micro_batches_of_rank(options, ranks) % along != 0) {
    const std::int64_t unit = std::int64_t{along} * sharing;
    throw lockstep::InvalidArgument(fmt::format(
        "--micro-batches {} gives each pipeline {}, but --schedule interleaved needs a multiple of its {} ranks; use "
        "--micro-batches {}, or --schedule 1f1b",
        options.micro_batches, micro_batches_of_rank(options, ranks), along,
        (options.micro_batches / unit + 1) * unit));
  }
  if (is_free && options.schedule == "zb1p" && gpt.recompute)
    throw lockstep::InvalidArgument(
        "--schedule zb1p runs backward in two parts, each of which would recompute the blocks; use --schedule 1f1b, or "
        "leave --recompute out");
}

}  // namespace samples
