#include "tools/explain_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "tools/explain.h"

namespace {

using lockstep::parallel::MeshAxis;

// Ranks between neighbours along axis `a`.
int stride_of(const MeshAxes& mesh, std::size_t a) {
  int stride = 1;
  for (std::size_t i = a + 1; i < mesh.size(); ++i) stride *= mesh[i].size;
  return stride;
}

int coordinate(const MeshAxes& mesh, std::size_t a, int rank) { return rank / stride_of(mesh, a) % mesh[a].size; }

std::string shape_text(const MeshAxes& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
  return text;
}

std::string groups_text(const MeshAxes& mesh, std::size_t a) {
  std::string text;
  for (const std::vector<int>& group : groups_of(mesh, a))
    text += fmt::format("{}{}", text.empty() ? "" : " | ", fmt::join(group, " "));
  return text;
}

// A cell for each rank, in the order of ranks. Ranks of one group of the axis have one colour.
std::string axis_figure(const MeshAxes& mesh, std::size_t a) {
  constexpr int kCell = 44, kColumns = 16;
  const int ranks = ranks_of(mesh), columns = std::min(ranks, kColumns), rows = (ranks + kColumns - 1) / kColumns;
  const std::vector<std::vector<int>> groups = groups_of(mesh, a);
  std::string svg =
      fmt::format("<svg viewBox='0 0 {} {}' style='max-width:{}px' role='img' aria-label='groups of {}'>\n",
                  columns * kCell, rows * kCell, columns * kCell, mesh[a].name);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const int rank : groups[g])
      svg += fmt::format(
          "<rect x='{0}' y='{1}' width='{2}' height='{2}' rx='5' fill='{3}' stroke='var(--line)'/>"
          "<text x='{4}' y='{5}' text-anchor='middle' style='fill:#111'>{6}</text>\n",
          rank % kColumns * kCell + 2, rank / kColumns * kCell + 2, kCell - 4, colour_of(g, groups.size()),
          rank % kColumns * kCell + kCell / 2, rank / kColumns * kCell + kCell / 2 + 5, rank);
  }
  return svg + "</svg>\n";
}

}  // namespace

std::vector<std::vector<int>> groups_of(const MeshAxes& mesh, std::size_t a) {
  std::vector<std::vector<int>> groups;
  const int stride = stride_of(mesh, a);
  for (int rank = 0; rank < ranks_of(mesh); ++rank) {
    if (coordinate(mesh, a, rank) > 0) continue;
    std::vector<int>& group = groups.emplace_back();
    for (int i = 0; i < mesh[a].size; ++i) group.push_back(rank + i * stride);
  }
  return groups;
}

std::string mesh_text(const MeshAxes& mesh) {
  std::string text =
      fmt::format("{} ranks: {}; {} varies fastest\n\nrank", ranks_of(mesh), shape_text(mesh), mesh.back().name);
  const auto width = [](const MeshAxis& axis) { return std::max<std::size_t>(axis.name.size(), 3); };
  for (const MeshAxis& axis : mesh) text += fmt::format("  {:>{}}", axis.name, width(axis));
  for (int rank = 0; rank < ranks_of(mesh); ++rank) {
    text += fmt::format("\n{:>4}", rank);
    for (std::size_t a = 0; a < mesh.size(); ++a)
      text += fmt::format("  {:>{}}", coordinate(mesh, a, rank), width(mesh[a]));
  }
  text += "\n\ngroups of each axis, separated by |\n";
  std::size_t longest = 0;
  for (const MeshAxis& axis : mesh) longest = std::max(longest, axis.name.size());
  for (std::size_t a = 0; a < mesh.size(); ++a)
    text += fmt::format("{:<{}}  {}\n", mesh[a].name, longest, groups_text(mesh, a));
  return text;
}

std::string mesh_html(const MeshAxes& mesh) {
  std::string body = fmt::format(
      "<h1>{}</h1>\n<p>{} ranks, numbered in row-major order: {} varies fastest. Ranks of one colour form a "
      "group.</p>\n",
      shape_text(mesh), ranks_of(mesh), mesh.back().name);
  for (std::size_t a = 0; a < mesh.size(); ++a)
    body += fmt::format("<h2>{}: {} groups of {}</h2>\n{}", mesh[a].name, groups_of(mesh, a).size(), mesh[a].size,
                        axis_figure(mesh, a));
  return html_page(shape_text(mesh), body);
}
