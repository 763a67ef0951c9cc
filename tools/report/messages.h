// Messages between two ranks in a trace: of a pipeline's stages, of ring attention, or of the program's own.
#pragma once

#include <lockstep/lockstep.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "lockstep/parallel/schedule/schedule.h"

namespace report {

// Whether the event is a message between two ranks (send or recv), or a wait for one. Its number is not that of a
// collective.
bool is_message(const lockstep::TraceEvent& event);
// The message between two stages of a pipeline that an event names, as "recv 1RECV_F0"; nothing for other names.
std::optional<lockstep::parallel::ScheduleAction> stage_message(std::string_view name);
bool is_receive(const lockstep::parallel::ScheduleAction& message);

// When the sender and the receiver launched each message of a step.
class MessageLaunches {
 public:
  void add(const lockstep::TraceEvent& event, int rank);
  // When the other rank launched the message for which `rank` waits.
  std::optional<std::int64_t> by_other_rank(const lockstep::TraceEvent& wait, int rank) const;

 private:
  // Between stages a message has its place in the schedule, else its number.
  struct Key {
    int from = 0, to = 0, group = 0;
    std::size_t channel = 0;  // 0, or 1 more than that of the stages
    std::int64_t number = 0;
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(const lockstep::TraceEvent& event, int rank);

  std::map<Key, std::array<std::optional<std::int64_t>, 2>> begins_;  // of the sender, of the receiver
};

}  // namespace report
