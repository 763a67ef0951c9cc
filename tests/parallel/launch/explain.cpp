// Runs lockstep-explain as a user does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/explained.h"
#include "tests/support/groups.h"

using explained::expect_golden;
using explained::explain;
using explained::Finished;

TEST_CASE(
    "every message of an all_reduce is explained, and the last lines compare the measured bytes with the formula") {
  for (const std::string algorithm : {"ring", "tree", "direct", "halving_doubling", "doubling"}) {
    CAPTURE(algorithm);
    const Finished four = explain("all_reduce --algorithm " + algorithm + " --ranks 4 --elements 12");
    CHECK(four.code == 0);
    expect_golden(algorithm + "_4", four.output);
    const Finished five = explain("all_reduce --algorithm " + algorithm + " --ranks 5 --elements 7 --op max");
    CHECK(five.code == 0);
    expect_golden(algorithm + "_5", five.output);
  }
}

TEST_CASE("reduce_scatter and all_gather are explained message by message, as the halves of an all_reduce") {
  for (const std::string collective : {"reduce_scatter", "all_gather"}) {
    CAPTURE(collective);
    const Finished ring = explain(collective + " --ranks 4 --elements 12");
    CHECK(ring.code == 0);
    expect_golden(collective + "_ring_4", ring.output);
    const Finished direct = explain(collective + " --algorithm direct --ranks 3 --elements 6 --html half.html");
    CHECK(direct.code == 0);
    expect_golden(collective + "_direct_3", direct.output);
    CHECK(contains(content_of_file("half.html"), collective + " by direct: 3 ranks, 6 elements"));
    for (const char* arguments : {" --ranks 1", " --ranks 3 --elements 0", " --ranks 64 --elements 128"}) {
      const Finished run = explain(collective + arguments);
      CAPTURE(run.output);
      CHECK(run.code == 0);
      CHECK(contains(run.output, ", correct"));
    }
    const Finished uneven = explain(collective + " --ranks 5 --elements 12");
    CHECK(uneven.code == 1);
    CHECK(contains(uneven.output, collective + ": --elements 12 cannot be cut into 5 equal parts; use --elements 15"));
  }
}

TEST_CASE("memory: bars and closed forms of every stage; the bytes are those of ShardedDataParallel::plan") {
  expect_golden("memory_gpt", explain("memory --ranks 8 --model gpt").output);
  expect_golden("memory_stage3", explain("memory --stage 3 --ranks 4 --parameters 1000000 --micro-batches 4").output);
  CHECK(contains(explain("memory --model gpt --units 3").output, "--units: is not for --model"));
  constexpr int kRanks = 4;
  for (const int stage : {1, 2, 3}) {
    for (const int micro_batches : {1, 2, 4}) {
      lockstep::parallel::ShardedDataParallelOptions options{.stage = stage, .micro_batches_per_rank = micro_batches};
      std::string expected;
      with_threads("local", kRanks, [&](const Group& group) {
        struct Blocks : lockstep::nn::Module {
          lockstep::nn::ModuleList& blocks = add<lockstep::nn::ModuleList>("blocks");
          Blocks() {
            for (int i = 0; i < 3; ++i) blocks.push_back(lockstep::nn::Linear(24, 24, {.bias = false}));
          }
        } model;
        const lockstep::parallel::ShardedDataParallel run(model, group, options);
        const lockstep::parallel::ShardedPlan plan = run.plan();
        if (group->rank() > 0) return;
        for (const std::int64_t bytes :
             {plan.parameter_bytes, plan.gradient_bytes, plan.optimizer_bytes, plan.unit_bytes})
          expected += std::to_string(bytes) + " ";
      });
      const Finished run = explain("memory --ranks 4 --parameters 1728 --units 3 --stage " + std::to_string(stage) +
                                   " --micro-batches " + std::to_string(micro_batches));
      CAPTURE(run.output);
      std::istringstream words(run.output.substr(run.output.find("P parameters")));
      std::string found, before;
      for (std::string word; words >> word && word != "total"; before = word) {
        if (word == "B") found += before + " ";
      }
      CHECK(found == expected);
    }
  }
}

TEST_CASE("no elements, one rank, many ranks: nothing to send is no error") {
  for (const char* arguments : {"--ranks 1", "--ranks 3 --elements 0", "--ranks 64 --elements 3 --algorithm tree",
                                "--ranks 9 --elements 2 --op avg --algorithm halving_doubling"}) {
    const Finished run = explain(std::string("all_reduce ") + arguments);
    CAPTURE(run.output);
    CHECK(run.code == 0);
    CHECK(contains(run.output, ", correct"));
  }
}

TEST_CASE("the page has a figure for each step and the text, and loads nothing from elsewhere") {
  const Finished run = explain("all_reduce --ranks 4 --html page.html");
  CHECK(run.code == 0);
  CHECK(contains(run.output, "page: page.html\n"));
  const std::string page = content_of_file("page.html");
  std::size_t figures = 0;
  for (std::size_t at = page.find("<figure>"); at != std::string::npos; at = page.find("<figure>", at + 1)) ++figures;
  CHECK(figures == 7);  // 2 (n-1) steps, and the final state
  CHECK(contains(page, "default-src 'none'"));
  CHECK_FALSE(contains(page, "http://"));
  CHECK_FALSE(contains(page, "https://"));
  CHECK(contains(page, "rank 0 -&gt; 1"));
  CHECK(contains(page, "prefers-color-scheme: dark"));
  for (const char* control : {"id='previous'", "id='play'", "id='next'", "id='list'"}) CHECK(contains(page, control));
  // Four of a cell's squares at the end, and the bytes that rank 0 has sent: 2 (n-1)/n P with n = 4 and P = 48 B.
  const std::string end = page.substr(page.find("The end"));
  CHECK(contains(end, ">72 B<"));
  CHECK(contains(end, "<title>{0,1,2,3}</title>"));
  CHECK_FALSE(contains(end.substr(0, end.find("</figure>")), "class='out'"));
  CHECK(page.size() < 60'000);
  // Each figure's arrows have the head that it defines itself: a head of a hidden figure is not drawn.
  std::set<std::string> heads;
  for (std::size_t at = page.find("<figure>"); at != std::string::npos; at = page.find("<figure>", at + 1)) {
    const std::string figure = page.substr(at, page.find("</figure>", at) - at);
    const std::size_t id = figure.find("<marker id='") + 12;
    const std::string head = figure.substr(id, figure.find("'", id) - id);
    CHECK(heads.insert(head).second);
    for (std::size_t arrow = figure.find("url(#"); arrow != std::string::npos; arrow = figure.find("url(#", arrow + 1))
      CHECK(figure.substr(arrow + 5, head.size() + 1) == head + ")");
  }
}

TEST_CASE("invalid arguments are errors that say what is expected") {
  CHECK(contains(explain("all_reduce --algorithm rings").output, "ring"));
  CHECK(explain("all_reduce --ranks 0").code != 0);
  CHECK(contains(explain("all_reduce --ranks 17 --html page.html").output, "draws up to 16 ranks"));
  const Finished unwritable = explain("all_reduce --html /nonexistent/page.html");
  CHECK(unwritable.code == 1);
  CHECK(contains(unwritable.output, "/nonexistent/page.html: cannot be written"));
}

TEST_CASE("scaling: prints a table from a profile and the crossover, and writes a page of curves") {
  std::ofstream("profile.json")
      << R"({"forward_us": 1000, "optimizer_us": 500, "input_bytes": 100000, "output_bytes": 4000,
    "buckets": [{"bytes": 1000000, "backward_us": 1500}, {"bytes": 4000000, "backward_us": 500}]})";
  const Finished run = explain("scaling --profile profile.json --link 10GbE --ranks 1..16 --html curves.html");
  CHECK(run.code == 0);
  expect_golden("scaling", run.output);
  const std::string page = content_of_file("curves.html");
  CHECK(contains(page, "<polyline"));
  for (const char* text :
       {"number of devices", "speed-up over one device", "below 1x: slower than one device", "class='ideal'",
        "prefers-color-scheme: dark", "DDP efficiency", "<td>1.00x</td><td>100 %</td>"})
    CHECK(contains(page, text));
  CHECK(contains(page, "default-src 'none'"));
  CHECK_FALSE(contains(page, "http://"));
  const Finished tiny =
      explain("scaling --profile profile.json --link 10GbE --ranks 2,6,1024 --algorithm tree --fixed-batch");
  CHECK(tiny.code == 0);
  CHECK(contains(tiny.output, "one batch, divided among the devices"));
  CHECK(contains(tiny.output, "   1024 |"));
}

TEST_CASE("scaling: a small model is measured, and the measured profile can be read again") {
  const Finished run = explain("scaling --model 8x8x2 --batch 4 --ranks 1,2 --save-profile measured.json");
  CAPTURE(run.output);
  CHECK(run.code == 0);
  CHECK(contains(run.output, "MLP 8x8x2, 4 samples per device, measured on this machine"));
  CHECK(explain("scaling --profile measured.json --link NVLink --ranks 4").code == 0);
}

TEST_CASE("scaling: invalid arguments and files are errors that say what is expected") {
  CHECK(contains(explain("scaling --model 8xx2").output, "--model is \"8xx2\", expected layer sizes"));
  CHECK(contains(explain("scaling --model 8").output, "expected two sizes or more"));
  CHECK(contains(explain("scaling --model 8x2 --ranks 0..4").output, "--ranks is \"0..4\", expected 1..1024"));
  CHECK(contains(explain("scaling --model 8x2 --ranks 4,2").output, "increasing"));
  CHECK(contains(explain("scaling --link 5GbE").output, "there is no link \"5GbE\""));
  std::ofstream("bad.json") << R"({"forward_us": -1})";
  CHECK(contains(explain("scaling --profile bad.json").output, "bad.json: \"forward_us\" is -1"));
  std::ofstream("bad.json") << "[1, 2";
  CHECK(contains(explain("scaling --profile bad.json").output, "bad.json: \"forward_us\" is missing"));
  std::ofstream("bad.json") << std::string(200'000, '[');
  CHECK(contains(explain("scaling --profile bad.json").output, "bad.json: \"forward_us\" is missing"));
  std::ofstream("bad.json") << std::string(300'000, ' ');
  CHECK(contains(explain("scaling --profile bad.json").output, "300000 bytes; at most 262144 are read"));
  std::ofstream("bad.json") << R"({"forward_us": 1e308})";
  CHECK(contains(explain("scaling --profile bad.json").output, "is 1e+308, expected a number from 0 to 1e+15"));
}

TEST_CASE("scaling: options for a measurement are refused with a profile") {
  for (const std::string option : {"--model 8x2", "--batch 4", "--bucket-mb 1", "--save-profile again.json"}) {
    const Finished run = explain("scaling --profile profile.json " + option);
    CAPTURE(run.output);
    CHECK(run.code == 2);
    CHECK(run.output.starts_with("lockstep-explain: " + option.substr(0, option.find(' ')) +
                                 ": is for a measurement, and --profile"));
  }
  CHECK_FALSE(std::filesystem::exists("again.json"));
}

TEST_CASE("scaling: a step that takes no time, or almost none, still has a page of curves") {
  std::ofstream("free.json") << R"({"latency_us": 0, "gigabytes_per_second": 1e9})";
  for (const char* forward : {"0", "5e-318"}) {
    std::ofstream("nothing.json") << R"({"optimizer_us": 0, "input_bytes": 0, "output_bytes": 0,
      "buckets": [{"bytes": 0, "backward_us": 0}], "forward_us": )"
                                  << forward << "}";
    CHECK(explain("scaling --profile nothing.json --link ./free.json --ranks 1,4 --fixed-batch --html no.html").code ==
          0);
    const std::string page = content_of_file("no.html");
    CHECK(page.size() < 10'000);
    CHECK_FALSE(contains(page, "nan"));
  }
}

TEST_CASE("mesh: the coordinates of every rank and the groups of every axis, as text and as a page") {
  const Finished run = explain("mesh pp=2,dp=2,tp=2 --html mesh.html");
  CHECK(run.code == 0);
  expect_golden("mesh_2x2x2", run.output);
  const std::string page = content_of_file("mesh.html");
  CHECK(contains(page, "<h2>dp: 4 groups of 2</h2>"));
  for (const auto& wrong_axes :
       std::vector<std::pair<std::string, std::string>>{{"pp=2,dp", "axis dp has no size"},
                                                        {"pp=2,pp=2", "axis pp is named twice"},
                                                        {"pp=0", "the size of pp is \"0\""},
                                                        {"=2", "an axis has no name"},
                                                        {"pp=64,dp=64", "more than 512 ranks"}}) {
    const std::string &text = wrong_axes.first, &why = wrong_axes.second;
    CAPTURE(text);
    const Finished wrong = explain("mesh " + text);
    CHECK(wrong.code == 1);
    CHECK(wrong.output ==
          "lockstep-explain: mesh \"" + text + "\": " + why + "; expected axes and sizes, for example dp=2,cp=2\n");
  }
}

TEST_CASE("ring_attention: half blocks, steps, work, sums and bytes of small cases, exactly") {
  expect_golden("ring_attention_zigzag_2", explain("ring_attention --ranks 2 --zigzag").output);
  expect_golden("ring_attention_zigzag_4", explain("ring_attention --ranks 4 --zigzag").output);
  expect_golden("ring_attention_plain_2", explain("ring_attention --ranks 2 --plain").output);
  expect_golden("ring_attention_no_causal_2", explain("ring_attention --ranks 2 --no-causal").output);
  CHECK(explain("ring_attention --ranks 2").output == explain("ring_attention --ranks 2 --zigzag").output);
}

TEST_CASE("ring_attention: work, time and the order of sums are those of closed forms") {
  const auto row = [](const std::string& name, const std::vector<int>& work) {
    std::string text = name + std::string(7 - name.size(), ' ');
    int total = 0;
    for (const int each : work) text += fmt::format("{:>8}", each), total += each;
    return "\n" + text + fmt::format("{:>8}\n", total);
  };
  const auto sums = [](int rank, const std::vector<int>& results, const std::vector<int>& gradients) {
    return fmt::format("\n{:>4}  {:<42}{}\n", rank, fmt::format("{}", fmt::join(results, " ")),
                       fmt::join(gradients, " "));
  };
  for (int c = 2; c <= 16; ++c) {
    const std::string ranks = "ring_attention --ranks " + std::to_string(c);
    const std::string zigzag = explain(ranks).output, plain = explain(ranks + " --plain").output,
                      whole = explain(ranks + " --plain --no-causal").output;
    CAPTURE(zigzag);
    CAPTURE(plain);
    const auto all = static_cast<std::size_t>(c);
    for (int rank = 0; rank < c; ++rank) {
      const std::string name = fmt::format("{:>4}", rank);
      std::vector<int> up_to_own(all, 0);  // of the plain ring: its own sequence block, then all earlier ones
      std::fill_n(up_to_own.begin(), rank + 1, 4);
      up_to_own[0] = 2;
      std::vector<int> before, after;  // rank, rank - 1, ...; rank, rank + 1, ...: round the ring
      for (int i = 0; i < c; ++i) before.push_back((rank + c - i) % c), after.push_back((rank + i) % c);
      CHECK(contains(zigzag, sums(rank, before, after)));
      CHECK(contains(whole, sums(rank, before, after)));
      before.resize(static_cast<std::size_t>(rank) + 1), after.resize(static_cast<std::size_t>(c - rank));
      CHECK(contains(plain, sums(rank, before, after)));
      CHECK(contains(zigzag, row(name, std::vector<int>(all, 2))));
      CHECK(contains(plain, row(name, up_to_own)));
      CHECK(contains(whole, row(name, std::vector<int>(all, 4))));
    }
    CHECK(contains(zigzag, row("slowest", std::vector<int>(all, 2))));
    for (const std::string& text : {zigzag, plain}) {
      CHECK(contains(text, fmt::format("\nzigzag      {:>4}  100 %\n", 2 * c)));
      CHECK(contains(text, fmt::format("\nplain ring  {:>4}  {:>3.0f} %\n", 4 * c - 2, 100.0 * c / (2 * c - 1))));
    }
    CHECK(contains(whole, fmt::format("\nplain ring  {:>4}  100 %\n", 4 * c)));
    CHECK(contains(zigzag, fmt::format("2 C B     = {} x B;", 2 * c)));
    if (c > 8) continue;
    std::istringstream lines(zigzag + plain + whole);
    for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 100, line);
  }
}

TEST_CASE("ring_attention: the page has a square for each pair of half blocks that is computed") {
  const std::pair<std::string, int> all[] = {{"--zigzag", 8 * 9 / 2}, {"--plain", 8 * 9 / 2}, {"--no-causal", 8 * 8}};
  for (const auto& each : all) {
    const Finished run = explain("ring_attention --html ring.html " + each.first);
    CHECK(run.code == 0);
    CHECK(run.output.ends_with("page: ring.html\n"));
    const std::string page = content_of_file("ring.html");
    const auto count = [&](const std::string& text) {
      int found = 0;
      for (std::size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
      return found;
    };
    CHECK(count("of queries, half block") == each.second);
    CHECK(count("<figure>") == 3);
    CHECK(contains(page, "half block 7 of queries, half block 0 of keys: rank "));
    CHECK(contains(page, "default-src 'none'"));
    CHECK_FALSE(contains(page, "http://"));
    CHECK(page.size() < 60'000);
  }
}

TEST_CASE("ring_attention: wrong options are errors that name the option and the fix") {
  const std::pair<std::string, std::string> all[] = {
      {"--ranks 0", "--ranks: \"0\" is not a number from 2 to 16"},
      {"--ranks 17", "--ranks: \"17\" is not a number from 2 to 16"},
      {"--zigzags", "there is no option --zigzags; did you mean --zigzag?"},
      {"--zigzag --plain", "--plain: is another kind of ring than --zigzag\nLeave one of the two out"}};
  for (const auto& each : all) {
    const Finished wrong = explain("ring_attention " + each.first);
    CHECK(wrong.code == 2);
    CHECK(wrong.output == "lockstep-explain: " + each.second + "\nFor help: lockstep-explain --help\n");
  }
}

TEST_CASE("tensor: slices, messages and sums of small cases, exactly") {
  expect_golden("tensor_4_2", explain("tensor --slices 4 --ranks 2").output);
  expect_golden("tensor_3_3", explain("tensor --slices 3 --ranks 3 --heads 6 --width 48 --sequences 2").output);
  CHECK(explain("tensor").output == explain("tensor --slices 4 --ranks 2").output);
}

TEST_CASE("tensor: bytes are those of closed forms, and sums depend on the number of slices alone") {
  const auto sums_of = [](const std::string& text) { return text.substr(text.find("\nslices  sum")); };
  for (const int slices : {1, 2, 4, 8, 16}) {
    for (int ranks = 1; ranks <= slices; ranks *= 2) {
      const Finished run = explain(fmt::format(
          "tensor --slices {} --ranks {} --heads 16 --width 32 --sequences 3 --positions 5", slices, ranks));
      CAPTURE(run.output);
      CHECK(run.code == 0);
      const int numbers = 3 * 5 * 32;
      CHECK(contains(run.output, fmt::format("8 (t-1)/t b s h = {} numbers: {} bytes in f32",
                                             8 * (ranks - 1) * numbers / ranks, 32 * (ranks - 1) * numbers / ranks)));
      CHECK(contains(run.output, fmt::format("A rank has {} of the 12288 numbers", 12288 / ranks)));
      for (int rank = 0; rank < ranks; ++rank)
        CHECK(contains(run.output, fmt::format("  {}-{} ", rank * 32 / ranks, (rank + 1) * 32 / ranks - 1)));
      if (slices < 16) CHECK(sums_of(run.output) == sums_of(explain("tensor").output));
      std::istringstream lines(run.output);
      for (std::string line; slices <= 8 && std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 100, line);
    }
  }
}

TEST_CASE("tensor: the page has a rectangle for each slice of a matrix, and a node for each sum") {
  const Finished run = explain("tensor --slices 8 --ranks 4 --html tensor.html");
  CHECK(run.code == 0);
  CHECK(run.output.ends_with("page: tensor.html\n"));
  const std::string page = content_of_file("tensor.html");
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (std::size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
    return found;
  };
  CHECK(count(", slice ") == 3 * 8 + 8 + 8 + 8);
  CHECK(count("<circle") == 8 + 7);
  CHECK(count("by the all-reduce</title>") == 3);
  CHECK(count(">all-reduce</text>") == 4);
  CHECK(contains(page, "<title>up, slice 3: columns 96 to 127, on rank 1</title>"));
  CHECK(contains(page, "default-src 'none'"));
  CHECK_FALSE(contains(page, "http://"));
  CHECK(page.size() < 60'000);
}

TEST_CASE("tensor: wrong options are errors that name the option and the fix") {
  const std::pair<std::string, std::string> all[] = {
      {"--slices 17", "--slices: \"17\" is not a number from 1 to 16\nFor help: lockstep-explain --help\n"},
      {"--slices 8 --ranks 3", "tensor: 8 slices cannot be distributed evenly to 3 ranks; use --ranks 1, 2, 4 or 8\n"},
      {"--slices 16", "tensor: 8 heads cannot be cut into 16 slices of whole heads; use --slices 1, 2, 4 or 8\n"},
      {"--heads 7", "tensor: 7 heads do not divide a width of 64; use --width 70\n"}};
  for (const auto& each : all) {
    const Finished wrong = explain("tensor " + each.first);
    CHECK(wrong.code != 0);
    CHECK(wrong.output == "lockstep-explain: " + each.second);
  }
}
