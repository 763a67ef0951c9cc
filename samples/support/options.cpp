#include "support/options.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace samples {
namespace {

// The arguments with quotes where a shell needs them.
std::string typed_command(int argc, char** argv) {
  const std::string harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (i > 0) command += ' ';
    if (!argument.empty() && argument.find_first_not_of(harmless) == std::string::npos) {
      command += argument;
      continue;
    }
    command += '\'';
    for (char c : argument) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += '\'';
  }
  return command;
}

}  // namespace

Options parse(int argc, char** argv, Options options) {
  CLI::App app(options.about, options.program);
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option(options.data_flag, options.data, options.data_help);
  app.add_option("--epochs", options.epochs, "passes over the training data")->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--batch", options.batch, "examples a step")->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--lr", options.lr, "learning rate");
  app.add_option("--seed", options.seed, "of the initial weights and of the order of examples")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  app.add_option("--out", options.out, "folder for what is written (runs/" + options.program + ")");
  app.add_option("--save", options.save, "checkpoint file (checkpoint.safetensors in --out)");
  app.add_option("--resume", options.resume,
                 "auto: go on where the same command was interrupted; yes: go on or fail, also with more epochs; "
                 "no: start afresh")
      ->check(CLI::IsMember({"auto", "yes", "no"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (options.out.empty()) options.out = "runs/" + options.program;
  if (options.save.empty()) options.save = options.out + "/checkpoint.safetensors";
  options.command = typed_command(argc, argv);
  return options;
}

}  // namespace samples
