// The buckets of an MLP under DistributedDataParallel, and the launch time of each. Argument: MiB per bucket (2).
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;

struct Mlp : ls::nn::Module {
  ls::nn::Linear &fc1, &fc2, &fc3, &fc4;
  Mlp()
      : fc1(add<ls::nn::Linear>("fc1", 256, 512)), fc2(add<ls::nn::Linear>("fc2", 512, 512)),
        fc3(add<ls::nn::Linear>("fc3", 512, 512)), fc4(add<ls::nn::Linear>("fc4", 512, 10)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return fc4(relu(fc3(relu(fc2(relu(fc1(x))))))); }
};

int main(int argc, char** argv) {
  const auto group = ls::parallel::init_process_group();
  ls::manual_seed(static_cast<std::uint64_t>(group->rank()));  // other weights on each rank; rank 0's are broadcast
  Mlp model;
  ls::parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = argc > 1 ? std::atof(argv[1]) : 2});
  const ls::Tensor x = ls::randn({256, 256});
  double overlaps[21];
  for (double& overlap : overlaps) {
    model.zero_grad();
    ls::mean(ddp(x)).backward();
    overlap = ddp.stats().overlap_bytes;
  }
  std::ranges::sort(overlaps);  // their median: other programs may delay a rank
  const ls::parallel::DistributedDataParallelStats stats = ddp.stats();
  for (std::size_t b = 0; b < stats.buckets.size() && group->rank() == 0; ++b) {
    const auto& bucket = stats.buckets[b];
    std::printf("bucket %zu: %7d bytes, from %s to %s, launched at %.0f us\n", b, static_cast<int>(bucket.bytes),
                bucket.parameters.front().c_str(), bucket.parameters.back().c_str(), 1e6 * bucket.launched);
  }
  if (group->rank() == 0)
    std::printf("%.0f %% of the bytes were reduced before the last gradient was ready; %d gradients were copied\n",
                100 * overlaps[10], static_cast<int>(stats.copies));
}
