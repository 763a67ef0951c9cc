// Tables with an injected mistake: the error names rank, row and action, and shows that part of the table.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace par = lockstep::parallel;

namespace {

using par::ActionKind;
using par::Schedule;
using par::ScheduleAction;
using par::ScheduleRows;

ScheduleRows rows(Schedule schedule, int ranks, int micro_batches, int chunks = 1) {
  return par::schedule_rows(schedule, ranks, micro_batches, chunks);
}
ScheduleRows with_messages(Schedule schedule, int ranks, int micro_batches, int chunks = 1) {
  return par::with_messages(rows(schedule, ranks, micro_batches, chunks), {ranks, ranks * chunks, micro_batches});
}

// The place of the action with this text.
std::vector<ScheduleAction>::iterator at(std::vector<ScheduleAction>& row, const std::string& text) {
  const auto found = std::ranges::find(row, text, &ScheduleAction::to_string);
  REQUIRE_MESSAGE(found != row.end(), text);
  return found;
}

std::string error_of(const ScheduleRows& rows) {
  try {
    (void)par::ScheduleTable(rows);
  } catch (const lockstep::InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}
std::string first_line(const ScheduleRows& rows) {
  const std::string text = error_of(rows);
  CHECK(text.find(" <-- here") != std::string::npos);
  return text.substr(0, text.find('\n'));
}

// Moves the action `text` of a row directly before the action `before`.
void move_before(std::vector<ScheduleAction>& row, const std::string& text, const std::string& before) {
  const ScheduleAction action = *at(row, text);
  row.erase(at(row, text));
  row.insert(at(row, before), action);
}

}  // namespace

TEST_CASE("generated tables are valid, with and without messages, and with messages of each others' order") {
  int checked = 0;
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZeroBubble}) {
    const bool is_interleaved = schedule == Schedule::kInterleaved;
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int m = 1; m <= 16; ++m) {
        for (int chunks = 1; chunks <= (is_interleaved ? 4 : 1); ++chunks) {
          if (is_interleaved && m % ranks != 0) continue;
          const ScheduleRows plain = rows(schedule, ranks, m, chunks), all = with_messages(schedule, ranks, m, chunks);
          CHECK_NOTHROW(par::ScheduleTable{plain});
          CHECK_NOTHROW(par::ScheduleTable{all});
          std::size_t before = 0, after = 0;
          for (const auto& row : plain) before += row.size();
          for (const auto& row : all) after += row.size();
          const int stages = ranks * chunks, messages = ranks > 1 ? 4 * m * (stages - 1) : 0;
          CHECK(after == before + static_cast<std::size_t>(messages + stages));
          ++checked;
        }
      }
    }
  }
  CHECK(checked == 3 * 8 * 16 + 4 * 42);
}

TEST_CASE("messages are next to the actions that need and make them") {
  const ScheduleRows all = with_messages(Schedule::kZeroBubble, 2, 2);
  std::string text;
  for (const ScheduleAction& action : all[1]) text += action.to_string() + " ";
  CHECK(text == "1RECV_F0 1F0 1I0 1SEND_B0 1RECV_F1 1F1 1I1 1SEND_B1 1W0 1W1 1REDUCE_GRAD ");
}

TEST_CASE("missing actions are named") {
  ScheduleRows table = rows(Schedule::k1F1B, 2, 4);
  table[1].erase(at(table[1], "1F2"));
  CHECK(error_of(table) ==
        "ScheduleTable: rank 1, row 4, 1B2: 1F2 is missing; a stage needs F, and B or both I and W, of each of 4 "
        "micro-batches\n"
        "row  rank 0  rank 1\n"
        "0    0F0     1F0\n"
        "1    0F1     1B0\n"
        "2    0B0     1F1\n"
        "3    0F2     1B1\n"
        "4    0B1     1B2 <-- here\n"
        "5    0F3     1F3\n"
        "6    0B2     1B3\n"
        "7    0B3");
  table = rows(Schedule::k1F1B, 2, 4);
  table[0].pop_back();
  CHECK(first_line(table).starts_with("ScheduleTable: rank 0, row 5, 0F3: 0B3 is missing; "));
  table = rows(Schedule::kZeroBubble, 2, 4);
  table[1].erase(at(table[1], "1W1"));
  CHECK(first_line(table).find("1W1 is missing; ") != std::string::npos);
  table[1].clear();
  CHECK(first_line(table).starts_with("ScheduleTable: rank 1, row 0: 1F0 is missing; "));
  CHECK(error_of({}) == "ScheduleTable: 0 ranks, expected 1 to 1024");
  CHECK(error_of({{}, {}}) == "ScheduleTable: there are no actions");
}

TEST_CASE("duplicate actions are named with both rows") {
  ScheduleRows table = rows(Schedule::kGPipe, 3, 4);
  table[2].push_back({ActionKind::kForward, 2, 1});
  CHECK(first_line(table) == "ScheduleTable: rank 2, row 8, 2F1: is a duplicate of row 1; remove one of them");
  table = with_messages(Schedule::kGPipe, 3, 4);
  table[2].push_back({ActionKind::kReduce, 2, 3});
  CHECK(first_line(table).find("2REDUCE_GRAD: is a duplicate of row ") != std::string::npos);
}

TEST_CASE("backward before forward, and W before I, are named") {
  ScheduleRows table = rows(Schedule::k1F1B, 2, 4);
  move_before(table[1], "1B2", "1F2");
  CHECK(first_line(table) ==
        "ScheduleTable: rank 1, row 4, 1B2: comes before 1F2 of row 5; move it behind, since backward needs what "
        "forward saves");
  table = rows(Schedule::kZeroBubble, 2, 4);
  move_before(table[0], "0I3", "0F3");
  CHECK(first_line(table).find("0I3: comes before 0F3 of row ") != std::string::npos);
  table = rows(Schedule::kZeroBubble, 2, 4);
  move_before(table[0], "0W2", "0I2");
  CHECK(first_line(table).find("0W2: comes before 0I2 of row ") != std::string::npos);
}

TEST_CASE("B with I or W of the same micro-batch is named, and other micro-batches may have them") {
  ScheduleRows table = rows(Schedule::k1F1B, 2, 4);
  table[0].push_back({ActionKind::kBackwardWeight, 0, 3});
  CHECK(first_line(table) == "ScheduleTable: rank 0, row 8, 0W3: is a part of 0B3 in row 7; use B, or I and W");
  *at(table[0], "0B3") = {ActionKind::kBackwardInput, 0, 3};
  CHECK(error_of(table) == "no error");
}

TEST_CASE("gradients that are not added in ascending order are named") {
  ScheduleRows table = rows(Schedule::kGPipe, 2, 4);
  for (auto& row : table) std::reverse(row.begin() + 4, row.end());
  CHECK(first_line(table) ==
        "ScheduleTable: rank 0, row 6, 0B1: comes before 0B0 of row 7; move it behind, since gradients of parameters "
        "are added in ascending order of micro-batches");
  table = rows(Schedule::kZeroBubble, 2, 4);
  std::swap(*at(table[1], "1W2"), *at(table[1], "1W3"));
  CHECK(first_line(table).find("1W3: comes before 1W2 of row ") != std::string::npos);
}

TEST_CASE("stages on the wrong rank are named") {
  ScheduleRows table = rows(Schedule::k1F1B, 2, 4);
  at(table[1], "1F2")->stage = 2;
  CHECK(first_line(table) ==
        "ScheduleTable: rank 1, row 4, 2F2: stage 2 belongs to rank 0 (stage % ranks); move the action to the line of "
        "that rank");
  std::swap(table[0], table[1]);
  CHECK(first_line(table) ==
        "ScheduleTable: rank 0, row 0, 1F0: stage 1 belongs to rank 1 (stage % ranks); move the action to the line of "
        "that rank");
  at(table[0], "1F0")->stage = -1;
  CHECK(first_line(table).find("expected stages below 131072 and micro-batches below 1024") != std::string::npos);
}

TEST_CASE("ranks that wait for each other are named, with the actions on the way") {
  ScheduleRows table = rows(Schedule::k1F1B, 2, 4);  // rank 0: 0F0 0F1 0B0 0F2 0B1 ...
  std::swap(*at(table[0], "0F1"), *at(table[0], "0B0"));
  CHECK(error_of(table) == "no error");
  move_before(table[1], "1F1", "1B0");
  CHECK(first_line(table) ==
        "ScheduleTable: rank 0, row 1, 0B0: needs 1B0 of rank 1, row 2, which comes after 1F1 of row 1, which needs "
        "0F1 of rank 0, row 2, which comes after 0B0 of row 1: no rank can go on");
  table = rows(Schedule::kInterleaved, 2, 2, 2);
  move_before(table[1], "3F0", "1F0");
  CHECK(first_line(table).ends_with(": no rank can go on"));
  // In a long pipeline the way around is not told whole.
  table = rows(Schedule::k1F1B, 20, 2);
  std::swap(*at(table[19], "19B0"), *at(table[19], "19F1"));
  for (std::size_t rank = 0; rank < 19; ++rank) {
    table[rank].erase(at(table[rank], fmt::format("{}F1", rank)));
    table[rank].insert(at(table[rank], fmt::format("{}B0", rank)) + 1,
                       {ActionKind::kForward, static_cast<int>(rank), 1});
  }
  CHECK(first_line(table).ends_with(", ...: no rank can go on"));
  CHECK(error_of(table).size() < 2000);
}

TEST_CASE("ranks that wait until the other reads a message are named") {
  // All micro-batches pass stages 0 and 1, then 2 and 3.
  const auto breadth_first = [](int micro_batches) {
    ScheduleRows table = {{}, {}};
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
      for (int i = 0; i < 4; ++i) {
        const int stage = kind == ActionKind::kForward ? i : 3 - i;
        for (int m = 0; m < micro_batches; ++m) table[static_cast<std::size_t>(stage % 2)].push_back({kind, stage, m});
      }
    }
    return table;
  };
  CHECK(error_of(breadth_first(5)) == "no error");
  CHECK(first_line(breadth_first(6)) ==
        "ScheduleTable: rank 0, row 5, 0F5: sends a message, and two are not yet read by 1F3 of rank 1, row 3, which "
        "comes after 1F2 of row 2, which sends a message, and two are not yet read by 2F0 of rank 0, row 6, which "
        "comes after 0F5 of row 5: no rank can go on");
}

TEST_CASE("messages in another order than they are needed in are named") {
  ScheduleRows table = rows(Schedule::kGPipe, 3, 4);
  std::swap(*at(table[1], "1F1"), *at(table[1], "1F2"));
  CHECK(first_line(table) ==
        "ScheduleTable: rank 1, row 1, 1F2: needs micro-batch 2 of stage 0, which sends micro-batch 1 first; use one "
        "order");
  table = with_messages(Schedule::kGPipe, 3, 4);
  const ScheduleAction first = *at(table[0], "0SEND_F1");
  table[0].erase(at(table[0], "0SEND_F1"));
  table[0].insert(at(table[0], "0SEND_F2") + 1, first);
  CHECK(first_line(table).find("1RECV_F1: needs micro-batch 1 of stage 0, which sends micro-batch 2 first") !=
        std::string::npos);
}

TEST_CASE("messages and reductions that are missing, late or useless are named") {
  ScheduleRows table = with_messages(Schedule::k1F1B, 3, 4);
  table[1].erase(at(table[1], "1RECV_F3"));
  CHECK(first_line(table).find("1F3: needs 1RECV_F3 before it; add that, or remove all messages") != std::string::npos);
  table = with_messages(Schedule::k1F1B, 3, 4);
  table[1].erase(at(table[1], "1SEND_B2"));
  CHECK(first_line(table).find("1B2: needs 1SEND_B2 after it") != std::string::npos);
  table = with_messages(Schedule::k1F1B, 3, 4);
  move_before(table[2], "2F1", "2RECV_F1");
  CHECK(first_line(table).find("2RECV_F1: must come before 2F1, row ") != std::string::npos);
  table = with_messages(Schedule::k1F1B, 3, 4);
  table[2].erase(at(table[2], "2REDUCE_GRAD"));
  CHECK(first_line(table).find("2B3: needs 2REDUCE_GRAD after it") != std::string::npos);
  table = with_messages(Schedule::k1F1B, 3, 4);
  move_before(table[2], "2REDUCE_GRAD", "2B3");
  CHECK(first_line(table).find("2REDUCE_GRAD: must come after 2B3, row ") != std::string::npos);
  table = with_messages(Schedule::k1F1B, 3, 4);
  table[0].insert(table[0].begin(), {ActionKind::kReceiveForward, 0, 0});
  CHECK(first_line(table).find("0RECV_F0: no other rank is at this end of the stage; remove the message") !=
        std::string::npos);
}

TEST_CASE("on one rank stages follow each other") {
  ScheduleRows table = rows(Schedule::kInterleaved, 1, 2, 2);
  CHECK(error_of(table) == "no error");
  move_before(table[0], "1F0", "0F0");
  CHECK(first_line(table).find(
            "1F0: comes before 0F0 of row 1; move it behind, since a stage needs the outputs of the one before") !=
        std::string::npos);
  table = rows(Schedule::kInterleaved, 1, 2, 2);
  std::swap(*at(table[0], "0B0"), *at(table[0], "1B0"));
  CHECK(first_line(table).find("0B0: comes before 1B0 of row ") != std::string::npos);
}
