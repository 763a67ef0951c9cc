// Messages between stages on ranks that are threads.
#include <condition_variable>
#include <mutex>

#include "tests/parallel/model_parallel/stage_messages.h"

using namespace stage_messages;

TEST_CASE("messages between stages: shapes, strides, dtypes") { with_group("local", 2, check_tensors); }
TEST_CASE("messages between stages: slots are used again when the receiver has the tensor") {
  with_group("local", 2, check_slots);
}
TEST_CASE("messages between stages: traffic") {
  with_group("local", 2, [](const Group& group) { check_traffic(group, true); });
}
TEST_CASE("messages between stages: the sender computes") {
  std::mutex mutex;
  std::condition_variable changed;
  int given = 0;
  const Signal received = {.give =
                               [&] {
                                 const std::lock_guard lock(mutex);
                                 ++given;
                                 changed.notify_all();
                               },
                           .wait =
                               [&] {
                                 std::unique_lock lock(mutex);
                                 changed.wait(lock, [&] { return given > 0; });
                                 --given;
                               }};
  with_group("local", 2, [&](const Group& group) { check_busy_sender(group, received); });
}
