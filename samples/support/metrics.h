// metrics.jsonl: one JSON object per line, one line per epoch, for plotting.
#pragma once

#include <cstdint>
#include <string>

namespace samples {

struct EpochMetrics {
  std::int64_t epoch = 0;  // counted from 1
  std::int64_t step = 0;   // optimizer steps so far
  double lr = 0;
  double step_loss = 0;  // mean loss of the epoch's steps, before each update
  double test_loss = 0;
  double test_accuracy = 0;
  double seconds = 0;
};

class MetricsFile {
 public:
  // Keeps the lines of the first `keep_epochs` epochs of an earlier run.
  MetricsFile(std::string path, std::int64_t keep_epochs);
  // Appends and flushes a line. Throws lockstep::IoError if the disk is full.
  void write(const EpochMetrics& metrics) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace samples
