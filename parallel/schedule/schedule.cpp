#include "lockstep/parallel/schedule/schedule.h"

#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/parallel/schedule/schedule_internal.h"

namespace lockstep::parallel {

ScheduleTable ScheduleTable::make(Schedule schedule, int ranks, int micro_batches, int chunks) {
  return ScheduleTable(schedule_rows(schedule, ranks, micro_batches, chunks));
}

ScheduleTable::ScheduleTable(ScheduleRows rows) : rows_(std::move(rows)) {
  const ScheduleSize size = check_schedule(rows_);
  stages_ = size.stages;
  micro_batches_ = size.micro_batches;
}

ScheduleTable ScheduleTable::load(const std::string& path) {
  ScheduleRows rows = parse_schedule(read_file(path, kMaxScheduleBytes), path);
  try {
    return ScheduleTable(std::move(rows));
  } catch (Error& error) {
    error.add_context(path);
    throw;
  }
}

void ScheduleTable::save(const std::string& path) const {
  AtomicFile file(path);
  file.write(to_string());
  file.commit();
}

const std::vector<ScheduleAction>& ScheduleTable::actions(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < ranks(), "ScheduleTable: actions of rank {}, expected 0 to {}", rank, ranks() - 1);
  return rows_[static_cast<std::size_t>(rank)];
}

}  // namespace lockstep::parallel
