#include "support/check_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/mesh.h"
#include "support/ranks.h"
#include "support/strategy.h"
#include "support/timeline.h"
#include "tools/mesh_axes.h"

namespace samples {
namespace {

void refuse_if(bool is_wrong, const char* flag, const std::string& text) {
  if (is_wrong) throw CLI::ValidationError(flag, text);
}

// Our names of the strategies of --strategies, each once. "all" stands for those that the model and the mesh allow.
std::vector<std::string> to_compare(const Options& options) {
  const MeshAxes mesh = options.mesh.empty() ? MeshAxes() : parse_mesh(options.mesh);
  const auto is_possible = [&](const std::string& name) {
    if (!has_mesh(name)) return true;
    if (!options.gpt) return false;
    if (name == "parallel") return !mesh.empty();
    return mesh.empty() || ranks_along(mesh, axis_of(name)) > 1;
  };
  std::vector<std::string> names;
  for (const std::string& each : options.compared) {
    for (const std::string& name : each == "all" ? strategies() : std::vector{strategy_named(each)}) {
      const bool is_wanted = each != "all" || is_possible(name);
      if (is_wanted && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

void check_mesh(const CLI::App& app, const Options& options) {
  std::vector<std::string> chosen = options.compared;
  chosen.push_back(options.strategy);
  std::erase_if(chosen, [](const std::string& name) { return !has_mesh(name); });
  const bool has_parallel = std::ranges::find(chosen, "parallel") != chosen.end();
  refuse_if(!chosen.empty() && !options.gpt, "--strategy",
            "context, tensor, pipeline, model_parallel and parallel are for the model of char_gpt");
  refuse_if(has_parallel && options.mesh.empty(), "--strategy",
            "parallel needs a mesh of ranks; add --mesh, for example --mesh dp=2,cp=2");
  if (options.mesh.empty()) return;
  const MeshAxes mesh = parse_mesh(options.mesh);
  refuse_if(
      app.count("--nproc") > 0 && options.nproc != ranks_of(mesh), "--nproc",
      fmt::format("{} ranks, but --mesh {} has {}; leave --nproc out", options.nproc, options.mesh, ranks_of(mesh)));
  for (const std::string& name : chosen) {
    const std::string axis = axis_of(name);
    refuse_if(name != "parallel" && ranks_along(mesh, axis) == 1, "--mesh",
              fmt::format("{} has no axis {} with several ranks, which --strategy {} needs, as {}=2", options.mesh,
                          axis, name, axis));
  }
}

void check_schedule(const CLI::App& app, const Options& options) {
  const bool has_mesh_without_stages = !options.mesh.empty() && ranks_along(parse_mesh(options.mesh), "pp") == 1;
  for (const char* flag : {"--schedule", "--chunks"})
    refuse_if(options.gpt && app.count(flag) > 0 && has_mesh_without_stages, flag,
              fmt::format("is for ranks along pp, and --mesh {} has none; add pp=2 to the mesh, or leave {} out",
                          options.mesh, flag));
  refuse_if(
      options.chunks > 1 && options.schedule != "interleaved", "--chunks",
      fmt::format("{} are for --schedule interleaved, and the schedule is {}; add --schedule interleaved, or leave "
                  "--chunks out",
                  options.chunks, options.schedule));
}

}  // namespace

std::string choose_strategy(const CLI::App& app, Options& options) {
  if (options.nproc == 0)
    options.nproc = !options.mesh.empty()                           ? ranks_of(parse_mesh(options.mesh))
                    : is_pipeline(strategy_named(options.strategy)) ? 2
                                                                    : options.micro_batches;
  options.compared = to_compare(options);
  if (options.strategy == "compare") return "";
  if (!options.strategy.empty()) {
    options.strategy = strategy_named(options.strategy);
    return "";
  }
  if (!options.mesh.empty()) {
    options.strategy = "parallel";
    return ", as there is a --mesh";
  }
  options.strategy = is_rank() || app.count("--nproc") > 0 ? "ddp" : "single";
  return is_rank()                   ? ", as this is a rank of a launcher"
         : options.strategy == "ddp" ? ""
                                     : ", as no --strategy is given";
}

void check_values(const CLI::App& app, const Options& options) {
  const bool compares = options.strategy == "compare", on_gpu = is_gpu(options.device);
  refuse_if(compares && options.device != "cpu", "--device",
            options.device + " is not for --strategy compare, which compares bits on the CPU; leave --device out");
  refuse_if(options.backend == "nccl" && (!on_gpu || compares), "--backend",
            "nccl is for --strategy ddp or zero* with --device cuda");
  refuse_if(app.count("--order") > 0 && options.backend == "nccl", "--order",
            "has no effect on --backend nccl, which chooses the order itself; leave --order out");
  refuse_if(options.order != "canonical" && options.backend != "shm", "--order",
            options.order + " is for --backend shm, and the backend is " + options.backend);
  refuse_if(compares && options.order != "canonical", "--order",
            options.order + " is not for --strategy compare, which requires the same bits; use --strategy ddp");
  refuse_if(compares && options.comm_hook != "none", "--comm-hook",
            options.comm_hook + " is not for --strategy compare, which requires the same bits; use --strategy ddp");
  refuse_if(options.cuda_graph && !on_gpu, "--cuda-graph",
            "has an effect only on a cuda device, and the device is cpu; use --device cuda");
  refuse_if(sharded_of(options.strategy) && options.inject.starts_with("corrupt"), "--inject",
            "corrupt is for --strategy ddp: " + options.strategy + " has no copies of parameters that could differ");
  check_mesh(app, options);
  check_schedule(app, options);
  refuse_if(options.trace_kernels && !is_traced(options), "--trace-kernels",
            "adds kernels to a trace, and no trace is requested; add --trace, --report or --explain");
}

void check_rank(const CLI::App& app, const Options& options) {
  refuse_if(!has_ranks(options.strategy), "--strategy",
            options.strategy + " is for a program started once, and this is a rank of a launcher; use --strategy ddp");
  refuse_if(app.count("--nproc") > 0, "--nproc",
            "has no effect on a rank of a launcher, which sets the number of ranks; leave --nproc out");
}

}  // namespace samples
