// lockstep-explain schedule: a pipeline schedule on a time line: what each rank computes, holds and waits for.
#pragma once

#include <optional>
#include <string>

#include "lockstep/parallel/schedule/schedule.h"
#include "tools/report/pipeline.h"

struct ScheduleQuestion {
  std::string schedule;  // gpipe, 1f1b, interleaved, zb1p, or a CSV file
  int ranks = 4, micro_batches = 8, chunks = 1;
  std::string costs = "1,1,1";  // F, I, W
  // A trace of a pipeline, whose times take the place of `costs`. Its numbers take the place of `ranks` and
  // `micro_batches` where those were not given.
  std::string profile = {};
  bool has_ranks = false, has_micro_batches = false;
};

// Times are units of `costs`, or with a profile nanoseconds.
struct SeenSchedule {
  ScheduleQuestion question;
  lockstep::parallel::ScheduleTable table;
  lockstep::parallel::ScheduleCosts costs;         // without a profile
  std::optional<report::PipelineProfile> profile;  // else
  lockstep::parallel::Timeline timeline;

  double work(int rank) const;          // the time in which a rank computes
  double work() const;                  // mean over all ranks
  bool is_measured() const;             // the profile is of this table
  std::string time(double time) const;  // "12", or with a profile "12.34 ms"
};

bool is_schedule_file(const ScheduleQuestion& question);
// Throws InvalidArgument for an unknown schedule, numbers that it cannot have, costs that are no three numbers, or an
// invalid table; IoError for a file that cannot be read, or a trace without a step of a pipeline.
SeenSchedule schedule_of(const ScheduleQuestion& question);
std::string schedule_title(const SeenSchedule& seen);
std::string schedule_text(const SeenSchedule& seen);
std::string schedule_html(const SeenSchedule& seen);
