// The GPT on small texts: modes with the same bits, Ctrl-C, kill -9, generated text, refused options.
#include "tests/samples/support.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace {

constexpr const char* kProgram = "char_gpt";

// Writes a text of `count` rhymes and returns its name. It has 18 distinct characters, with the line end.
std::string rhymes(const std::string& name, int count) {
  std::ofstream file(name);
  for (int i = 0; i < count; ++i) file << (i % 3 == 0 ? "row row row your boat\n" : "gently down the stream\n");
  return name;
}

// A model of a few hundred parameters, with dropout, and no generated text.
std::vector<std::string> small(const std::string& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"--file",     rhymes("rhymes.txt", 200),
                                        "--out",      out,
                                        "--layers",   "2",
                                        "--heads",    "2",
                                        "--width",    "16",
                                        "--context",  "8",
                                        "--batch",    "16",
                                        "--dropout",  "0.1",
                                        "--generate", "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string hash_of(const std::string& out) {
  return nlohmann::json::parse(read_file(out + "/result.json"))["parameter_hash"];
}

// A second at least after the first checkpoint, long enough to be interrupted.
constexpr int kEpochs = 50 / LOCKSTEP_SLOWDOWN;
std::vector<std::string> long_run(const std::string& out) {
  return small(out, {"--epochs", std::to_string(kEpochs), "--save-every", "1"});
}

void check_same_as_whole(const std::string& out) {
  static const int code = run(kProgram, long_run(fresh("gpt_whole"))).code;
  REQUIRE(code == 0);
  CHECK(read_file(out + "/model.safetensors") == read_file("gpt_whole/model.safetensors"));
  CHECK(metrics_without_times(out) == metrics_without_times("gpt_whole"));
}

std::string error_of(const std::vector<std::string>& arguments) {
  const Finished finished = run(kProgram, arguments);
  CHECK(finished.code != 0);
  CHECK(lines(finished.output).size() <= 3);
  return finished.output;
}

}  // namespace

TEST_CASE("char_gpt: accumulate, dp and ddp end with the same bits, with dropout, clipping and tied weights") {
  const Finished finished =
      run(kProgram,
          small(fresh("gpt_compare"), {"--mode", "compare", "--epochs", "1", "--micro-batches", "4", "--nproc", "2"}));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "accumulate, dp and ddp end with bitwise identical parameters."));
  CHECK(hash_of("gpt_compare/ddp") == hash_of("gpt_compare/accumulate"));
  CHECK(hash_of("gpt_compare/ddp") != hash_of("gpt_compare/single"));
  CHECK(lines(finished.output).back().starts_with("test accuracy 0."));
}

TEST_CASE("char_gpt: recomputation ends with the same bits, in f32 and in bf16") {
  const auto trained = [](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), {"--epochs", "1"});
    REQUIRE(run(kProgram, small(fresh(out), more)).code == 0);
    return hash_of(out);
  };
  const std::string plain = trained("gpt_plain", {}), bf16 = trained("gpt_bf16", {"--bf16"});
  CHECK(trained("gpt_recompute", {"--recompute"}) == plain);
  CHECK(trained("gpt_bf16_recompute", {"--bf16", "--recompute"}) == bf16);
  CHECK(bf16 != plain);
  const auto loss = [](const std::string& out) {
    return nlohmann::json::parse(read_file(out + "/result.json"))["test_loss"].get<double>();
  };
  CHECK(loss("gpt_bf16") == doctest::Approx(loss("gpt_plain")).epsilon(0.02));
}

TEST_CASE("char_gpt: a bf16 run ends with the same bits in all modes") {
  const Finished finished =
      run(kProgram, small(fresh("gpt_bf16_compare"),
                          {"--mode", "compare", "--epochs", "1", "--bf16", "--micro-batches", "2", "--nproc", "2"}));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "accumulate, dp and ddp end with bitwise identical parameters."));
}

TEST_CASE("char_gpt learns a text, writes a report, and generates the same text again without training") {
  const auto trained = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--epochs", "15", "--dropout", "0", "--lr", "0.02"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run(kProgram, small("gpt_learns", arguments));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    return finished.output;
  };
  // The output after the line of the accuracy: an empty line, the text, a line end.
  const auto generated = [](const std::string& output) {
    const std::size_t end = output.find('\n', output.find("\ntest accuracy 0.") + 1);
    return end + 2 < output.size() ? output.substr(end + 2, output.size() - end - 3) : "";
  };
  fresh("gpt_learns");
  const std::string first =
      trained({"--generate", "200", "--report", "gpt_learns/report.html", "--peak-gflops", "1000"});
  CHECK(lines(first)[0].starts_with("epoch  1/15: step loss "));
  double tokens = 0, gflops = 0;
  int mfu = 0;
  const std::size_t speed = lines(first)[0].find(" tokens/s");
  REQUIRE(speed != std::string::npos);
  const std::string rates = lines(first)[0].substr(lines(first)[0].rfind(',', speed));
  CHECK(std::sscanf(rates.c_str(), ", %lf tokens/s, %lf GFLOP/s, MFU %d %%", &tokens, &gflops, &mfu) == 3);
  // 6 operations for each weight, 12 for each block, column and position.
  CHECK(std::abs(gflops - 1e-9 * tokens * (6 * (2 * 12 * 16 * 16 + 18 * 16) + 12 * 2 * 16 * 8)) < 0.06);
  CHECK(std::abs(mfu - gflops / 10) < 0.6);
  CHECK(std::filesystem::file_size("gpt_learns/report.html") > 10000);
  const auto result = nlohmann::json::parse(read_file("gpt_learns/result.json"));
  CHECK(result["test_loss"].get<double>() < 0.7);  // log(18) is 2.9
  CHECK(result["test_accuracy"].get<double>() > 0.7);

  const std::string text = generated(first);
  CHECK(text.size() == 200);
  CHECK(text.find_first_not_of("row your boat\ngently down the stream") == std::string::npos);
  CHECK(contains(text, "down the stream\n"));
  const auto again = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--resume", "yes"});
    const std::string output = trained(more);
    CHECK(!contains(output, "epoch 15/15"));
    return generated(output);
  };
  CHECK(again({"--generate", "200"}) == text);
  CHECK(again({"--generate", "200", "--temperature", "100"}) != text);
  CHECK(again({"--generate", "40", "--temperature", "100", "--top-k", "1"}) ==
        again({"--generate", "40", "--temperature", "1", "--top-k", "1"}));
  CHECK(again({}).empty());
}

TEST_CASE("char_gpt: after Ctrl-C, and after kill -9, the same command ends with the bits of an uninterrupted run") {
  for (const int signal : {SIGINT, SIGKILL}) {
    CAPTURE(signal);
    const std::string out = fresh(signal == SIGINT ? "gpt_interrupted" : "gpt_killed");
    Process process(kProgram, long_run(out));
    REQUIRE(eventually([&] { return std::filesystem::exists(out + "/checkpoint.safetensors"); }));
    process.signal(signal);
    process.require_end(signal == SIGINT ? 130 : -SIGKILL);
    CHECK(epochs_written(out) < kEpochs);
    const Finished second = run(kProgram, long_run(out));
    CHECK(second.code == 0);
    CHECK(contains(second.output, "Resuming from " + out + "/checkpoint.safetensors"));
    check_same_as_whole(out);
  }
}

TEST_CASE("char_gpt resumes only with the same model") {
  REQUIRE(run(kProgram, small(fresh("gpt_settings"), {"--epochs", "1"})).code == 0);
  const Finished other = run(kProgram, small("gpt_settings", {"--epochs", "1", "--width", "32", "--resume", "yes"}));
  CHECK(other.code == 1);
  CHECK(contains(other.output, "width=16"));
  CHECK(contains(other.output, "width=32"));
}

TEST_CASE("char_gpt: errors name the option and the fix") {
  const std::string out = fresh("gpt_errors");
  CHECK(contains(error_of(small(out, {"--heads", "3"})), "--heads 3 does not divide --width 16; use --width 18"));
  CHECK(contains(error_of(small(out, {"--context", "300"})),
                 "the training or test part has 453 characters, expected at least 600 (2 x --context 300)"));
  CHECK(contains(error_of(small(out, {"--file", "nowhere.txt"})),
                 "nowhere.txt: expected a readable, non-empty text file"));
  CHECK(contains(error_of(small(out, {"--layers", "0"})), "--layers"));
  CHECK(contains(error_of(small(out, {"--temperature", "0"})), "--temperature"));
  CHECK(contains(error_of(small(out, {"--cuda-graph"})), "--cuda-graph"));
  CHECK(contains(run("logistic_regression", {"--width", "3"}).output, "--width"));
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("char_gpt: the default text is there, and a short run on it is better than guessing") {
  const Finished finished =
      run(kProgram, {"--out", fresh("gpt_text"), "--layers", "1", "--heads", "1", "--width", "16", "--context", "128",
                     "--batch", "128", "--epochs", "1", "--lr", "0.01", "--generate", "20"});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  const auto result = nlohmann::json::parse(read_file("gpt_text/result.json"));
  CHECK(result["test_loss"].get<double>() < 3.4);  // log(65) is 4.2
}
