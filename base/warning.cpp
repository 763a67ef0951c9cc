#include "lockstep/base/warning.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <set>

namespace lockstep {

namespace {
struct Warnings {
  std::mutex mutex;
  Callback<void(const std::string&)> handler;
  std::map<std::string, std::set<std::string>> issued;  // messages by place
};

Warnings& warnings() {
  static Warnings instance;
  return instance;
}

// Prints in one call, so that lines of several threads do not mix.
void print(const std::string& message) {
  const std::string line = "warning: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}
}  // namespace

void on_warning(Callback<void(const std::string&)> handler) {
  const std::lock_guard lock(warnings().mutex);
  warnings().handler = std::move(handler);
  warnings().issued.clear();
}

void warn(const char* place, const std::string& message, std::size_t limit) {
  const std::lock_guard lock(warnings().mutex);
  std::set<std::string>& issued = warnings().issued[place];
  if (issued.size() >= limit || !issued.insert(message).second) return;
  const bool is_last = issued.size() == limit;
  const std::string text = is_last ? message + "\nFurther warnings of this kind are not shown" : message;
  const auto& handler = warnings().handler;
  handler ? handler(text) : print(text);
}

}  // namespace lockstep
