// What the graders share: checks worth a point each, ranks as threads, answers from files.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "adapters.h"

namespace grader {

namespace ls = lockstep;
namespace par = lockstep::parallel;
using Group = std::shared_ptr<par::ProcessGroup>;

// What an answer lacks, in one line.
struct Missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One point. `run` returns what was seen, or throws: NotDone, Missing, or whatever the student's code throws.
struct Check {
  std::string name;
  std::function<std::string()> run;
};

// Each exercise's grader defines this one. What it throws means that the grading itself does not work.
// `answers`: of exercises without code, the file with the answers. `out`: a folder for what the grader shows.
std::vector<Check> checks(const std::string& answers, const std::string& out);

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.precision(10);
  (stream << ... << parts);
  return stream.str();
}

template <class... Parts>
void require(bool condition, const Parts&... otherwise) {
  if (!condition) throw Missing(text(otherwise...));
}

// Runs fn on `size` threads that share a group; by default of the backend local. Throws what says most about what went
// wrong: a rank's own exception before those of the ranks that lost it.
void run_ranks(int size, const std::function<void(const Group& group)>& fn, const par::InitOptions& options = {});
// The same on a simulated network, with a clock for each rank.
void run_simulated(int size, const par::Link& link,
                   const std::function<void(const Group& group, par::Simulation& clock)>& fn,
                   par::Algorithm algorithm = par::Algorithm::kRing);

// Parameters that are the same in every run and on every rank. (Initialisation draws from one stream of the process, which
// ranks that are threads share.)
void set_parameters(const ls::nn::Module& model);

// What passed between ranks: bytes and messages by (from, to).
struct Sent {
  std::int64_t bytes = 0, messages = 0;
};
using Links = std::map<std::pair<int, int>, Sent>;
// Adds what a rank has sent so far. Safe to call from all ranks.
void add_links(Links& links, const Group& group);
// Adds what the last step moved on a rank, or between devices.
void add_step(Links& links, const par::TrafficStats& book);
Sent sent_by(const Links& links, int rank);

// A flat JSON object of numbers and texts. null stands for what is not done.
class Answers {
 public:
  explicit Answers(const std::string& path);
  double number(const std::string& key) const;
  std::string word(const std::string& key) const;

 private:
  std::string value(const std::string& key) const;
  std::string text_;
};

// Throws Missing unless `have` is within `tolerance` (0.1: ten per cent) of `want`.
std::string require_near(double have, double want, double tolerance, const std::string& unit);

}  // namespace grader
