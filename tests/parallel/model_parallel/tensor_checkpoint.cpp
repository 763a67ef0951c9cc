// One file for every mesh: checkpoints of models that are cut, on ranks that are processes.
#include "tests/parallel/model_parallel/tensor_checkpoint.h"

using namespace tensor_training;

TEST_CASE("processes of every mesh write the same file, and continue from it with the same bits") {
  check_files<TiedModel>(4, {.fused = true, .dropout = 0.2},
                         {{.tp = 1},
                          {.tp = 2},
                          {.tp = 4},
                          {.tp = 2, .dp = 2},
                          {.tp = 2, .dp = 2, .stage = 2},
                          {.tp = 4, .dp = 2, .stage = 3}},
                         "shm");
}
