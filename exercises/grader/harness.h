// What the graders share: checks worth a point each, ranks as threads, answers from files.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Says in one line what is wrong with an answer.
struct Missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One point. `run` returns what was observed, or throws: NotDone, Missing, or whatever the student's code throws.
struct Check {
  std::string name;
  std::function<std::string()> run;
};

// Each exercise's grader defines this function. An exception from it means that the grading itself does not work.
// `answers`: the file with the answers, in exercises without code. `out`: the folder for files of the grader.
std::vector<Check> checks(const std::string& answers, const std::string& out);

class Answers;
// The seed of the variant to grade: of grade.sh --seed, else "seed" of the answers, else 0, the variant of the README.
std::uint64_t seed_of(const Answers* answers = nullptr);
// Shows the student the numbers of the variant.
void print_task(const std::string& task);

// Numbers that depend on a seed alone, on every machine (splitmix64).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  int roll(int sides);  // 0 to sides - 1
  template <class Range>
  void shuffle(Range& range) {
    for (int i = static_cast<int>(range.size()) - 1; i > 0; --i)
      std::swap(range[static_cast<std::size_t>(i)], range[static_cast<std::size_t>(roll(i + 1))]);
  }

 private:
  std::uint64_t state_;
};

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

// Runs fn on `size` threads that share a group, by default of the backend local. Throws the exception that says most about
// the cause: a rank's own exception before those of the ranks that lost it.
void run_ranks(int size, const std::function<void(const Group& group)>& fn, const par::InitOptions& options = {});
// Runs fn on a simulated network, with a clock for each rank.
void run_simulated(int size, const par::Link& link,
                   const std::function<void(const Group& group, par::Simulation& clock)>& fn,
                   par::Algorithm algorithm = par::Algorithm::kRing);

// The trace of fn.
ls::Trace trace_of(const std::function<void()>& fn);
// The completed collectives of `rank` with this name, in the order of their launches.
std::vector<ls::TraceEvent> collectives(const ls::Trace& trace, int rank, const std::string& name);

// True if `have` begins with the bits of the elements of `want` from `begin` on, as far as both go. Both are f32.
bool begins_with(const ls::Tensor& have, const ls::Tensor& want, std::int64_t begin = 0);

// Suggestions of several graders.
inline constexpr const char* kLastBits = "Its last bits differ: add the gradients of all ranks first, then divide once";
inline constexpr const char* kAllReduce =
    "An all-reduce sends the sums of all elements to every rank: each rank needs those of its shard only";

// Sets parameters that are the same in every run and on every rank. (Initialisation draws from one stream of the process,
// which ranks that are threads share.)
void set_parameters(const ls::nn::Module& model);

// Traffic between ranks: bytes and messages by (from, to).
struct Sent {
  std::int64_t bytes = 0, messages = 0;
};
using Links = std::map<std::pair<int, int>, Sent>;
// Adds the traffic that a rank has sent so far. Safe to call from all ranks.
void add_links(Links& links, const Group& group);
// Adds the traffic of a rank's last step, or of the last step between devices.
void add_step(Links& links, const par::TrafficStats& traffic);
Sent sent_by(const Links& links, int rank);

// A flat JSON object of numbers and strings. null stands for an answer that is not done.
class Answers {
 public:
  explicit Answers(const std::string& path);  // throws Missing with the line, unless the file is such an object
  double number(const std::string& key) const;
  std::string word(const std::string& key) const;

 private:
  const std::string& value(const std::string& key) const;
  std::map<std::string, std::string> values_;  // as written, with the quotes of strings
};

// Throws Missing unless `have` is within `tolerance` (0.1: ten per cent) of `want`.
std::string require_near(double have, double want, double tolerance, const std::string& unit);

}  // namespace grader
