#include "lockstep/tensor/warning.h"

#include <mutex>
#include <set>

namespace lockstep::inline LOCKSTEP_ABI {

namespace {
struct Warnings {
  std::mutex mutex;
  Callback<void(const std::string&)> handler;
  std::set<std::string> told;
};

Warnings& warnings() {
  static Warnings instance;
  return instance;
}
}  // namespace

void on_warning(Callback<void(const std::string&)> handler) {
  const std::lock_guard lock(warnings().mutex);
  warnings().handler = std::move(handler);
  warnings().told.clear();
}

void warn(const char* place, const std::string& message) {
  const std::lock_guard lock(warnings().mutex);
  if (!warnings().handler || !warnings().told.insert(place).second) return;
  warnings().handler(message);
}

}  // namespace lockstep::inline LOCKSTEP_ABI
