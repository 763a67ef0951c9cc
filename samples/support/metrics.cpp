#include "support/metrics.h"

#include <fmt/format.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "tools/report/json.h"

namespace samples {
namespace {

void require(const std::ostream& stream, const std::string& path) {
  if (!stream) throw lockstep::IoError(fmt::format("{}: cannot be written", path));
}

}  // namespace

MetricsFile::MetricsFile(std::string path, std::int64_t keep_epochs) : path_(std::move(path)) {
  std::string kept, line;
  std::ifstream old(path_);
  for (std::int64_t i = 0; i < keep_epochs && std::getline(old, line); ++i) kept += line + '\n';
  std::ofstream file(path_, std::ios::trunc);
  file << kept << std::flush;
  require(file, path_);
}

void MetricsFile::write(const EpochMetrics& m) const {
  using report::to_json;
  const report::Json line = {{"epoch", m.epoch},
                             {"step", m.step},
                             {"lr", m.lr},
                             {"step_loss", to_json(m.step_loss)},
                             {"test_loss", to_json(m.test_loss)},
                             {"test_accuracy", to_json(m.test_accuracy)},
                             {"seconds", to_json(m.seconds)}};
  std::ofstream file(path_, std::ios::app);
  file << line.dump() << std::endl;
  require(file, path_);
}

}  // namespace samples
