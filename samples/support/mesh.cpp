#include "support/mesh.h"

#include <algorithm>
#include <string>

#include "support/strategy.h"
#include "tools/mesh_axes.h"

namespace samples {

namespace par = lockstep::parallel;

std::vector<par::MeshAxis> mesh_of(const Options& options, int ranks) {
  if (!options.mesh.empty()) return parse_mesh(options.mesh);
  return {{axis_of(options.strategy), ranks}};
}

int ranks_along(const std::vector<par::MeshAxis>& mesh, const std::string& axis) {
  const auto found = std::ranges::find(mesh, axis, &par::MeshAxis::name);
  return found == mesh.end() ? 1 : found->size;
}

int coordinate(const std::vector<par::MeshAxis>& mesh, const std::string& axis, int rank) {
  for (auto each = mesh.rbegin(); each != mesh.rend(); ++each) {
    if (each->name == axis) return rank % each->size;
    rank /= each->size;
  }
  return 0;
}

int data_ranks(const Options& options, int ranks) {
  if (!has_mesh(options.strategy)) return ranks;
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  return ranks_along(mesh, "dp") * ranks_along(mesh, "fsdp");
}

int tensor_slices(const Options& options, int ranks) {
  if (!has_mesh(options.strategy)) return 1;
  const bool is_given = options.tensor_slices > 0 && (options.strategy == "tensor" || options.strategy == "parallel");
  return is_given ? options.tensor_slices : ranks_along(mesh_of(options, ranks), "tp");
}

par::ContextAttention attention_of(const Options& options) {
  if (options.attention == "ulysses") return par::ContextAttention::kUlysses;
  return options.attention == "ring" ? par::ContextAttention::kRing : par::ContextAttention::kRingZigzag;
}

}  // namespace samples
