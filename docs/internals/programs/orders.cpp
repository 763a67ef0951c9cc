// Sums the same four numbers over four ranks in each of the three orders.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;
namespace par = ls::parallel;

void add(const char* name, par::Reduction reduction) {
  const auto group = par::init_process_group({.group_name = name, .reduction = reduction});
  const float values[] = {1e8f, 1, -1e8f, 1};
  const ls::Tensor sum = ls::tensor({values[group->rank() % 4]}), all = ls::zeros({group->size()});
  group->all_reduce(sum)->wait();
  group->all_gather(all, sum)->wait();
  if (group->rank() != 0) return;
  std::printf("%-10s", name);
  for (const float each : all.span<float>()) std::printf("  %g", static_cast<double>(each));
  std::printf("\n");
}

int main() {
  add("canonical", par::Reduction::kCanonical);
  add("arrival", par::Reduction::kArrival);
  add("own-first", par::Reduction::kOwnFirst);
}
