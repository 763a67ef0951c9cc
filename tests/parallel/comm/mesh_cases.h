// Cases of DeviceMesh for every backend.
#pragma once

#include "lockstep/parallel/comm/device_mesh_internal.h"

#include "tests/support/groups.h"

// 8 ranks as 2 x 2 x 2: sums along each axis, along flattened axes in both orders, and the counters.
inline void check_mesh(const std::string& backend) {
  with_group(backend, 8, [](const Group& group) {
    namespace par = ls::parallel;
    const int rank = group->rank(), pp = rank / 4, dp = rank / 2 % 2, tp = rank % 2;
    const par::DeviceMesh mesh(group, {{"pp", 2}, {"dp", 2}, {"tp", -1}});
    CHECK(mesh.to_string() == "pp 2 x dp 2 x tp 2");
    CHECK(mesh.rank() == rank);
    CHECK(mesh.size() == 8);
    CHECK(mesh.group() == group);
    const auto ranks_of = [&](const par::DeviceMesh& axis) {
      const ls::Tensor all = ls::zeros({axis.size()}, {.dtype = ls::kInt64});
      axis.group()->all_gather(all, ls::tensor({std::int64_t{rank}}))->wait();
      return all.to_vector<std::int64_t>();
    };
    using Ranks = std::vector<std::int64_t>;
    CHECK(ranks_of(mesh["pp"]) == Ranks{rank - 4 * pp, rank - 4 * pp + 4});
    CHECK(ranks_of(mesh["dp"]) == Ranks{rank - 2 * dp, rank - 2 * dp + 2});
    CHECK(ranks_of(mesh["tp"]) == Ranks{rank - tp, rank - tp + 1});
    CHECK(mesh["pp"].rank() == pp);
    CHECK(mesh["dp"].rank() == dp);
    CHECK(mesh["tp"].rank() == tp);
    CHECK(mesh["dp"].size() == 2);
    CHECK(mesh["dp"].to_string() == "dp 2");
    CHECK(mesh["dp"]["dp"].group() == mesh["dp"].group());
    CHECK(ranks_of(mesh.flatten({"dp", "tp"})) == Ranks{4 * pp, 4 * pp + 1, 4 * pp + 2, 4 * pp + 3});
    CHECK(ranks_of(mesh.flatten({"tp", "dp"})) == Ranks{4 * pp, 4 * pp + 2, 4 * pp + 1, 4 * pp + 3});
    CHECK(ranks_of(mesh.flatten({"tp", "pp"})) == Ranks{2 * dp, 2 * dp + 4, 2 * dp + 1, 2 * dp + 5});
    CHECK(mesh.flatten({"tp", "dp"}).rank() == 2 * tp + dp);
    CHECK(mesh.flatten({"tp", "dp"}).to_string() == "tp_dp 4");
    CHECK(mesh.flatten({"pp"}).size() == 2);
    for (const par::DeviceMesh& each : {mesh, mesh["tp"], mesh["tp"]["tp"], mesh.flatten({"tp", "dp"})})
      CHECK(par::whole_group(each) == group);
    CHECK(par::whole_group(mesh.flatten({"tp", "dp"})["tp_dp"]) == group);

    // The counters of an axis have the ranks' numbers in the whole group.
    const Group axis = mesh["pp"].group();
    axis->traffic().clear();
    const ls::Tensor x = ls::ones({4});
    axis->all_reduce(x)->wait();
    REQUIRE(axis->traffic().links().size() == 1);
    CHECK(axis->traffic().links()[0].from == rank);
    CHECK(axis->traffic().links()[0].to == (rank + 4) % 8);
    CHECK(axis->traffic().links()[0].bytes == 16);
    CHECK(axis->global_rank(1) == 4 + rank % 4);
  });
}
