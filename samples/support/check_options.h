// The flags of a command line together: what follows from them, and which exclude each other.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "support/options.h"

namespace samples {

// Chooses the strategy if none is given. Returns the reason for the choice, for Flags::check.
std::string choose_strategy(const CLI::App& app, Options& options);
// Rejects flags whose values exclude each other.
void check_values(const CLI::App& app, const Options& options);
// Rejects flags that a rank of a launcher must not set: the launcher determines their values.
void check_rank(const CLI::App& app, const Options& options);

}  // namespace samples
