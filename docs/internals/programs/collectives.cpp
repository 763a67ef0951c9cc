// The bytes that each rank sends in every collective, by the traffic counters. P is the size of the whole tensor.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <vector>

namespace ls = lockstep;
namespace par = ls::parallel;

template <class Start>
void report(par::ProcessGroup& group, const char* name, const Start& start) {
  const std::int64_t before = group.traffic().bytes_from(group.rank());
  start()->wait();
  const ls::Tensor own = ls::tensor({group.traffic().bytes_from(group.rank()) - before});
  const ls::Tensor all = ls::zeros({group.size()}, {.dtype = ls::kInt64});
  group.all_gather(all, own)->wait();
  if (group.rank() != 0) return;
  std::printf("%-14s", name);
  for (const std::int64_t bytes : all.span<std::int64_t>()) std::printf(" %6d", static_cast<int>(bytes));
  std::printf("\n");
}

int main() {
  const auto group = par::init_process_group();
  const int rank = group->rank(), size = group->size();
  const ls::Tensor whole = ls::zeros({size * 300}), other = ls::zeros_like(whole), part = ls::zeros({300});
  const std::vector<ls::Tensor> parts = rank == 0 ? ls::chunk(whole, size, 0) : std::vector<ls::Tensor>();
  if (rank == 0) std::printf("P = %d bytes; sent by ranks 0 to %d:\n", size * 1200, size - 1);
  report(*group, "broadcast", [&] { return group->broadcast(whole, 0); });
  report(*group, "reduce", [&] { return group->reduce(whole, 0); });
  report(*group, "scatter", [&] { return group->scatter(part, parts, 0); });
  report(*group, "gather", [&] { return group->gather(parts, part, 0); });
  report(*group, "reduce_scatter", [&] { return group->reduce_scatter(part, whole); });
  report(*group, "all_gather", [&] { return group->all_gather(whole, part); });
  report(*group, "all_reduce", [&] { return group->all_reduce(whole); });
  report(*group, "all_to_all", [&] { return group->all_to_all(other, whole); });
}
