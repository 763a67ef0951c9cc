// lockstep-explain schedule: a pipeline schedule on a time line: what each rank computes, holds and waits for.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/schedule/schedule.h"

struct ScheduleQuestion {
  std::string schedule;  // gpipe, 1f1b, interleaved, zb1p, or a CSV file
  int ranks = 4, micro_batches = 8, chunks = 1;
  std::string costs = "1,1,1";  // F, I, W
};

struct SeenSchedule {
  ScheduleQuestion question;
  lockstep::parallel::ScheduleTable table;
  lockstep::parallel::ScheduleCosts costs;
  lockstep::parallel::Timeline timeline;

  // Seconds that each rank computes.
  double work() const;
};

bool is_schedule_file(const ScheduleQuestion& question);
// Throws InvalidArgument for an unknown schedule, numbers that it cannot have, costs that are no three numbers, or an
// invalid table; IoError for a file that cannot be read.
SeenSchedule schedule_of(const ScheduleQuestion& question);
std::string schedule_title(const SeenSchedule& seen);
std::string schedule_text(const SeenSchedule& seen);
std::string schedule_html(const SeenSchedule& seen);
