// Construction of a ShardedDataParallel: units, pieces of parameters, hooks.
#include <algorithm>
#include <map>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_access_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

const char* text(const std::optional<DType>& dtype) { return dtype ? name(*dtype) : "none"; }

std::vector<std::string> option_texts(const ShardedDataParallelOptions& options) {
  return {fmt::format("stage {}", options.stage),
          fmt::format("units \"{}\"", fmt::join(options.units, "\", \"")),
          fmt::format("micro_batches_per_rank {}", options.micro_batches_per_rank),
          fmt::format("reshard_after_forward {}", options.reshard_after_forward),
          fmt::format("offload_optimizer {}", options.offload_optimizer),
          fmt::format("weighting {}", static_cast<int>(options.weighting)),
          fmt::format("check_every {}", options.check_every),
          fmt::format("mixed_precision {} {}", text(options.mixed_precision.parameters),
                      text(options.mixed_precision.reduce)),
          fmt::format("{} {}", version(), cpu_description())};
}

// The floating-point inputs of a forward in `dtype`; empty if all have it.
std::vector<Tensor> converted(std::vector<Tensor> inputs, DType dtype) {
  const auto is_other = [&](const Tensor& x) {
    return x.defined() && is_floating_point(x.dtype()) && x.dtype() != dtype;
  };
  if (std::ranges::none_of(inputs, is_other)) return {};
  for (Tensor& x : inputs) {
    if (is_other(x)) x = x.to(dtype);
  }
  return inputs;
}

}  // namespace

void ShardedAccessSupplier::need(Storage& storage) {
  LOCKSTEP_CHECK(state,
                 "the parameter is sharded over the ranks, and its ShardedDataParallel was destroyed\n"
                 "Save a checkpoint before: parallel::save_checkpoint(path, {{.model = &run}})");
  state->need(storage);
}

ShardedDataParallel::State::State(nn::Module& module, std::shared_ptr<ProcessGroup> of_ranks,
                                  const ShardedDataParallelOptions& options)
    : DistributedTraining("ShardedDataParallel", module, std::move(of_ranks), options.micro_batches_per_rank,
                          options.weighting),
      options(options), named(module.named_parameters()), access(std::make_shared<ShardedAccessSupplier>(this)) {
  check_ranks();
  try {
    make_units();
    make_pieces();
    install_hooks();
  } catch (...) {
    disconnect();
    throw;
  }
}

ShardedDataParallel::State::~State() {
  end_call();
  disconnect();
}

// Ends the links from the module to this object. The parameters stay unreadable.
void ShardedDataParallel::State::disconnect() {
  access->state = nullptr;
  for (HookHandle& hook : hooks) hook.remove();
  for (UnitParameters& unit : units) unit.hide();
}

void ShardedDataParallel::State::check_ranks() {
  check_same_model(mode, module, *group, option_texts(options));
  share_values(mode, module, *group);
  share_added_values(mode, module);
}

void ShardedDataParallel::State::make_units() {
  layouts = plan_units(module, named, options.units, options.mixed_precision, group->size());
  for (const auto& [name, parameter] : named) parameter.set_sharding(nn::Sharding::kSharded);
  for (const UnitLayout& layout : layouts)
    units.emplace_back(layout, units.size(), named, *group, is_resident(), access);
  gathers = std::make_unique<UnitGathers>(units, group, chunks_of_units());
  const bool in_stages = stage_runner(module) != nullptr;
  gradients = std::make_unique<UnitGradients>(
      layouts, named, group->duplicate(),
      UnitGradients::Options{
          .rotating = is_rotating(), .may_wait = gathers->are_direct() && !in_stages, .in_stages = in_stages});
  attach_reducer();
  empty_cache();  // which has the memory of the whole parameters
}

// This rank's chunks with the units that have parameters of them, if the model is in pipeline stages.
std::vector<UnitGathers::Chunk> ShardedDataParallel::State::chunks_of_units() const {
  const std::shared_ptr<const StageRunner> stages = stage_runner(module);
  if (!stages) return {};
  std::vector<UnitGathers::Chunk> chunks;
  for (int chunk = 0; chunk < stages->chunks(); ++chunk)
    chunks.push_back({.units = {}, .split_backwards = stages->split_backwards(chunk)});
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    for (const FlatLayout& flat : layouts[u].flats) {
      for (const std::size_t p : flat.parameters) {
        auto& of_chunk = chunks[static_cast<std::size_t>(stages->chunk_of(named[p].second))].units;
        if (of_chunk.empty() || of_chunk.back() != u) of_chunk.push_back(u);
      }
    }
  }
  return chunks;
}

bool ShardedDataParallel::State::is_offloaded() const {
  return options.offload_optimizer && named.front().second.master().device() != Device();
}

void ShardedDataParallel::State::make_pieces() {
  for (UnitParameters& unit : units) {
    for (FlatParameters& flat : unit.flats()) {
      if (!flat.layout.trained) continue;
      trained.push_back(&flat);
      if (is_offloaded()) flat.master = raw::to(flat.master, Device());
    }
  }
  std::vector<TrainedPiece> pieces;
  for (std::size_t p = 0; p < gradients->size(); ++p) {
    const auto [f, offset] = gradients->place_of(p);
    const ShardedParameter piece = piece_of(named[gradients->position(p)], trained[f]->master, offset);
    const std::int64_t each = trained[f]->shard.numel();
    const std::int64_t at = std::clamp<std::int64_t>(offset - each * group->rank(), 0, each);
    of_pieces.push_back(piece.parameter);
    pieces.push_back({.parameter = piece.parameter, .flat = f, .at = at});
    all.push_back(piece);
  }
  gradients->set_pieces(std::move(pieces), is_offloaded());
  for (UnitParameters& unit : units) {
    for (const FlatParameters& flat : unit.flats()) {
      for (std::size_t k = 0; k < flat.layout.parameters.size() && !flat.layout.trained; ++k) {
        all.push_back(piece_of(named[flat.layout.parameters[k]], flat.master, flat.layout.offsets[k]));
        all.back().parameter.master().requires_grad_(false);
      }
    }
  }
  std::map<std::string, std::size_t> order;
  for (const auto& [name, parameter] : named) order.emplace(name, order.size());
  std::ranges::sort(all, {}, [&](const ShardedParameter& each) { return order.at(each.name); });
}

// The piece of a parameter whose elements start at `offset` of a flat buffer of which this rank has `shard`.
ShardedParameter ShardedDataParallel::State::piece_of(const std::pair<std::string, nn::Parameter>& whole,
                                                      const Tensor& shard, std::int64_t offset) const {
  const auto& [name, parameter] = whole;
  const Shape& shape = parameter.master().shape();
  const TensorPart part = part_in_shard(shape, offset, shard.numel(), group->rank());
  const nn::Parameter piece(elements_in_shard(shard, offset, part, group->rank()));
  piece.set_sharding(nn::Sharding::kPiece);
  if (parameter.slice()) piece.set_slice(*parameter.slice());
  return {.name = name, .parameter = piece, .shape = shape, .first = part.at(0), .part = part};
}

// Tells the gathers and gradients where forward and backward are, and with mixed precision converts the inputs of the
// model and of the units. A hook may outlive the run in a graph.
void ShardedDataParallel::State::install_hooks() {
  const std::optional<DType> compute = options.mixed_precision.parameters;
  if (compute) {
    hooks.push_back(module.register_forward_pre_hook(
        [dtype = *compute](const nn::Module&, const std::vector<Tensor>& x) { return converted(x, dtype); }));
  }
  for (std::size_t u = 1; u < units.size(); ++u) {
    nn::Module& unit = *layouts[u].module;
    hooks.push_back(unit.register_forward_pre_hook([this, u, compute](const nn::Module&, const std::vector<Tensor>& x) {
      gathers->enter_forward(u);
      return compute ? converted(x, *compute) : std::vector<Tensor>();
    }));
    hooks.push_back(
        unit.register_forward_hook([this, u](const nn::Module&, const std::vector<Tensor>&, const Tensor& y) {
          gathers->leave_forward(u);
          if (!gathers->is_running() || !y.requires_grad() || y.is_leaf()) return Tensor();
          y.register_hook([access = access, u, expected = gathers->expect_backward(u)](const Tensor&) {
            expected->has_arrived = true;
            if (access->state) access->state->enter_backward(u);
            return Tensor();
          });
          return Tensor();
        }));
  }
}

}  // namespace lockstep::parallel
