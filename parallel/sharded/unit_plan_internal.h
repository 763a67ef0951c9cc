// The plan of the units: which parameters are gathered and reduced together, and their positions in flat buffers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/sharded/sharded.h"

namespace lockstep::parallel {

// The parameters of a unit that share a buffer: of one dtype and device, all trained or all frozen. Each starts at a
// multiple of 64 bytes. The buffer is padded, so that it can be cut into as many shards as there are ranks, each a
// multiple of 64 bytes.
struct FlatLayout {
  DType dtype = kFloat32;     // of the gathered parameters
  DType master = kFloat32;    // of the values that the optimizer steps and checkpoints keep
  DType gradient = kFloat32;  // in which gradients are summed
  Device device = {};
  bool trained = true;
  std::vector<std::size_t> parameters = {};  // positions in the list of parameters
  std::vector<std::int64_t> offsets = {};    // of each parameter, in elements
  std::int64_t elements = 0;                 // with gaps and padding

  std::int64_t bytes() const { return bytes_in(dtype); }
  std::int64_t bytes_in(DType type) const { return elements * static_cast<std::int64_t>(item_size(type)); }
};

// The part of a parameter of this shape, whose elements start at `offset` of a flat buffer, in rank r's shard of it. Each
// rank's shard has `each` elements.
TensorPart part_in_shard(const Shape& shape, std::int64_t offset, std::int64_t each, int rank);

// The parameters that are gathered together.
struct UnitLayout {
  std::string name;              // the path of its module; empty: the root unit, with what no other unit has
  nn::Module* module = nullptr;  // owns the unit's parameters
  std::vector<FlatLayout> flats = {};

  std::string text() const { return name.empty() ? "the root unit" : "unit " + name; }  // for errors and traces
};

// Returns the root unit (which may have no parameters), then a unit for each module with parameters that one of
// `patterns` names, in the order of the model. In a pattern '*' stands for any text without '.': "blocks.*". Without
// patterns the units are the children of the ModuleList with most elements. A parameter belongs to the innermost unit
// around its module; one that modules of several units share belongs to the root unit. Throws InvalidArgument for a
// pattern that names no module.
std::vector<UnitLayout> plan_units(nn::Module& module, const optim::NamedParameters& parameters,
                                   const std::vector<std::string>& patterns, const MixedPrecision& mixed, int ranks);

}  // namespace lockstep::parallel
