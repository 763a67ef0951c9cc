#include "tools/report/messages.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/parallel/schedule/schedule_internal.h"

namespace report {
namespace {

namespace par = lockstep::parallel;
using lockstep::TraceEvent;
using lockstep::TraceKind;

bool is_received(const TraceEvent& event) {
  const auto message = stage_message(event.name);
  return message ? is_receive(*message) : event.name.starts_with("recv");
}

}  // namespace

bool is_message(const TraceEvent& event) {
  return (event.kind == TraceKind::kWait || event.kind == TraceKind::kCollective) && event.labels.to >= 0;
}

std::optional<par::ScheduleAction> stage_message(std::string_view name) {
  name.remove_prefix(name.find(' ') + 1);  // without a space: by 0
  if (name.find("SEND_") == std::string_view::npos && name.find("RECV_") == std::string_view::npos) return {};
  try {
    const par::ScheduleRows rows = par::parse_schedule(std::as_bytes(std::span(name)), "a message of the trace");
    if (rows.size() == 1 && rows[0].size() == 1) return rows[0][0];
  } catch (const lockstep::IoError&) {  // a name of the program's own
  }
  return {};
}

bool is_receive(const par::ScheduleAction& message) { return !par::StageChannel::of(message).is_send; }

MessageLaunches::Key MessageLaunches::key_of(const TraceEvent& event, int rank) {
  Key key = {rank, event.labels.to, event.labels.group, 0, event.labels.id};
  if (is_received(event)) std::swap(key.from, key.to);
  if (const auto message = stage_message(event.name)) {
    key.group = 0;  // copies to other stages have none
    key.channel = 1 + par::StageChannel::of(*message).index();
    key.number = message->micro_batch;
  }
  return key;
}

void MessageLaunches::add(const TraceEvent& event, int rank) {
  std::optional<std::int64_t>& begin = begins_[key_of(event, rank)][is_received(event) ? 1 : 0];
  begin = std::min(begin.value_or(event.begin), event.begin);
}

std::optional<std::int64_t> MessageLaunches::by_other_rank(const TraceEvent& wait, int rank) const {
  const auto found = begins_.find(key_of(wait, rank));
  return found == begins_.end() ? std::nullopt : found->second[is_received(wait) ? 0 : 1];
}

}  // namespace report
