// The collective suite on the mpi backend. ctest runs this file under mpirun; without it there is nothing to join.
#include <cstdlib>

#include "tests/parallel/collectives.h"
#include "tests/parallel/comm_hooks.h"
#include "tests/parallel/join.h"

namespace {

bool under_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

Group world(ls::parallel::InitOptions options = {}) {
  options.backend = "mpi";
  options.init_method = "mpi://";
  options.timeout = std::chrono::seconds(30);
  return ls::parallel::init_process_group(options);
}

void check_everything(const Group& group) {
  for (const ls::DType dtype : kAllDTypes) {
    check_collectives(group, 1, dtype, false);
    check_collectives(group, 29, dtype, true);
  }
  for (const std::int64_t rows : {2500, 3500, 20000}) check_collectives(group, rows, ls::kFloat32, false);
}

}  // namespace

TEST_CASE("mpi: every collective, dtype and stride" * doctest::skip(!under_mpirun())) {
  check_everything(world());
  check_everything(world({.reduction = ls::parallel::Reduction::kCanonical}));
}

TEST_CASE("mpi: tensors of several pieces" * doctest::skip(!under_mpirun())) {
  check_pieces(world());
  check_pieces(world({.reduction = ls::parallel::Reduction::kCanonical}));
}

TEST_CASE("mpi: uneven all_to_all, products" * doctest::skip(!under_mpirun())) {
  check_uneven_and_products(world());
  check_uneven_and_products(world({.reduction = ls::parallel::Reduction::kCanonical}));
}

TEST_CASE("mpi: 10,000 random collectives of random sizes, waited for at random, leave the right numbers" *
          doctest::skip(!under_mpirun())) {
  check_random_collectives(world(), 10000);
}

TEST_CASE("mpi: join and communication hooks" * doctest::skip(!under_mpirun())) {
  const Group group = world();
  std::vector<int> batches(static_cast<std::size_t>(group->size()), 2);
  batches.front() = 0;
  batches.back() = 3;
  check_uneven(group, {.batches = batches});
  check_uneven(group, {.batches = batches, .by_initial = false, .hook = ls::parallel::allreduce_hook});
  check_casts(group);
  check_power_sgd(group, 2, ls::kFloat32);
}

TEST_CASE("mpi: ranks that split form groups of their own" * doctest::skip(!under_mpirun())) {
  const Group group = world();
  const Group part = group->split(group->rank() % 2);
  const ls::Tensor t = ls::full({3}, group->rank());
  part->all_reduce(t)->wait();
  double sum = 0;
  for (int r = group->rank() % 2; r < group->size(); r += 2) sum += r;
  CHECK(t.min().item<double>() == sum);
}

TEST_CASE("mpi: other backends meet by MPI, too" * doctest::skip(!under_mpirun())) {
  for (const char* backend : {"shm", "gloo"}) {
    const Group group = ls::parallel::init_process_group({.backend = backend, .init_method = "mpi://"});
    const ls::Tensor t = ls::ones({3});
    group->all_reduce(t)->wait();
    CHECK(t.min().item<int>() == group->size());
  }
}

TEST_CASE("mpi: ranks that disagree are told who called what" * doctest::skip(!under_mpirun())) {
  const Group group = world();
  const bool is_first = group->rank() == 0;
  const std::string error = error_of<ls::CommError>([&] {
    group->all_reduce(ls::zeros(is_first ? ls::Shape{2, 3} : ls::Shape{6}))->wait();
  });
  CHECK_MESSAGE(contains(error, "disagree"), error);
  const bool is_told = contains(error, "all_reduce of 6 f32") && contains(error, "another shape");
  CHECK_MESSAGE((is_told || contains(error, "another rank says")), error);
  CHECK(contains(error_of<ls::CommError>([&] { group->barrier(); }), "failed before"));
}

TEST_CASE("mpi: a program that mpirun did not start is told so" * doctest::skip(under_mpirun())) {
  check_processes(1, [](int) {  // MPI would stay initialised
    const std::string error = error_of([] {
      ls::parallel::init_process_group({.backend = "mpi", .init_method = "mpi://", .world_size = 2, .rank = 0});
    });
    CHECK_MESSAGE(contains(error, "mpirun -np"), error);
  });
}
