// OpenMPI's all_reduce, to compare with ours (bench/all_reduce.cpp): the same sizes, measured in the same way. Not
// part of the build; scripts/bench_parallel.sh builds it where there is mpicc.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kWarmUp = 20, kMostBatches = 300 };

static int compare(const void* a, const void* b) {
  const double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

// The median time of one call, over batches of calls. The calls themselves keep the ranks in step.
static double time_calls(size_t bytes, int crowded) {
  const int batch = bytes <= 65536 ? (crowded ? 50 : 1000) : 1;
  const int batches = bytes > (32u << 20) ? 20 : bytes > 65536 ? 300 : 100;
  float* const data = malloc(bytes);
  if (!data) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(data, 0, bytes);
  double samples[kMostBatches];
  for (int b = -kWarmUp; b < batches; ++b) {
    const int calls = b < 0 ? 1 : batch;
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (b >= 0) samples[b] = (MPI_Wtime() - start) / calls;
  }
  free(data);
  qsort(samples, (size_t)batches, sizeof(*samples), compare);
  return samples[batches / 2];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int crowded = size > sysconf(_SC_NPROCESSORS_ONLN);
  const size_t sizes[] = {4, 4000, 4000000, 100000000};
  const char* const names[] = {"4b", "4kb", "4mb", "100mb"};
  const char* const filter = getenv("BENCH_FILTER");
  for (int i = 0; i < 4; ++i) {
    char name[64];
    snprintf(name, sizeof(name), "all_reduce_%d_%s", size, names[i]);
    if (size > 2 && (i == 0 || i == 3)) continue;  // as in ours
    if (filter && !strstr(name, filter)) continue;
    const double seconds = time_calls(sizes[i], crowded);
    if (rank == 0) {
      printf("{\"name\": \"%s\", \"seconds\": %.4e}\n", name, seconds);
      fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
