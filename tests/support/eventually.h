// What comes true in another process, which says nothing when it does.
#pragma once

#include <chrono>
#include <thread>

// Waits until `condition` holds, for a minute at most.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}
