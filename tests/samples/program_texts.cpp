// The output of our programs for --help and for wrong command lines.
#include "lockstep/version.h"
#include "tests/samples/support.h"

namespace {

const std::string kExplain = std::filesystem::path(LOCKSTEP_RUN).replace_filename("lockstep-explain").string();

// Returns the first byte that is neither part of a UTF-8 character nor a line end, or -1.
int first_unprintable(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool is_plain = byte == '\n' || (byte >= 0x20 && byte < 0x7f);
    const int following = is_plain                      ? 0
                          : byte >= 0xc2 && byte < 0xe0 ? 1
                          : byte >> 4 == 0xe            ? 2
                          : byte >> 3 == 0x1e           ? 3
                                                        : -1;
    if (following < 0) return byte;
    for (int i = 0; i < following; ++i) {
      if (++at == text.size() || (static_cast<unsigned char>(text[at]) >> 6) != 2) return byte;
    }
    ++at;
  }
  return -1;
}

}  // namespace

TEST_CASE("every help is text, and exits with 0") {
  const std::pair<std::string, std::vector<std::string>> all[] = {{"logistic_regression", {"--help"}},
                                                                  {"fashion_mnist_mlp", {"--help"}},
                                                                  {"fashion_mnist_cnn", {"--help"}},
                                                                  {"char_gpt", {"--help"}},
                                                                  {LOCKSTEP_RUN, {"--help"}},
                                                                  {kExplain, {"--help"}},
                                                                  {kExplain, {"all_reduce", "--help"}},
                                                                  {kExplain, {"scaling", "--help"}},
                                                                  {kExplain, {"reduce_scatter", "--help"}},
                                                                  {kExplain, {"memory", "--help"}}};
  for (const auto& each : all) {
    const Finished help = run(each.first, each.second);
    CAPTURE(each.first);
    CAPTURE(help.output);
    CHECK(help.code == 0);
    CHECK(help.output.size() > 100);
    CHECK(first_unprintable(help.output) == -1);
    CHECK_FALSE(contains(help.output, " in ["));                   // CLI11's text for a range
    CHECK_FALSE(contains(help.output, LOCKSTEP_SAMPLE_DATA_DIR));  // help is the same wherever the sources are
    for (const std::string& line : lines(help.output)) CHECK_MESSAGE(line.size() <= 100, line);
  }
  CHECK(contains(run(kExplain, {"all_reduce", "--help"}).output, "{direct,doubling,halving_doubling,ring,tree}"));
}

TEST_CASE("the options that most users want come first, in groups") {
  const auto check_order = [](const std::string& program, const std::vector<std::string>& parts) {
    const std::string help = run(program, {"--help"}).output;
    std::size_t at = 0;
    for (const std::string& part : parts) {
      CAPTURE(part);
      CAPTURE(help);
      const std::size_t found = help.find(part, at);
      REQUIRE(found != std::string::npos);
      at = found;
    }
  };
  check_order("logistic_regression",
              {"\nStrategy:\n", "--strategy, --mode NAME", "--micro-batches INT", "-n, --nproc INT",
               "(default: one for each", "\nTraining:\n", "--epochs INT", "\nOutput:\n", "--report FILE",
               "\nTeaching:\n", "--explain", "\nHelp:\n", "--version"});
  check_order(LOCKSTEP_RUN,
              {"Usage: lockstep-run [OPTIONS] PROGRAM [ARGUMENTS...]\n", "\n  -n, --nproc-per-node, --nproc N|auto\n",
               "(default: 1)", "--no-pty", "\nSeveral hosts:\n", "without an effect", "--rdzv-backend", "\nHelp:\n",
               "Example", "lockstep-run -n 2 ./program"});
}

TEST_CASE("every program has --version") {
  for (const std::string& program : {std::string("logistic_regression"), std::string(LOCKSTEP_RUN), kExplain}) {
    const Finished version = run(program, {"--version"});
    CHECK(version.code == 0);
    CHECK(version.output ==
          std::filesystem::path(program).filename().string() + " (Lockstep) " + lockstep::version() + "\n");
  }
}

TEST_CASE("errors name the program, and what was meant by a misspelt option or subcommand") {
  struct Case {
    std::string program;
    std::vector<std::string> arguments;
    std::string error;
  };
  const Case all[] = {
      {"logistic_regression", {"--epoch", "3"}, "there is no option --epoch; did you mean --epochs?"},
      {"logistic_regression", {"--epoch=3"}, "there is no option --epoch; did you mean --epochs?"},
      {"logistic_regression", {"--xyzzy", "3"}, "there is no option --xyzzy\n"},
      {"logistic_regression", {"3"}, "there is no argument 3\n"},
      {LOCKSTEP_RUN, {"--nprocs", "2", "true"}, "there is no option --nprocs; did you mean --nproc?"},
      {LOCKSTEP_RUN, {"--max-restart=2", "true"}, "there is no option --max-restart; did you mean --max-restarts?"},
      {kExplain, {"allreduce"}, "there is no subcommand allreduce; did you mean all_reduce?"},
      {kExplain, {"allreduce", "--ranks", "4"}, "there is no subcommand allreduce; did you mean all_reduce?"},
      {kExplain, {"xyzzy"}, "there is no subcommand xyzzy\n"},
      {kExplain, {"all_reduce", "--rank", "4"}, "there is no option --rank; did you mean --ranks?"},
      {kExplain,
       {"--elements", "4", "all_reduce"},
       "--elements is an option of all_reduce; write it after \"all_reduce\""},
      {kExplain,
       {"scaling", "--elements", "4"},
       "--elements is an option of all_reduce; write it after \"all_reduce\""},
      {kExplain, {}, "A subcommand is required"},
      {"logistic_regression", {"--epochs"}, "--epochs: expects a value\n"},
      {LOCKSTEP_RUN, {"--max-restarts", "x", "true"}, "--max-restarts: \"x\" is not a number from 0 to 2147483647\n"}};
  for (const Case& each : all) {
    const Finished wrong = run(each.program, each.arguments);
    CAPTURE(wrong.output);
    CHECK(wrong.code == 2);
    CHECK(wrong.output.starts_with(std::filesystem::path(each.program).filename().string() + ": " + each.error));
  }
}

TEST_CASE("every error is text, and a wrong command line exits with 2") {
  const std::pair<std::string, std::vector<std::string>> all[] = {
      {"logistic_regression", {"--mode", "turbo"}},
      {"logistic_regression", {"--strategies", "ddp,turbo"}},
      {"logistic_regression", {"--device", "gpu"}},
      {"logistic_regression", {"--micro-batches", "0"}},
      {"logistic_regression", {"--loss", "x"}},
      {"logistic_regression", {"--backend", "x"}},
      {"logistic_regression", {"--order", "x"}},
      {"logistic_regression", {"--comm-hook", "x"}},
      {"logistic_regression", {"--timeout", "x"}},
      {"logistic_regression", {"--no-such-flag"}},
      {"fashion_mnist_mlp", {"--resume", "x"}},
      {"fashion_mnist_cnn", {"--epochs"}},
      {LOCKSTEP_RUN, {}},
      {LOCKSTEP_RUN, {"--nproc-per-node", "x", "true"}},
      {LOCKSTEP_RUN, {"--max-restarts", "x", "true"}},
      {LOCKSTEP_RUN, {"--tee", "9", "--log-dir", ".", "true"}},
      {LOCKSTEP_RUN, {"--no-such-flag"}},
      {kExplain, {}},
      {kExplain, {"no_such_subcommand"}},
      {kExplain, {"all_reduce", "--algorithm", "rings"}},
      {kExplain, {"all_reduce", "--op", "mean"}},
      {kExplain, {"all_reduce", "--ranks", "x"}},
      {kExplain, {"all_reduce", "--model", "8x2"}},
      {kExplain, {"scaling", "--algorithm", "rings"}},
      {kExplain, {"scaling", "--elements", "12"}},
      {kExplain, {"scaling", "--batch", "0"}},
      {kExplain, {"scaling", "--op", "sum"}},
      {kExplain, {"scaling", "all_reduce"}},
      {kExplain, {"all_gather", "--algorithm", "tree"}},
      {kExplain, {"memory", "--stage", "4"}},
      {kExplain, {"memory", "--model", "gpt", "--units", "3"}},
      {kExplain, {"--ranks", "4", "all_reduce"}}};
  for (const auto& each : all) {
    const Finished wrong = run(each.first, each.second);
    CAPTURE(each.first);
    CAPTURE(wrong.output);
    CHECK(wrong.code == 2);
    CHECK(wrong.output.starts_with(std::filesystem::path(each.first).filename().string() + ": "));
    CHECK(first_unprintable(wrong.output) == -1);
  }
  CHECK(contains(run(kExplain, {"all_reduce", "--algorithm", "rings"}).output,
                 "{direct,doubling,halving_doubling,ring,tree}"));
}
