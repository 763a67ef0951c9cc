// A process group and three collectives. Arguments: URL of the rendezvous (env://), time-out in seconds (60).
#include <lockstep/lockstep.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  const auto group =
      ls::parallel::init_process_group({.init_method = argc > 1 ? argv[1] : "env://",
                                        .timeout = std::chrono::seconds(argc > 2 ? std::atoi(argv[2]) : 60)});
  const int rank = group->rank(), size = group->size();

  const ls::Tensor mine = ls::tensor({static_cast<std::int64_t>(getpid())}),
                   all = ls::zeros({size}, {.dtype = ls::kInt64});
  group->all_gather(all, mine)->wait();
  const ls::Tensor sum = ls::tensor({rank + 1.0f}), root = ls::tensor({10.0f * (rank + 1)});
  group->all_reduce(sum)->wait();
  group->broadcast(root, 0)->wait();

  if (rank == size - 1) {  // all ranks have the same results
    for (int r = 0; r < size; ++r)
      std::printf("rank %d of %d is process %d%s\n", r, size, all[r].item<int>(), r == rank ? ", and prints this" : "");
    std::printf("all_reduce: rank r contributed r + 1, every rank has %g\n", sum.item<double>());
    std::printf("broadcast:  rank %d had %d, and now has rank 0's %g\n", rank, 10 * (rank + 1), root.item<double>());
  }
} catch (const ls::Error& error) {
  std::printf("%s\n", error.what());
  return 1;
}
