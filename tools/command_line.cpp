#include "tools/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/edit_distance_internal.h"
#include "lockstep/version.h"

namespace command_line {
namespace {

// --- the form of --help -------------------------------------------------------------------------------------------------

constexpr std::size_t kColumns = 100, kIndent = 28;

// Breaks a description into lines that begin at column kIndent and end before kColumns.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t column = kIndent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool is_first = out.empty();
    if (column + 1 + word.size() > kColumns && !is_first) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    } else if (!is_first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

// The names with "-": "-n, --nproc". (Those with "_" are torchrun's second spelling.)
std::string names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& letter : option.get_snames()) names.push_back("-" + letter);
  for (const std::string& name : option.get_lnames()) {
    if (name.find('_') == std::string::npos) names.push_back("--" + name);
  }
  return CLI::detail::join(names, ", ");
}

// " FILE", or " {ring,tree}". CLI11 adds what validators check to the type: "TEXT:{ring,tree}", "INT:INT in [0 - 9]".
std::string value_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "";  // a flag
  const std::string type = option.get_type_name();
  const std::size_t choices = type.find(":{");
  return " " + (choices == std::string::npos ? type.substr(0, type.find(':')) : type.substr(choices + 1));
}

class Help : public CLI::Formatter {
 public:
  Help() { column_width(kIndent); }  // of subcommands
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return CLI::detail::find_and_replace(Formatter::make_help(app, std::move(name), mode), "\n\n\n", "\n\n");
  }
  std::string make_option(const CLI::Option* option, bool /*is_positional*/) const override {
    std::string out = "  " + names_of(*option) + value_of(*option);
    const bool has_room = out.size() + 2 <= kIndent;
    out += has_room ? std::string(kIndent - out.size(), ' ') : "\n" + std::string(kIndent, ' ');
    const std::string given = option->get_default_str();
    const bool has_default = !given.empty() && given != "\"\"" && option->get_expected_max() > 0;
    return out + wrapped(option->get_description() + (has_default ? " (default: " + given + ")" : ""));
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string out = Formatter::make_usage(app, std::move(name));
    if (app->get_prefix_command()) out.insert(out.find_last_not_of('\n') + 1, " PROGRAM [ARGUMENTS...]");
    return out;
  }
};

// --- errors -------------------------------------------------------------------------------------------------------------

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The most similar candidate; empty if none is similar.
std::string nearest(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t least = name.size() / 2 + 1;
  for (const std::string& each : candidates) {
    const std::size_t distance = lockstep::edit_distance(name, each);
    if (distance < least) best = each;
    least = std::min(least, distance);
  }
  return best;
}

// Says what is wrong with an argument that is neither an option of the program or subcommand nor a subcommand.
std::string describe_unknown(const CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  const bool is_option = name.starts_with("-");
  std::vector<std::string> known, subcommands;
  for (const CLI::App* each : app.get_subcommands({})) {
    subcommands.push_back(each->get_name());
    const std::vector<std::string> options = options_of(*each);
    if (std::ranges::find(options, name) != options.end())
      return fmt::format("{} is an option of {}; write it after \"{}\"", name, each->get_name(), each->get_name());
  }
  const bool has_subcommand = !app.get_subcommands().empty();
  if (is_option) known = options_of(has_subcommand ? *app.get_subcommands()[0] : app);
  if (!is_option && !has_subcommand) known = subcommands;
  const char* const kind = is_option ? "option" : known.empty() ? "argument" : "subcommand";
  const std::string meant = nearest(name, known);
  return fmt::format("there is no {} {}{}", kind, name, meant.empty() ? "" : "; did you mean " + meant + "?");
}

// The text of an error about a value. CLI11 writes "--epochs: 1 required INT:INT in [1 - 9] missing".
std::string describe_error(const std::string& text) {
  return text.ends_with(" missing") ? text.substr(0, text.find(':')) + ": expects a value" : text;
}

std::string message(const CLI::App* app, const CLI::Error& error) {
  std::vector<std::string> unknown = app->remaining(/*recurse=*/true);
  std::erase(unknown, "--");
  const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const bool lacks_subcommand = code == CLI::ExitCodes::RequiredError && app->get_require_subcommand_min() > 0;
  const bool is_unknown = !unknown.empty() && (lacks_subcommand || code == CLI::ExitCodes::ExtrasError);
  const std::string& name = app->get_name();
  return fmt::format("{}: {}\nFor help: {} --help\n", name,
                     is_unknown ? describe_unknown(*app, unknown[0]) : describe_error(error.what()), name);
}

}  // namespace

void complete(CLI::App& app) {
  app.set_version_flag("--version", fmt::format("{} (Lockstep) {}", app.get_name(), lockstep::version()))
      ->description("print the version and exit")
      ->group("Help");
  app.failure_message(message);
  std::vector<CLI::App*> all = app.get_subcommands([](CLI::App*) { return true; });
  all.push_back(&app);
  for (CLI::App* each : all) {
    each->set_help_flag("-h,--help", "print this text and exit")->group("Help");
    each->formatter(std::make_shared<Help>());
  }
}

int report(const CLI::App& app, const CLI::ParseError& error) { return app.exit(error) == 0 ? 0 : 2; }

}  // namespace command_line
