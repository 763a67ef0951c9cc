// --trace and --report: the contents of the files, for all modes and for one, and whether their bytes follow the
// formulas.
#include "tests/samples/support.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace {

using Json = nlohmann::json;
constexpr const char* kProgram = "logistic_regression";
constexpr std::size_t kParameterBytes = 31 * 4;

std::string data_text(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open) + open.size(), end = page.find("</script>", begin);
  REQUIRE(page.find(open) != std::string::npos);
  REQUIRE(end != std::string::npos);
  return page.substr(begin, end - begin);
}

Json report_data(const std::string& path) { return Json::parse(data_text(read_file(path))); }

Json mode_of(const Json& data, const std::string& mode) {
  for (const Json& each : data.at("modes")) {
    if (each.at("mode") == mode) return each;
  }
  FAIL("the report has no mode ", mode);
  return {};
}

// The recorded bytes of one phase.
std::int64_t counted(const Json& mode, const std::string& phase, const char* when = "links") {
  std::int64_t bytes = 0;
  for (const Json& link : mode.at(when)) bytes += link.at("phase") == phase ? link.at("bytes").get<std::int64_t>() : 0;
  return bytes;
}

// The bytes of a step's events of one kind, with this name.
std::int64_t in_events(const Json& data, const Json& mode, const Json& step, const std::string& kind,
                       const std::string& name) {
  std::int64_t bytes = 0;
  for (const Json& lane : step.at("lanes")) {
    for (const Json& event : lane.at("events")) {
      if (data.at("kinds").at(event[0].get<std::size_t>()) != kind) continue;
      if (mode.at("names").at(event[1].get<std::size_t>()) == name) bytes += event.at(5).get<std::int64_t>();
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("compare --report: the recorded bytes and those of each step follow the formulas") {
  const std::string out = fresh("report");
  const Finished finished = run(kProgram, {"--mode", "compare", "--epochs", "2", "--out", out, "--report",
                                           "report.html", "--trace", "trace.json"});
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output, "trace       trace.json"));
  CHECK(contains(finished.output, "report      report.html"));
  CHECK(lines(finished.output).back().starts_with("test accuracy 0."));

  const std::string page = read_file("report.html"), text = data_text(page);
  CHECK(page.size() < 1'000'000);
  CHECK(page.size() - text.size() < 70'000);
  CHECK(contains(page, "default-src 'none'"));
  CHECK(!contains(page, "unsafe-inline"));
  for (const char* outside : {"http:", "https:", "src=", "@import", "url(\"", "fetch("}) {
    CAPTURE(outside);
    std::string rest = page;
    if (const std::size_t at = rest.find("'http://www.w3.org/2000/svg'"); at != std::string::npos) rest.erase(at, 28);
    CHECK(!contains(rest, outside));
  }

  const Json data = Json::parse(text);
  REQUIRE(data.at("modes").size() == 4);
  for (const Json& mode : data.at("modes")) {
    CAPTURE(mode.at("mode"));
    CHECK(mode.at("name") == mode.at("mode"));
    CHECK(mode.at("counted") == true);
    CHECK(mode.at("gradient_bytes") == kParameterBytes);
    CHECK(mode.at("step_count") == 30);
    REQUIRE(mode.at("steps").size() == 20);
    CHECK(mode.at("steps").back().at("number") == 30);
    CHECK(mode.at("losses").size() == 2);
    CHECK(contains(mode.at("verdict"), "compute "));
    const std::size_t lanes = mode.at("mode") == "dp" || mode.at("mode") == "ddp" ? 2 : 1;
    for (const Json& step : mode.at("steps")) {
      REQUIRE(step.at("lanes").size() == lanes);
      for (const Json& lane : step.at("lanes")) {
        CHECK(!lane.at("events").empty());
        std::int64_t shares = 0;
        for (const Json& share : lane.at("shares")) {
          CHECK(share >= 0);
          shares += share.get<std::int64_t>();
        }
        CHECK(shares > 0);
        CHECK(shares <= step.at("ns").get<std::int64_t>());
      }
    }
  }

  // The waits of dp's second device, and the memory of each mode.
  std::set<std::string> questions;
  for (const Json& answer : data.at("answers")) questions.insert(answer.at(0).get<std::string>());
  CHECK(questions.contains("Who waits in dp?"));
  CHECK(questions.contains("What overlaps in ddp?"));
  CHECK(questions.contains("What memory do the strategies need?"));
  for (const Json& mode : data.at("modes")) CHECK(mode.at("memory").at(0) == kParameterBytes);

  const auto hash = [](const std::string& mode) {
    return Json::parse(read_file("report/" + mode + "/result.json")).at("parameter_hash").get<std::string>();
  };
  for (const char* mode : {"single", "accumulate", "dp", "ddp"}) CHECK(mode_of(data, mode).at("hash") == hash(mode));
  CHECK(mode_of(data, "dp").at("hash") == mode_of(data, "ddp").at("hash"));

  // 456 rows of 30 columns per epoch, half of them on the second device; f32.
  const Json dp = mode_of(data, "dp");
  CHECK(counted(dp, "inputs") == 2 * 228 * 30 * 4);
  CHECK(counted(dp, "parameters") == 30 * kParameterBytes);
  CHECK(counted(dp, "outputs") == 2 * 228 * 4);
  CHECK(counted(dp, "loss gradient") == 2 * 228 * 4);
  CHECK(counted(dp, "gradients") == 30 * kParameterBytes);
  const Json& step = dp.at("steps").at(0);  // number 11, of 32 rows
  CHECK(in_events(data, dp, step, "copy", "inputs") == 16 * 30 * 4);
  CHECK(in_events(data, dp, step, "copy", "parameters") == kParameterBytes);
  CHECK(in_events(data, dp, step, "copy", "outputs") == 16 * 4);
  CHECK(in_events(data, dp, step, "copy", "loss gradient") == 16 * 4);
  CHECK(in_events(data, dp, step, "copy", "gradients") == kParameterBytes);

  // 2 (n-1) times the bucket's bytes over all ranks; here n is 2.
  const Json ddp = mode_of(data, "ddp");
  const std::int64_t bucket = in_events(data, ddp, ddp.at("steps").at(0), "bucket launched", "fc.bias") / 2;
  CHECK(bucket >= static_cast<std::int64_t>(kParameterBytes));
  CHECK(counted(ddp, "gradients") == 30 * 2 * bucket);
  CHECK(counted(ddp, "parameters", "at_start") == kParameterBytes);
  CHECK(counted(ddp, "parameters") == 0);
  for (const Json& each : ddp.at("steps")) {
    CHECK(in_events(data, ddp, each, "collective", "all_reduce") == 2 * bucket);
    CHECK(each.at("arrivals").size() == 1);
    CHECK(each.at("overlap").at(0) == 0);  // one bucket per rank, which waits for the last gradient
    CHECK(each.at("overlap").at(1) == 2 * bucket);
    CHECK(each.at("overlap").at(2) == 0);
    CHECK(each.at("overlap").at(3) > 0);
  }
  REQUIRE(ddp.at("clocks").size() == 2);
  CHECK(ddp.at("clocks").at(0).at("error") == 0);
  CHECK(ddp.at("clocks").at(1).at("error") > 0);
  for (const char* alone : {"single", "accumulate"}) CHECK(mode_of(data, alone).at("links").empty());

  std::set<std::string> processes;
  const Json trace = Json::parse(read_file("trace.json"));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") processes.insert(event.at("args").at("name").get<std::string>());
  }
  CHECK(processes == std::set<std::string>{"single", "accumulate", "dp", "ddp rank 0", "ddp rank 1"});

  // The trace alone makes the same page.
  if (!std::filesystem::exists(LOCKSTEP_RUN)) return;
  const std::string explain = std::filesystem::path(LOCKSTEP_RUN).replace_filename("lockstep-explain");
  REQUIRE(run(explain, {"report", "trace.json", "--out", "again.html"}).code == 0);
  CHECK(report_data("again.html").at("modes") == data.at("modes"));
}

TEST_CASE("--report in a single mode, also if another program starts the program's ranks") {
  REQUIRE(
      run(kProgram, {"--mode", "ddp", "--epochs", "1", "--out", fresh("ddp_report"), "--report", "ddp.html"}).code ==
      0);
  CHECK(report_data("ddp.html").at("modes").size() == 1);
  CHECK(mode_of(report_data("ddp.html"), "ddp").at("steps").size() == 15);
  REQUIRE(run(kProgram, {"--mode", "dp", "--loss", "replica", "--epochs", "1", "--out", fresh("dp_report"), "--report",
                         "dp.html"})
              .code == 0);
  CHECK(mode_of(report_data("dp.html"), "dp").at("steps").at(0).at("lanes").size() == 2);
  if (!std::filesystem::exists(LOCKSTEP_RUN)) return;
  REQUIRE(run(LOCKSTEP_RUN, {"--nproc-per-node", "2", std::string(LOCKSTEP_SAMPLES_DIR) + "/" + kProgram, "--epochs",
                             "1", "--out", fresh("launched_report"), "--report", "launched.html"})
              .code == 0);
  CHECK(mode_of(report_data("launched.html"), "ddp").at("clocks").size() == 2);
}

TEST_CASE("--report of a sharded run: memory and bytes of each rank, planned and measured") {
  REQUIRE(run(kProgram, {"--strategy", "zero3", "--nproc", "2", "--epochs", "1", "--out", fresh("sharded_report"),
                         "--report", "sharded.html"})
              .code == 0);
  const Json data = report_data("sharded.html"), mode = mode_of(data, "zero3");
  const auto result = Json::parse(read_file("sharded_report/result.json"));
  REQUIRE(mode.at("planned").size() == 2);
  const std::int64_t steps = mode.at("step_count");
  for (int rank = 0; rank < 2; ++rank) {
    const Json& planned = mode.at("planned").at(static_cast<std::size_t>(rank));
    const auto sent = [&](const char* phase) {
      std::int64_t bytes = 0;
      for (const Json& link : mode.at("links"))
        bytes += link.at("from") == rank && link.at("phase") == phase ? link.at("bytes").get<std::int64_t>() : 0;
      return bytes;
    };
    CHECK(planned.at(1).get<std::int64_t>() * steps == sent("parameters"));
    CHECK(planned.at(2).get<std::int64_t>() * steps == sent("gradients"));
  }
  std::int64_t planned = 0;
  for (const Json& part : result.at("memory")) planned += part.get<std::int64_t>();
  CHECK(mode.at("planned").at(0).at(0) == planned);
  REQUIRE(mode.at("steps").size() == 15);
  for (const Json& step : mode.at("steps")) {
    for (const Json& lane : step.at("lanes")) {
      REQUIRE(lane.at("memory").size() >= 3);  // a gather, a reduce-scatter and the end of the step
      std::int64_t before = 0;
      for (const Json& sample : lane.at("memory")) {
        CHECK(sample.at(0) >= before);
        before = sample.at(0);
        CHECK(sample.at(1) >= planned);
        CHECK(sample.at(1) <= lane.at("peak"));
      }
    }
  }
}

TEST_CASE("text from outside is escaped in the report") {
  const std::string name = "a<script>alert(1).html";
  REQUIRE(run(kProgram, {"--epochs", "1", "--out", fresh("escaped"), "--report", name}).code == 0);
  const std::string page = read_file(name);
  CHECK(contains(report_data(name).at("command"), name));
  CHECK(!contains(page, "<script>alert"));
}

TEST_CASE("a run with and without a trace ends with the same bits") {
  const auto hash = [](const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--mode", "ddp", "--epochs", "2", "--quiet", "--out", fresh(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    REQUIRE(run(kProgram, arguments).code == 0);
    return Json::parse(read_file(out + "/result.json")).at("parameter_hash").get<std::string>();
  };
  CHECK(hash("untraced", {}) == hash("traced", {"--trace", "bits.json"}));
}
