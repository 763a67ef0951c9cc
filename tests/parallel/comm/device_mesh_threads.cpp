#include "tests/parallel/comm/mesh_cases.h"

namespace par = ls::parallel;

TEST_CASE("a mesh of 2 x 2 x 2 ranks, which are threads") { check_mesh("local"); }

TEST_CASE("a mesh without a group is this process alone") {
  const par::DeviceMesh mesh(nullptr, {{"dp", 1}, {"cp", -1}});
  CHECK(mesh.defined());
  CHECK_FALSE(par::DeviceMesh().defined());
  CHECK(mesh.size() == 1);
  CHECK(mesh.rank() == 0);
  CHECK(mesh["cp"].size() == 1);
  CHECK(mesh["cp"].group() == nullptr);
  CHECK(par::whole_group(mesh["cp"]) == nullptr);
  CHECK(mesh.flatten({"cp", "dp"}).to_string() == "cp_dp 1");
}

TEST_CASE("axes of one rank have a group of one rank") {
  with_group("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"dp", 1}, {"cp", 2}});
    REQUIRE(mesh["dp"].group());
    CHECK(mesh["dp"].group()->size() == 1);
    CHECK(mesh["cp"].size() == 2);
  });
}

TEST_CASE("a wrong mesh is an error on all ranks that names axes and ranks") {
  const auto check = [](int ranks, const std::vector<par::MeshAxis>& axes, const std::string& want) {
    with_group("local", ranks, [&](const Group& group) {
      CHECK_THROWS_WITH_AS(par::DeviceMesh(group, axes), want.c_str(), ls::InvalidArgument);
    });
  };
  check(8, {{"pp", 2}, {"dp", 2}, {"tp", 3}}, "DeviceMesh: axes pp 2, dp 2, tp 3 need 12 ranks, the group has 8");
  check(2, {{"dp", 1}}, "DeviceMesh: axes dp 1 need 1 ranks, the group has 2");
  check(2, {{"dp", 2}, {"dp", 1}}, "DeviceMesh: two axes have the name dp");
  check(2, {{"dp", -1}, {"tp", -1}}, "DeviceMesh: axes dp and tp have size -1, expected one at most");
  check(4, {{"dp", 3}, {"tp", -1}},
        "DeviceMesh: axes dp 3, tp -1: the sizes without tp need a multiple of 3 ranks, the group has 4");
  check(2, {{"dp", 0}}, "DeviceMesh: axis dp has size 0, expected 1 or more, or -1");
  check(2, {{"", 2}}, "DeviceMesh: axis 0 has no name");
  check(2, {}, "DeviceMesh: there are no axes; name one at least: {{\"dp\", -1}}");
  CHECK_THROWS_WITH_AS(par::DeviceMesh(nullptr, {{"dp", 2}}),
                       "DeviceMesh: axes dp 2 need 2 ranks, there is no group, which is one rank", ls::InvalidArgument);

  const par::DeviceMesh mesh(nullptr, {{"pp", 1}, {"dp", 1}, {"tp", 1}}), one(nullptr, {{"dp", 1}});
  CHECK_THROWS_WITH_AS(mesh["tq"], "mesh[\"tq\"]: there is no axis tq; there are pp, dp, tp", ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(one["tp"], "mesh[\"tp\"]: there is no axis tp; there is dp", ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(mesh["dp"]["tp"], "mesh[\"tp\"]: there is no axis tp; there is dp", ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(mesh.flatten({"dp", "cp"}), "DeviceMesh: flatten: there is no axis cp; there are pp, dp, tp",
                       ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(mesh.flatten({"dp", "dp"}), "DeviceMesh: flatten: axis dp is named twice", ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(mesh.flatten({}), "DeviceMesh: flatten of no axes; name one at least", ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(par::DeviceMesh().size(),
                       "DeviceMesh: size of an undefined mesh; construct it with a group and axes",
                       ls::InvalidArgument);
}
