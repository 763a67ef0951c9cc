// Checkpoints of ranks that are processes.
#include "tests/parallel/checkpoint/sharded_checkpoint.h"

TEST_CASE("pieces on 1 to 4 processes are saved as the file of one process, and loaded from it") {
  check_all_pieces("shm");
}

TEST_CASE("slices of parameters on 1, 2 and 4 processes are saved as the file of one process, and loaded from it") {
  check_slices("shm");
}

TEST_CASE("DistributedDataParallel writes the file of GradientAccumulation, and each continues from the other's") {
  save_twice(accumulation(), 0, 4, "accumulation");
  const std::string want_3 = content_of_file("accumulation_3"), want_6 = content_of_file("accumulation_6");
  for (const int size : {1, 2, 4}) {
    INFO(size);
    with_group("shm", size, [&](const Group& group) {
      const int each = 4 / size;
      save_twice(distributed(group), group->rank() * each, each, "distributed");
      CHECK(content_of_file("distributed_3") == want_3);
      CHECK(content_of_file("distributed_6") == want_6);
      save_twice(distributed(group), group->rank() * each, each, "resumed", "accumulation_3");
      CHECK(content_of_file("resumed_6") == want_6);
    });
    save_twice(accumulation(), 0, 4, "resumed", "distributed_3");
    CHECK(content_of_file("resumed_6") == want_6);
  }
}

TEST_CASE("an error of rank 0 in a save is an error on all ranks, which names rank 0") {
  with_group("shm", 2, [&](const Group& group) {
    Everything model;
    par::DistributedDataParallel run(model, group);
    const std::string text = error_of<ls::IoError>([&] { par::save_checkpoint("no/folder/f", {.model = &run}); });
    CHECK(contains(text, "no/folder/f: cannot create the temporary file: No such file or directory"));
    CHECK(text.starts_with("rank 0: ") == (group->rank() == 1));
  });
}
