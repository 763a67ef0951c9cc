// The collective suite on the mpi backend. ctest runs this file under mpirun; otherwise most cases are skipped.
#include <dlfcn.h>
#include <signal.h>

#include <cstdlib>

#include "lockstep/parallel/comm/backends/message_rounds_internal.h"
#include "tests/parallel/comm/collectives.h"
#include "tests/parallel/comm/parts.h"
#include "tests/parallel/comm/point_to_point.h"
#include "tests/parallel/replicated/comm_hooks.h"
#include "tests/parallel/sharded/sharded_bias.h"
#include "tests/parallel/step/failing_rank.h"
#include "tests/parallel/step/join.h"
#include "tests/parallel/step/random_training.h"

namespace {

std::int64_t sent_bytes = 0;

}  // namespace

// Interposes MPI's own function to count the bytes that the module sends. All MPI types are pointers, as in OpenMPI;
// the program is not linked with MPI.
extern "C" int MPI_Isend(const void* data, int count, void* type, int to, int tag, void* comm, void** request);
int MPI_Isend(const void* data, int count, void* type, int to, int tag, void* comm, void** request) {
  static const auto send =
      reinterpret_cast<decltype(&MPI_Isend)>(dlsym(dlopen("libmpi.so.40", RTLD_NOW), "PMPI_Isend"));
  sent_bytes += count;  // all data is sent as MPI_BYTE
  return send(data, count, type, to, tag, comm, request);
}

namespace {

bool under_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

Group world(ls::parallel::InitOptions options = {}) {
  options.backend = "mpi";
  options.init_method = "mpi://";
  options.timeout = std::chrono::seconds(30);
  return ls::parallel::init_process_group(options);
}

// mpirun kills the other ranks when the first one exits. With this all ranks end their checks first.
struct UntilAllKnow {
  const Group group = ls::parallel::init_process_group({.backend = "shm"});
  UntilAllKnow() { ::signal(SIGTERM, SIG_IGN); }
  ~UntilAllKnow() { group->barrier(); }
};

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

TEST_CASE("mpi: collectives of parts in place, apart and scaled" * doctest::skip(!under_mpirun())) {
  for (const auto reduction : {ls::parallel::Reduction::kNative, ls::parallel::Reduction::kCanonical}) {
    const Group group = world({.reduction = reduction});
    for (const ls::DType dtype : kAllDTypes) check_parts(group, 37, dtype);
    check_parts(group, 70'001, ls::kFloat32);  // too large to follow the headers
    check_rounding(group);
    check_traffic_of_parts(group);
  }
}

TEST_CASE("mpi: tensors of several pieces" * doctest::skip(!under_mpirun())) {
  check_pieces(world());
  check_pieces(world({.reduction = ls::parallel::Reduction::kCanonical}));
}

TEST_CASE("mpi: messages between some ranks do not disturb the collectives of all ranks" *
          doctest::skip(!under_mpirun())) {
  check_point_to_point(world());
  check_point_to_point(world({.reduction = ls::parallel::Reduction::kCanonical}));
}

TEST_CASE("mpi: uneven all_to_all, products, bools" * doctest::skip(!under_mpirun())) {
  for (const auto reduction : {ls::parallel::Reduction::kNative, ls::parallel::Reduction::kCanonical}) {
    check_uneven_and_products(world({.reduction = reduction}));
    check_bools(world({.reduction = reduction}));
  }
}

TEST_CASE("mpi: random collectives of random sizes, waited for at random, give the right numbers" *
          doctest::skip(!under_mpirun())) {
  check_random_collectives(world(), random_collectives(10'000));
}

TEST_CASE("mpi: a large sum sends 2 (n-1) / n of its bytes in either reduction order, as the traffic counters record" *
          doctest::skip(!under_mpirun())) {
  for (const auto reduction : {ls::parallel::Reduction::kNative, ls::parallel::Reduction::kCanonical}) {
    const Group group = world({.reduction = reduction});
    const int n = group->size(), rank = group->rank();
    for (const std::int64_t count : {16L * n * 5000, 1'000'007L}) {
      const ls::Tensor t = ls::ones({count});
      group->barrier();
      group->traffic().clear();
      sent_bytes = 0;
      group->all_reduce(t)->wait();
      const std::int64_t lines = (count + 15) / 16;  // of 64 bytes: a rank owns whole lines
      const auto first = [&](int r) { return std::min(count, lines * r / n * 16); };
      const auto rounds = ls::parallel::exchange_rounds(rank, n);
      const std::int64_t own = first(rank + 1) - first(rank);
      const std::int64_t heads = 64 * std::ranges::count_if(rounds, [](const auto& round) { return round.to >= 0; });
      CHECK(sent_bytes == (count - own + (n - 1) * own) * 4 + heads);
      const std::int64_t counted = group->traffic().bytes_from(rank);
      if (count % (16 * n) == 0) CHECK(sent_bytes - heads == 2 * (n - 1) * count * 4 / n);
      CHECK(std::abs(sent_bytes - heads - counted) <= 64 * n);  // the counters do not round a rank's part to lines
      const ls::Tensor all = ls::full({1}, static_cast<double>(sent_bytes - heads), {.dtype = ls::kInt64});
      group->all_reduce(all)->wait();
      CHECK(all.item<std::int64_t>() == 2 * (n - 1) * count * 4);
    }
  }
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

TEST_CASE("mpi: random models, sharded ones too, have the bits of one process" * doctest::skip(!under_mpirun())) {
  using namespace random_case;
  check_cases(world({.reduction = ls::parallel::Reduction::kCanonical}), kMpiFirst, kMpiCases);
}

TEST_CASE("mpi: gradients of sharded layers with bias have the bits of gradient accumulation" *
          doctest::skip(!under_mpirun())) {
  sharded_bias::check_bias_gradients(world({.reduction = ls::parallel::Reduction::kCanonical}));
}

TEST_CASE("mpi: ranks that split form separate groups" * doctest::skip(!under_mpirun())) {
  const Group group = world();
  const Group part = group->split(group->rank() % 2);
  const ls::Tensor t = ls::full({3}, group->rank());
  part->all_reduce(t)->wait();
  double sum = 0;
  for (int r = group->rank() % 2; r < group->size(); r += 2) sum += r;
  CHECK(t.min().item<double>() == sum);
}

TEST_CASE("mpi: other backends can use MPI for their rendezvous" * doctest::skip(!under_mpirun())) {
  for (const char* backend : {"shm", "gloo"}) {
    const Group group = ls::parallel::init_process_group({.backend = backend, .init_method = "mpi://"});
    const ls::Tensor t = ls::ones({3});
    group->all_reduce(t)->wait();
    CHECK(t.min().item<int>() == group->size());
  }
}

TEST_CASE("mpi: a group fails where ranks disagree, with an error that names both calls" *
          doctest::skip(!under_mpirun())) {
  const UntilAllKnow until_all_know;
  const Group group = world();
  const bool is_first = group->rank() == 0;
  const std::string error = error_of<ls::CommError>([&] {
    group->all_reduce(ls::zeros(is_first ? ls::Shape{2, 3} : ls::Shape{6}))->wait();
  });
  CHECK_MESSAGE(contains(error, "disagree"), error);
  const bool is_told = contains(error, "all_reduce of 6 f32") && contains(error, "another shape");
  CHECK_MESSAGE((is_told || contains(error, "another rank reports")), error);
  CHECK(contains(error_of<ls::CommError>([&] { group->barrier(); }), "failed before"));
}

TEST_CASE("mpi: a group fails where an exception ends one rank's step, and works where it ends that of all ranks" *
          doctest::skip(!under_mpirun())) {
  const UntilAllKnow until_all_know;
  failing_rank::check_all([] { return world(); }, until_all_know.group);
}

TEST_CASE("mpi: in a program that mpirun did not start, the error says so" * doctest::skip(under_mpirun())) {
  check_processes(1, [](int) {  // in a process of its own, since MPI would stay initialised
    const std::string error = error_of([] {
      ls::parallel::init_process_group({.backend = "mpi", .init_method = "mpi://", .world_size = 2, .rank = 0});
    });
    CHECK_MESSAGE(contains(error, "mpirun -np"), error);
  });
}

TEST_CASE("mpi: another backend on one rank is an error on all ranks that names both" *
          doctest::skip(!under_mpirun())) {
  const bool is_other = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "1";
  const std::string error = error_of<ls::CommError>(
      [&] { ls::parallel::init_process_group({.backend = is_other ? "gloo" : "mpi", .init_method = "mpi://"}); });
  CHECK_MESSAGE(contains(error, "rank 0 has \"mpi\", rank 1 has \"gloo\""), error);
}
