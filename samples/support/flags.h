// The flags of the command line, with the strategies that they are for.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/strategy.h"
#include "tools/command_line.h"

namespace samples {

// Declares the flags and the strategies in which each has an effect. A flag with another strategy is an error, so that
// none is silently ignored.
class Flags {
 public:
  using Strategies = std::vector<std::string>;
  explicit Flags(CLI::App& app) : app_(app) {
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  // The heading of the flags declared next.
  void group(const char* name) { app_.option_defaults()->group(name); }
  template <class T>
  CLI::Option* add(const std::string& name, T& value, const std::string& text) {
    if constexpr (std::is_same_v<T, bool>)
      return app_.add_flag(name, value, text);
    else
      return app_.add_option(name, value, text);
  }
  // Declares a flag for these strategies only; the help lists them. "zero*" stands for all of ShardedDataParallel.
  template <class T>
  CLI::Option* add(const Strategies& strategies, const std::string& name, T& value, const std::string& text) {
    const std::string where =
        fmt::format("({} {}) ", strategies.size() == 1 ? "strategy" : "strategies", listed(strategies));
    return limits_.emplace_back(add(name, value, where + text), strategies).first;
  }
  // `reason` says why the strategy is this one: "" or ", as ...".
  void check(const std::string& strategy, const std::string& reason) const {
    const std::string wanted = sharded_of(strategy) ? "zero*" : strategy;
    for (const auto& [option, strategies] : limits_) {
      if (option->count() == 0 || std::ranges::find(strategies, wanted) != strategies.end()) continue;
      const std::string name = option->get_name();
      throw CLI::ValidationError(name, fmt::format("is for --strategy {} only, and the strategy is {}{}\n"
                                                   "Choose the strategy with --strategy, or leave {} out",
                                                   listed(strategies), strategy, reason, name));
    }
  }

 private:
  static std::string listed(const Strategies& strategies) { return fmt::format("{}", fmt::join(strategies, ", ")); }
  CLI::App& app_;
  std::vector<std::pair<CLI::Option*, Strategies>> limits_;
};

}  // namespace samples
