// Tables as CSV: written, read again, and refused with line and column.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tests/support/files.h"

namespace par = lockstep::parallel;

namespace {

using par::Schedule;
using par::ScheduleTable;

par::ScheduleTable load(const std::string& text) {
  std::ofstream("table.csv", std::ios::binary) << text;
  return ScheduleTable::load("table.csv");
}

template <class Error>
std::string error_of(const std::string& text) {
  try {
    load(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a table as text has a line for each rank and a column for each time step") {
  CHECK(ScheduleTable::make(Schedule::k1F1B, 3, 4).to_string() ==
        "0F0,0F1,0F2,   ,   ,0B0,0F3,0B1,   ,0B2,   ,0B3\n"
        "   ,1F0,1F1,   ,1B0,1F2,1B1,1F3,1B2,   ,1B3\n"
        "   ,   ,2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  CHECK(ScheduleTable::make(Schedule::kZeroBubble, 2, 2).to_string() ==
        "0F0,0F1,   ,0I0,0W0,0I1,0W1\n"
        "   ,1F0,1I0,1F1,1I1,1W0,1W1\n");
}

TEST_CASE("every schedule is the same after it was saved and loaded") {
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZeroBubble}) {
    const int chunks = schedule == Schedule::kInterleaved ? 3 : 1;
    const ScheduleTable table = ScheduleTable::make(schedule, 4, 12, chunks);
    table.save("saved.csv");
    const ScheduleTable again = ScheduleTable::load("saved.csv");
    CHECK(again == table);
    CHECK(again.to_string() == table.to_string());
    CHECK(content_of_file("saved.csv") == table.to_string());

    par::ScheduleRows rows;
    for (int rank = 0; rank < table.ranks(); ++rank) rows.push_back(table.actions(rank));
    const ScheduleTable with_messages(par::with_messages(rows, {4, 4 * chunks, 12}));
    with_messages.save("messages.csv");
    CHECK(ScheduleTable::load("messages.csv") == with_messages);
    CHECK(par::simulate(with_messages, {}).seconds == par::simulate(table, {}).seconds);
  }
}

TEST_CASE("the largest tables can be saved and loaded") {
  constexpr int kLess = LOCKSTEP_SLOWDOWN > 1 ? 8 : 1;  // sanitizers take minutes for the largest ones
  const auto is_same = [](const ScheduleTable& table) {
    table.save("large.csv");
    return ScheduleTable::load("large.csv") == table;
  };
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::kZeroBubble})
    CHECK(is_same(ScheduleTable::make(schedule, 128, 1024 / kLess)));
  constexpr int kChunks = (1 << 15) / kLess;
  const ScheduleTable many_stages = ScheduleTable::make(Schedule::kInterleaved, 2, 2, kChunks);
  CHECK(is_same(many_stages));
  par::ScheduleRows rows;
  for (int rank = 0; rank < 2; ++rank) rows.push_back(many_stages.actions(rank));
  CHECK(is_same(ScheduleTable(par::with_messages(rows, {2, 2 * kChunks, 2}))));
}

TEST_CASE("a table in which ranks wait for most of the time is short text") {
  par::ScheduleRows rows(1024);  // one micro-batch at a time
  for (int rank = 0; rank < 1024; ++rank) {
    for (int m = 0; m < 8; ++m) {
      for (const auto kind : {par::ActionKind::kForward, par::ActionKind::kBackward})
        rows[static_cast<std::size_t>(rank)].push_back({kind, rank, m});
    }
  }
  const ScheduleTable table(rows);
  const std::string text = table.to_string();
  CHECK(text.size() < 200'000);
  CHECK(text.starts_with("0F0,0B0,0F1,0B1,"));
  CHECK(load(text) == table);
}

TEST_CASE("spaces, line ends of other systems, empty cells and lines at the end have no effect") {
  const ScheduleTable table = ScheduleTable::make(Schedule::kGPipe, 2, 2);
  CHECK(load("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n") == table);
  CHECK(load("0F0,,0F1 ,\t0B0,0B1\r\n , 1F0,1F1,1B0,1B1,,\r\n\r\n\n") == table);
  CHECK(load("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1") == table);
}

TEST_CASE("cells that are no actions are named with line and column") {
  const std::string expected =
      " is no action; expected stage, F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B and micro-batch, as 0F3, or "
      "0REDUCE_GRAD";
  const std::pair<std::string, std::string> all[] = {
      {"0X0", "line 2, column 3: \"0X0\""},
      {"F0", "line 2, column 3: \"F0\""},
      {"1F", "line 2, column 3: \"1F\""},
      {"1F0F", "line 2, column 3: \"1F0F\""},
      {"1f0", "line 2, column 3: \"1f0\""},
      {"-1F0", "line 2, column 3: \"-1F0\""},
      {"1F-1", "line 2, column 3: \"1F-1\""},
      {"1 F0", "line 2, column 3: \"1 F0\""},
      {"1F99999999999", "line 2, column 3: \"1F99999999999\""},
      {"99999999999F1", "line 2, column 3: \"99999999999F1\""},
      {"1REDUCE_GRAD1", "line 2, column 3: \"1REDUCE_GRAD1\""},
      {"1UNSHARD", "line 2, column 3: \"1UNSHARD\""},
      {"\"1F0\"", "line 2, column 3: \"\"1F0\"\""},
      {std::string("\0\x1b[31m", 6), "line 2, column 3: \"??[31m\""},
      {std::string(1000, '7'), "line 2, column 3: \"" + std::string(40, '7') + "\""}};
  for (const auto& each : all)
    CHECK(error_of<lockstep::IoError>("0F0,0B0\n,," + each.first + ",1B0\n") == "table.csv: " + each.second + expected);
}

TEST_CASE("files that are no tables are refused") {
  CHECK(error_of<lockstep::InvalidArgument>("") == "table.csv: ScheduleTable: 0 ranks, expected 1 to 1024");
  CHECK(error_of<lockstep::InvalidArgument>("0F0\n").starts_with(
      "table.csv: ScheduleTable: rank 0, row 0, 0F0: 0B0 is missing; "));
  CHECK(error_of<lockstep::InvalidArgument>("0F0,0B0\n\n2F0,2B0\n")
            .starts_with("table.csv: ScheduleTable: rank 1, row 0: 1F0 is missing; "));
  CHECK(error_of<lockstep::IoError>(std::string(1025, '\n') + "0F0") ==
        "table.csv: more than 1024 lines; a line is a rank");
  CHECK(error_of<lockstep::InvalidArgument>("0F1024,0B1024").find("micro-batches below 1024") != std::string::npos);
  CHECK(error_of<lockstep::InvalidArgument>("2147483647F0").find("expected stages below 131072") != std::string::npos);
  CHECK(error_of<lockstep::InvalidArgument>("131071F1023").find("expected at most 131072 forwards") !=
        std::string::npos);
  CHECK_THROWS_AS(ScheduleTable::load("nowhere.csv"), lockstep::IoError);
}
