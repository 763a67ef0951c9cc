// Command lines of all our programs: the form of --help, --version, and errors that name the program,
// suggest the option or subcommand that was meant, and exit with 2.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace command_line {

// Accepts numbers from `low` to `high`. (The text of CLI::Range depends on CLI11's version.)
template <class T>
CLI::Validator range(T low, T high) {
  const auto check = [low, high](const std::string& text) {
    T value{};
    const bool is_number = CLI::detail::lexical_cast(text, value);
    return is_number && low <= value && value <= high
               ? std::string()
               : fmt::format("\"{}\" is not a number from {} to {}", text, low, high);
  };
  return CLI::Validator(check, "");
}

// Completes a command line whose options and subcommands are declared.
void complete(CLI::App& app);

// Prints the error, or the output of --help or --version. Returns the exit code.
int report(const CLI::App& app, const CLI::ParseError& error);

}  // namespace command_line
