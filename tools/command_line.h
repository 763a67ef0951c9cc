// Command lines of all our programs: the form of --help, --version, and errors that name the program,
// suggest the option or subcommand that was meant, and exit with 2.
#pragma once

#include <CLI/CLI.hpp>

namespace command_line {

// Completes a command line whose options and subcommands are declared.
void complete(CLI::App& app);

// Prints the error, or the output of --help or --version. Returns the exit code.
int report(const CLI::App& app, const CLI::ParseError& error);

}  // namespace command_line
