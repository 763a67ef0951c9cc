// The output of our programs for --help and for wrong command lines.
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
                                                                  {LOCKSTEP_RUN, {"--help"}},
                                                                  {kExplain, {"--help"}},
                                                                  {kExplain, {"all_reduce", "--help"}},
                                                                  {kExplain, {"scaling", "--help"}}};
  for (const auto& each : all) {
    const Finished help = run(each.first, each.second);
    CAPTURE(each.first);
    CAPTURE(help.output);
    CHECK(help.code == 0);
    CHECK(help.output.size() > 100);
    CHECK(first_unprintable(help.output) == -1);
  }
  CHECK(contains(run(kExplain, {"all_reduce", "--help"}).output, "{direct,halving_doubling,ring,tree}"));
}

TEST_CASE("every error is text, and a wrong command line exits with 2") {
  const std::pair<std::string, std::vector<std::string>> all[] = {
      {"logistic_regression", {"--mode", "turbo"}},
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
      {kExplain, {"--ranks", "4", "all_reduce"}}};
  for (const auto& each : all) {
    const Finished wrong = run(each.first, each.second);
    CAPTURE(each.first);
    CAPTURE(wrong.output);
    CHECK(wrong.code == 2);
    CHECK(wrong.output.size() > 20);
    CHECK(first_unprintable(wrong.output) == -1);
  }
  CHECK(contains(run(kExplain, {"all_reduce", "--algorithm", "rings"}).output, "{direct,halving_doubling,ring,tree}"));
}
