// lockstep-explain schedule: text, table and page.
#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/parallel/schedule/schedule.h"
#include "tests/support/explained.h"
#include "tests/support/testing.h"

namespace par = lockstep::parallel;
using explained::expect_golden;
using explained::explain;
using explained::Finished;

namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("schedule: order, times and activations of small cases, exactly") {
  expect_golden("schedule_1f1b_4_8", explain("schedule 1f1b --pp 4 --micro-batches 8").output);
  expect_golden("schedule_interleaved_2_4",
                explain("schedule interleaved --pp 2 --micro-batches 4 --chunks 2 --costs 1,1.3,0.9").output);
  expect_golden("schedule_zb1p_2_4", explain("schedule zb1p --pp 2 --micro-batches 4").output);
  CHECK(explain("schedule 1f1b").output == explain("schedule 1f1b --pp 4 --micro-batches 8 --costs 1,1,1").output);
  const Finished one = explain("schedule gpipe --pp 1 --micro-batches 1");
  CHECK(one.code == 0);
  CHECK(one.output.ends_with("There are no messages: one rank has all stages.\n"));
}

TEST_CASE("schedule: the simulated step is the closed form, wherever there is one") {
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved --chunks 4", "zb1p"}) {
    for (const int ranks : {1, 2, 4, 8}) {
      const Finished run =
          explain(fmt::format("schedule {} --pp {} --micro-batches 8 --costs 1,1.25,0.75", schedule, ranks));
      CAPTURE(run.output);
      CHECK(run.code == 0);
      const std::size_t at = run.output.find("\nstep ") + 6;
      const std::string step = run.output.substr(at, run.output.find('\n', at) - at);
      CHECK(contains(step, " = M (F + B) + (p - 1) (F + "));
      CHECK(std::stod(step) == std::stod(step.substr(step.rfind('=') + 1)));
    }
  }
  // Fewer micro-batches than ranks, or a W longer than F: zb1p has no closed form.
  CHECK(contains(explain("schedule zb1p --pp 2 --micro-batches 4 --costs 1,2,2").output, "\nstep        22\n"));
  CHECK(contains(explain("schedule zb1p --pp 4 --micro-batches 2").output, "\nstep        11\n"));
}

TEST_CASE("schedule: the comparison leaves out schedules that would be too large") {
  par::ScheduleTable::make(par::Schedule::k1F1B, 128, 1024).save("large.csv");
  const Finished run = explain("schedule large.csv");
  CHECK(run.code == 0);
  CHECK(contains(run.output, "\nzb1p  "));
  CHECK(!contains(run.output, "\ninterleaved  "));
}

TEST_CASE("schedule: a table is written as CSV, and a file takes the place of a schedule's name") {
  const Finished written = explain("schedule 1f1b --pp 2 --micro-batches 3 --csv mine.csv");
  CHECK(written.code == 0);
  CHECK(written.output.ends_with("table: mine.csv\n"));
  CHECK(content_of_file("mine.csv") == par::ScheduleTable::make(par::Schedule::k1F1B, 2, 3).to_string());
  const Finished again = explain("schedule ./mine.csv");
  CHECK(again.code == 0);
  CHECK(again.output.starts_with("schedule ./mine.csv: 2 ranks, 3 micro-batches, 1 chunk on each rank\n"));
  CHECK(contains(again.output, "\nstep        12\n"));  // without a formula
  CHECK(explain("schedule mine.csv").code == 0);

  std::ofstream("mine.csv") << "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n";
  const Finished wrong = explain("schedule mine.csv");
  CHECK(wrong.code == 1);
  CHECK(wrong.output.starts_with("lockstep-explain: mine.csv: ScheduleTable: rank 1, row 0, 1F1: needs micro-batch 1"));
  CHECK(contains(wrong.output, "\n0    0F0     1F1 <-- here\n"));
}

TEST_CASE("schedule: the page has a box for each action, a curve for each rank, and no other content") {
  const Finished run = explain("schedule zb1p --pp 4 --micro-batches 8 --html zb1p.html");
  CHECK(run.code == 0);
  CHECK(run.output.ends_with("page: zb1p.html\n"));
  const std::string page = content_of_file("zb1p.html");
  CHECK(count(page, "<title>") == 1 + 4 * 3 * 8 + 4);
  CHECK(count(page, ": forward of stage ") == 4 * 8);
  CHECK(count(page, ": gradients of inputs of stage ") == 4 * 8);
  CHECK(count(page, ": gradients of parameters of stage ") == 4 * 8);
  CHECK(count(page, " holds at most 4</title>") == 4);
  CHECK(contains(page, "<title>0F1: forward of stage 0, micro-batch 1, on rank 0: 1 to 2</title>"));
  CHECK(contains(page, "<b>11.1 %</b> of the step: the bubble"));
  CHECK(contains(page, "default-src 'none'"));
  CHECK_FALSE(contains(page, "http://"));
  CHECK(page.size() < 60'000);
  CHECK(explain("schedule interleaved --chunks 2 --html chunks.html").code == 0);
  CHECK(contains(content_of_file("chunks.html"), "Later chunks of a rank have stronger colours."));
  CHECK_FALSE(contains(page, "Later chunks"));
}

TEST_CASE("schedule: wrong options are errors that name the option and the fix") {
  std::ofstream("given.csv") << "0F0,0B0\n";
  const std::pair<std::string, std::string> usage[] = {
      {"", "schedule is required"},
      {"1f1b --pp 0", "--pp: \"0\" is not a number from 1 to 64"},
      {"1f1b --chunk 2", "there is no option --chunk; did you mean --chunks?"},
      {"given.csv --pp 2", "--pp: is not for a file, which has its own\nLeave one of the two out"},
      {"gpipe --pp 64 --micro-batches 256 --html large.html",
       "--html: draws up to 4096 forwards, got 16384; leave it out, or choose fewer"}};
  for (const auto& each : usage) {
    const Finished wrong = explain("schedule " + each.first);
    CHECK(wrong.code == 2);
    CHECK(wrong.output.ends_with("lockstep-explain: " + each.second + "\nFor help: lockstep-explain --help\n"));
  }
  const std::string costs =
      ", expected three numbers above 0, of forward, gradients of inputs, and gradients of "
      "parameters: --costs 1,1.3,0.9\n";
  const std::pair<std::string, std::string> values[] = {
      {"2f2b",
       "schedule: there is no schedule \"2f2b\"; expected gpipe, 1f1b, interleaved, zb1p, or a CSV file "
       "(./mine.csv)\n"},
      {"interleaved --micro-batches 6",
       "ScheduleTable: 6 micro-batches are no multiple of 4 ranks, which interleaved needs; use 4 or 8\n"},
      {"1f1b --chunks 2", "ScheduleTable: 1f1b has one chunk for each rank, got 2; use interleaved, or 1 chunk\n"},
      {"1f1b --costs 1,2", "schedule: costs \"1,2\"" + costs},
      {"1f1b --costs 1,2,3,4", "schedule: costs \"1,2,3,4\"" + costs},
      {"1f1b --costs 1,0,3", "schedule: costs \"1,0,3\"" + costs},
      {"1f1b --costs 1,nan,3", "schedule: costs \"1,nan,3\"" + costs},
      {"1f1b --costs a", "schedule: costs \"a\"" + costs}};
  for (const auto& each : values) {
    const Finished wrong = explain("schedule " + each.first);
    CHECK(wrong.code == 1);
    CHECK(wrong.output == "lockstep-explain: " + each.second);
  }
}
