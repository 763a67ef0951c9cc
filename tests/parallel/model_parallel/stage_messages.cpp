// Messages between stages on ranks that are processes.
#include "tests/parallel/model_parallel/stage_messages.h"

using namespace stage_messages;

TEST_CASE("messages between stages of shm") {
  with_group("shm", 2, check_tensors);
  with_group("shm", 2, check_slots);
  with_group("shm", 2, [](const Group& group) { check_traffic(group, true); });
}
TEST_CASE("messages between stages of shm: the sender computes") {
  const NumberPipe pipe;
  const Signal received = {.give = [&] { pipe.send(1); }, .wait = [&] { pipe.receive(); }};
  with_group("shm", 2, [&](const Group& group) { check_busy_sender(group, received); });
}
