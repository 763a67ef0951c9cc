// Messages between some ranks and collectives of all, on the backends whose ranks are threads.
#include "tests/parallel/comm/point_to_point.h"

#include "lockstep/parallel/simulate/simulate.h"

namespace par = ls::parallel;

TEST_CASE("local: messages between some ranks do not disturb the collectives of all ranks") {
  for (const int size : {3, 4}) with_threads("local", size, check_point_to_point);
  with_threads("local", 3, check_other_tag);
}

TEST_CASE("hops: messages between some ranks do not disturb the collectives of all ranks") {
  for (const par::Algorithm algorithm : {par::Algorithm::kRing, par::Algorithm::kTree})
    with_threads("sim", 3, check_point_to_point, {.backend_options = par::SimOptions{.algorithm = algorithm}});
}

TEST_CASE("sim: messages between some ranks do not disturb the collectives of all ranks") {
  const auto store = std::make_shared<par::InProcessStore>();
  run_threads(3, [&](int rank) {
    check_point_to_point(par::init_process_group(
        {.backend = "sim",
         .timeout = std::chrono::seconds(30),
         .world_size = 3,
         .rank = rank,
         .store = store,
         .backend_options = par::SimOptions{
             .simulation = std::make_shared<par::Simulation>(par::Link{.latency = 1e-5, .bandwidth = 1e9})}}));
  });
}

TEST_CASE("messages are numbered by pair of ranks and direction, and collectives by group") {
  with_threads("local", 3, [](const Group& group) {
    const ls::Tensor t = ls::zeros({3});
    for (int i = 0; i < 4; ++i) {
      if (group->rank() == 0) group->send(t, 1)->wait();
      if (group->rank() == 1) group->recv(t, 0)->wait();
    }
    if (group->rank() == 1) group->send(t, 2)->wait();
    if (group->rank() == 2) group->recv(t, 1)->wait();
    group->barrier();  // the group's third barrier, after two during its construction
    if (group->rank() == 0) {
      group->send(ls::zeros({3}), 1, 7)->wait();
    } else if (group->rank() == 1) {
      const std::string error = error_of<ls::CommError>([&] { group->recv(ls::zeros({4}), 0, 7)->wait(); });
      CHECK_MESSAGE(contains(error, "recv #4 from rank 0 on rank 1 (f32, 4 elements)"), error);
      CHECK_MESSAGE(contains(error_of<ls::CommError>([&] { group->barrier(); }), "barrier #3 on rank 1"), error);
    }
  });
}
