// Collectives of GPU tensors over the host backends, which stage them.
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "tests/cuda/host_accelerator.h"
#include "tests/parallel/comm/parts.h"

namespace {

namespace par = ls::parallel;

void check_backend(const std::string& backend, int size) {
  const TestDevices devices;
  if (devices.are_real() && backend != "local") return;  // a process that has used CUDA cannot be forked
  INFO(backend);
  with_group(backend, size, [&](const Group& group) {
    const ls::Device device = devices[group->rank()];
    for (const ls::DType dtype : kAllDTypes) check_collectives(group, 5, dtype, false, device);
    check_collectives(group, 5, ls::kFloat32, true, device);
    check_collectives(group, 20'000, ls::kFloat32, false, device);
    check_parts(group, 37, ls::kFloat32, device);
    check_uneven_and_products(group, device);
    check_bools(group, device);
  });
}

bool has_backend(const std::string& name) {
  try {
    par::backend_module(name);
    return true;
  } catch (const ls::NotBuilt&) {
    return false;
  }
}

}  // namespace

TEST_CASE("collectives of tensors on GPUs: threads") {
  check_backend("local", 2);
  check_backend("local", 3);
}

TEST_CASE("collectives of tensors on GPUs: processes in shared memory") { check_backend("shm", 2); }

TEST_CASE("collectives of tensors on GPUs: processes over gloo") {
  if (!has_backend("gloo")) return;
  check_backend("gloo", 2);
}

TEST_CASE("a group of one rank, and groups that mix ranks on the host and on GPUs") {
  const TestDevices devices;
  const Group alone = par::init_process_group(
      {.backend = "local", .world_size = 1, .rank = 0, .store = std::make_shared<par::InProcessStore>()});
  check_collectives(alone, 3, ls::kFloat32, false, devices[0]);
  check_collectives(alone, 3, ls::kFloat64, true, devices[0]);
  with_threads("local", 2, [&](const Group& group) {
    check_collectives(group, 5, ls::kFloat32, false, group->rank() == 0 ? ls::Device() : devices[0]);
    const ls::Tensor mixed = group->empty({3000}, ls::kFloat32, group->rank() == 0 ? ls::Device() : devices[0]);
    mixed.fill_(group->rank() + 1);
    group->all_reduce(mixed)->wait();
    CHECK(mixed.min().item<double>() == 3);
  });
}

TEST_CASE("communication memory on a GPU, parts of it, and results that nobody waits for") {
  const TestDevices devices;
  {
    with_threads("local", 2, [&](const Group& group) {
      const ls::Device device = devices[group->rank()];
      for (const std::int64_t count : {7, 50'000}) {  // small tensors take a separate path
        const ls::Tensor memory = group->empty({3, count}, ls::kFloat64, device);
        CHECK(memory.device() == device);
        memory.fill_(1.0);
        const ls::Tensor middle = memory[1];
        middle.fill_(group->rank() + 2.0);
        group->all_reduce(middle)->wait();
        CHECK(middle.min().item<double>() == 5);
        CHECK(memory[0].max().item<double>() == 1);
        CHECK(memory[2].max().item<double>() == 1);
        const auto first = group->all_reduce(memory[0]), last = group->all_reduce(memory[2]);  // at the same time
        memory[1].fill_(9.0);
        first->wait();
        last->wait();
        CHECK(memory[0].min().item<double>() == 2);
        CHECK(memory[2].max().item<double>() == 2);
        CHECK(memory[1].max().item<double>() == 9);
        memory.fill_(group->rank() + 4.0);
        group->broadcast(memory, 1);
        group->barrier();  // finishes the dropped operations
        CHECK(memory.min().item<double>() == 5);
        CHECK(memory.max().item<double>() == 5);
      }
    });
  }
  if (!devices.are_real()) CHECK(devices.pinned() == 0);
}

TEST_CASE("the copies between a GPU and its host are recorded") {
  const TestDevices devices;
  with_threads("local", 2, [&](const Group& group) {
    group->traffic().clear();
    const ls::Tensor t = ls::ones({1000}, {.device = devices[0]});
    group->all_reduce(t)->wait();
    group->broadcast(t, 0)->wait();
    const int rank = group->rank(), gpu = -1 - rank;
    std::int64_t up = 0, down = 0, wire = 0;
    for (const par::LinkTraffic& link : group->traffic().links()) {
      (link.from == gpu ? down : link.to == gpu ? up : wire) += link.bytes;
    }
    CHECK(down == (rank == 0 ? 8000 : 4000));  // a broadcast copies down on its root, and up on the other ranks
    CHECK(up == (rank == 0 ? 4000 : 8000));
    CHECK(wire == (rank == 0 ? 8000 : 4000));
  });
}

TEST_CASE("an operation that fails leaves its tensor unchanged") {
  const TestDevices devices;
  with_threads("local", 2,
               [&](const Group& group) {
                 const ls::Tensor t = ls::full({5}, 1.0 * group->rank(), {.device = devices[0]});
                 const std::string error = error_of<ls::CommError>(
                     [&] { group->rank() == 0 ? group->all_reduce(t)->wait() : group->broadcast(t, 0)->wait(); });
                 CHECK(contains(error, "ranks disagree"));
                 CHECK(t.max().item<double>() == group->rank());
               },
               {.timeout = std::chrono::seconds(20)});
  const ls::Tensor here = ls::zeros({4}), there = ls::zeros({4}, {.device = devices[0]});
  const Group alone = par::init_process_group(
      {.backend = "local", .world_size = 1, .rank = 0, .store = std::make_shared<par::InProcessStore>()});
  CHECK(contains(error_of<ls::InvalidArgument>([&] { alone->all_gather(here, there); }), "both on one device"));
}
