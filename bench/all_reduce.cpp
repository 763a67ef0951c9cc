// all_reduce over shared memory compared with its limit: processes that sum their parts in place, with nothing but a
// barrier. all_gather and reduce_scatter in place, compared with memcpy and with tensors outside communication memory.
// With --backend gloo, or --backend mpi under mpirun -np 2: that backend, in either order of additions.
#include <cstring>

#include "support/arguments.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;

namespace {

using bench::Group;
using bench::Shared;

constexpr int kWarmUp = 20;
constexpr std::size_t kPartsBytes = 4'000'000;  // of all_gather's `out` and reduce_scatter's `in`

// The median time of one call, over batches of calls. The calls themselves keep the ranks in step.
template <class Call>
double time_calls(std::size_t bytes, bool crowded, Call call) {
  const int batch = bytes <= 65536 ? (crowded ? 50 : 1000) : 1;
  const int batches = bytes > (32u << 20) ? 20 : bytes > 65536 ? 300 : 100;
  for (int i = 0; i < kWarmUp; ++i) call();
  std::vector<double> samples;
  for (int b = 0; b < batches; ++b) {
    const double start = bench::seconds_now();
    for (int i = 0; i < batch; ++i) call();
    samples.push_back((bench::seconds_now() - start) / batch);
  }
  return bench::median(std::move(samples));
}

double ours(int size, std::size_t bytes) {
  return bench::run_group(size,
                          [&](const Group& group, Shared& shared) {
                            const auto count = static_cast<std::int64_t>(bytes / 4);
                            const ls::Tensor t = group->empty({count}, ls::kFloat32);
                            t.fill_(0);
                            shared.results[group->rank()][0] =
                                time_calls(bytes, size > ls::usable_cores(), [&] { group->all_reduce(t)->wait(); });
                          })
      ->results[0][0];
}

// --- all_gather and reduce_scatter of two ranks -----------------------------------------------------------------------

// How a row passes its tensors: in place in communication memory, with the same input in every call, as the rows of
// all_reduce do; with input that its rank has written since the last call, which the peer reads from the rank's cache;
// outside communication memory.
enum class Input { kSame, kNew, kOutside };

// The median time of one call on a whole of 4 MB. With kNew both ranks call `write` before each call.
template <class Write, class Call>
double time_parts(Shared& shared, Input input, Write write, Call call) {
  if (input != Input::kNew) return time_calls(kPartsBytes, false, call);
  std::vector<double> samples;
  for (int i = -kWarmUp; i < 300; ++i) {
    write();
    shared.meet(2);
    const double start = bench::seconds_now();
    call();
    if (i >= 0) samples.push_back(bench::seconds_now() - start);
  }
  return bench::median(std::move(samples));
}

void run_parts(const Group& group, Shared& shared, bool gathers, Input input) {
  const bool outside = input == Input::kOutside;
  const std::int64_t half = kPartsBytes / 8;
  const ls::Tensor whole = outside ? ls::empty({2, half}) : group->empty({2, half}),
                   part = outside ? ls::empty({half}) : whole[group->rank()], &in = gathers ? part : whole;
  whole.fill_(0);
  part.fill_(0);
  const auto call = [&] {
    (gathers ? group->all_gather(whole, part) : group->reduce_scatter_scaled(part, whole, 0.5))->wait();
  };
  shared.results[group->rank()][0] = time_parts(
      shared, input, [&] { in.fill_(1); }, call);
}

// The limit: each process copies the other's part to its own memory, or adds it, between two barriers.
void run_limit_of_parts(float* memory, int rank, Shared& shared, bool gathers, Input input) {
  const std::size_t count = kPartsBytes / 4, half = count / 2;
  float* const own = memory + static_cast<std::size_t>(rank) * count;
  const float* const other = memory + static_cast<std::size_t>(1 - rank) * count;
  const std::size_t own_part = static_cast<std::size_t>(rank) * half, other_part = half - own_part;
  const auto write = [&] { std::fill_n(gathers ? own + own_part : own, gathers ? half : count, 1.0F); };
  shared.results[rank][0] = time_parts(shared, input, write, [&] {
    shared.meet(2);
    if (gathers) {
      std::memcpy(own + other_part, other + other_part, half * 4);
    } else {
      for (std::size_t i = own_part; i < own_part + half; ++i) own[i] = 0.5F * (own[i] + other[i]);
    }
    shared.meet(2);
  });
}

void run_rows_of_parts(bool gathers) {
  const std::string row = gathers ? "all_gather_2_4mb" : "reduce_scatter_2_4mb";
  if (!bench::wanted(row)) return;
  void* const memory = mmap(nullptr, 2 * kPartsBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  std::memset(memory, 0, 2 * kPartsBytes);
  for (const auto& [input, prefix] :
       {std::pair{Input::kSame, ""}, {Input::kNew, "new_"}, {Input::kOutside, "staged_"}}) {
    const auto ours = [&, in = input](const Group& group, Shared& shared) { run_parts(group, shared, gathers, in); };
    const auto limit = [&, in = input](int rank, Shared& shared) {
      run_limit_of_parts(static_cast<float*>(memory), rank, shared, gathers, in);
    };
    if (input != Input::kOutside)
      bench::print_row("limit_" + (prefix + row), bench::run_ranks(2, limit)->results[0][0]);
    bench::print_row(prefix + row, bench::run_group(2, ours)->results[0][0]);
  }
}

std::string text(std::size_t bytes) {
  return bytes >= 1000000 ? std::to_string(bytes / 1000000) + "mb"
         : bytes >= 1000  ? std::to_string(bytes / 1000) + "kb"
                          : std::to_string(bytes) + "b";
}

constexpr std::size_t kNetworkSizes[] = {4, 4'000'000, 100'000'000};
constexpr struct {
  ls::parallel::Reduction reduction;
  const char* name;
} kReductions[] = {{ls::parallel::Reduction::kNative, "native"}, {ls::parallel::Reduction::kCanonical, "canonical"}};

// The median over fewer calls than on shared memory, because each call takes longer.
double time_on(const Group& group, std::size_t bytes) {
  const ls::Tensor t = ls::zeros({static_cast<std::int64_t>(bytes / 4)});
  const int batch = bytes <= 65536 ? 100 : 1, batches = bytes > (32u << 20) ? 10 : bytes > 65536 ? 80 : 30;
  std::vector<double> samples;
  for (int b = -3; b < batches; ++b) {
    const double start = bench::seconds_now();
    for (int i = 0; i < batch; ++i) group->all_reduce(t)->wait();
    if (b >= 0) samples.push_back((bench::seconds_now() - start) / batch);
  }
  return bench::median(std::move(samples));
}

void run_backend(const std::string& backend) {
  const bool by_mpi = backend == "mpi";
  for (const auto& [reduction, order] : kReductions) {
    const ls::parallel::InitOptions options{
        .backend = backend, .init_method = by_mpi ? "mpi://" : "env://", .reduction = reduction};
    const Group world = by_mpi ? ls::parallel::init_process_group(options) : nullptr;
    for (const std::size_t bytes : kNetworkSizes) {
      const std::string row = backend + "_" + order + "_all_reduce_2_" + text(bytes);
      if (!bench::wanted(row)) continue;
      double seconds = 0;
      if (by_mpi)
        seconds = time_on(world, bytes);
      else
        seconds =
            bench::run_group(
                2,
                [&](const Group& group, Shared& shared) { shared.results[group->rank()][0] = time_on(group, bytes); },
                options)
                ->results[0][0];
      if (!by_mpi || world->rank() == 0) bench::print_row(row, seconds);
    }
  }
}

// The limit: two processes, each of which sums its half of both arrays into both.
double limit(std::size_t bytes) {
  void* const memory = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto* const a = static_cast<float*>(memory);
  float* const b = a + bytes / 4;
  std::memset(memory, 0, 2 * bytes);
  return bench::run_ranks(2,
                          [&](int rank, Shared& shared) {
                            const std::size_t count = bytes / 4, from = count * static_cast<std::size_t>(rank) / 2,
                                              to = count * static_cast<std::size_t>(rank + 1) / 2;
                            shared.results[rank][0] = time_calls(bytes, false, [&] {
                              shared.meet(2);
#pragma GCC ivdep
                              for (std::size_t i = from; i < to; ++i) {
                                const float sum = a[i] + b[i];
                                a[i] = sum;
                                b[i] = sum;
                              }
                              shared.meet(2);
                            });
                          })
      ->results[0][0];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string backend = bench::Arguments(argc, argv).get("backend", "shm");
  if (backend != "shm") {
    run_backend(backend);
    return 0;
  }
  for (const std::size_t bytes :
       {std::size_t{4}, std::size_t{4000}, std::size_t{4'000'000}, std::size_t{100'000'000}}) {
    if (bench::wanted("all_reduce_2_" + text(bytes))) {
      bench::print_row("limit_all_reduce_2_" + text(bytes), limit(bytes));
      bench::print_row("all_reduce_2_" + text(bytes), ours(2, bytes));
    }
  }
  for (const bool gathers : {true, false}) run_rows_of_parts(gathers);
  for (const std::size_t bytes : {std::size_t{4000}, std::size_t{4'000'000}}) {
    if (bench::wanted("all_reduce_8_" + text(bytes))) bench::print_row("all_reduce_8_" + text(bytes), ours(8, bytes));
  }
}
