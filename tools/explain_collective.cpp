// Runs an all_reduce between threads, records its messages and describes them as text.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "tools/explain.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

class Recorder final : public par::HopObserver {
 public:
  void on_hop(const par::HopEvent& event) override {
    const SeenHop seen{.step = event.step, .hop = event.hop, .result = event.result.span<float>()[0]};
    const std::lock_guard lock(mutex_);
    hops_.push_back(seen);
  }
  std::vector<SeenHop> take() { return std::move(hops_); }

 private:
  std::mutex mutex_;
  std::vector<SeenHop> hops_;
};

// The input of a rank. For sums each rank has its own decimal digit, so that a partial sum shows which ranks
// contributed; for products a number that keeps them exact.
double number_of(const AllReduceQuestion& question, int rank) {
  if (question.op == par::ReduceOp::kProduct) return rank % 2 + 1;
  const bool adds = question.op == par::ReduceOp::kSum || question.op == par::ReduceOp::kAvg;
  return adds && question.ranks <= 7 ? std::pow(10, rank) : rank + 1;
}

double combined(const AllReduceQuestion& question) {
  double result = number_of(question, 0);
  for (int r = 1; r < question.ranks; ++r) {
    const double next = number_of(question, r);
    result = question.op == par::ReduceOp::kMin       ? std::min(result, next)
             : question.op == par::ReduceOp::kMax     ? std::max(result, next)
             : question.op == par::ReduceOp::kProduct ? result * next
                                                      : result + next;
  }
  return question.op == par::ReduceOp::kAvg ? result / question.ranks : result;
}

// Finds the ranks that contributed to each message, step by step.
void trace_contributions(SeenAllReduce& seen) {
  const auto cells = seen.cells.size();
  std::vector<std::vector<std::uint64_t>> has(static_cast<std::size_t>(seen.question.ranks));
  for (std::size_t r = 0; r < has.size(); ++r) has[r].assign(cells, std::uint64_t{1} << r);
  for (std::size_t i = 0; i < seen.hops.size();) {
    const auto before = has;
    std::vector<SeenHop*> last_to(has.size(), nullptr);
    for (const int step = seen.hops[i].step; i < seen.hops.size() && seen.hops[i].step == step; ++i) {
      SeenHop& each = seen.hops[i];
      const auto from = static_cast<std::size_t>(each.hop.from), to = static_cast<std::size_t>(each.hop.to);
      const auto first = static_cast<std::size_t>(std::ranges::find(seen.cells, each.hop.begin) - seen.cells.begin());
      each.carried = before[from][first];
      each.had = has[to][first];
      if (last_to[to]) last_to[to]->more_follow = true;
      last_to[to] = &each;
      for (std::size_t cell = first; cell < cells && seen.cells[cell] < each.hop.end; ++cell)
        has[to][cell] = each.hop.adds ? has[to][cell] | before[from][cell] : before[from][cell];
    }
  }
}

std::string number(double value) { return fmt::format("{:.7g}", value); }

std::string hop_line(const SeenAllReduce& seen, const SeenHop& each) {
  const auto width = fmt::formatted_size("{}", seen.question.elements);
  const auto rank_width = fmt::formatted_size("{}", seen.question.ranks - 1);
  const std::int64_t bytes = (each.hop.end - each.hop.begin) * 4;
  std::string text = fmt::format("  rank {:>{}} -> {:>{}}  elements [{:>{}}, {:>{}})  {:>{}} B  ", each.hop.from,
                                 rank_width, each.hop.to, rank_width, each.hop.begin, width, each.hop.end, width, bytes,
                                 fmt::formatted_size("{}", seen.question.elements * 4));
  const std::uint64_t after = each.hop.adds ? each.had | each.carried : each.carried;
  if (!each.hop.adds) return text + fmt::format("{} = {}\n", ranks_text(after), number(each.result));
  text += fmt::format("{} + {} = {}", ranks_text(each.had), ranks_text(each.carried), ranks_text(after));
  return text + (each.more_follow ? "\n" : fmt::format(": {}\n", number(each.result)));
}

std::string step_text(const SeenAllReduce& seen, int step, std::vector<std::int64_t>& sent) {
  const bool adds = step < seen.steps / 2;
  std::string text = fmt::format("\nstep {} of {}: {}\n", step + 1, seen.steps,
                                 adds ? "each receiver combines what comes with its own" : "results are handed on");
  for (const SeenHop& each : seen.hops) {
    if (each.step != step) continue;
    text += hop_line(seen, each);
    sent[static_cast<std::size_t>(each.hop.from)] += (each.hop.end - each.hop.begin) * 4;
  }
  text += "  sent so far:";
  for (std::size_t r = 0; r < sent.size(); ++r) text += fmt::format(" {}", sent[r]);
  return text + " B\n";
}

// Compares the measured numbers with the formulas.
std::string summary(const SeenAllReduce& seen) {
  const AllReduceQuestion& question = seen.question;
  const par::HopPlan plan(question.algorithm, question.ranks, question.elements);
  std::string text =
      fmt::format("\n{:<14} {:>10} {:>10}  formula\n{:<14} {:>10} {:>10}  {}\n", "", "counted", "expected", "steps",
                  seen.steps_seen, plan.steps(), steps_formula(question.algorithm, question.ranks));
  std::int64_t all = 0, expected = 0;
  for (int r = 0; r < question.ranks; ++r) {
    const std::int64_t sent = seen.sent[static_cast<std::size_t>(r)];
    text += fmt::format("{:<14} {:>8} B {:>8} B\n", fmt::format("rank {} sent", r), sent, 4 * plan.sent_by(r));
    all += sent;
    expected += 4 * plan.sent_by(r);
  }
  const double most = static_cast<double>(*std::ranges::max_element(seen.sent));
  text += fmt::format("{:<14} {:>8} B {:>8} B\n", "all ranks", all, expected);
  text += fmt::format("{:<14} {:>8} B {:>8.7g} B  {}\n", "the busiest", most, 4 * plan.ideal_sent(),
                      bytes_formula(question.algorithm, question.ranks));
  const bool is_uneven = most != 4 * plan.ideal_sent();
  if (is_uneven)
    text += fmt::format("  ({} elements are not cut into equal parts, so ranks differ)\n", question.elements);
  return text;
}

}  // namespace

SeenAllReduce run_all_reduce(const AllReduceQuestion& question) {
  SeenAllReduce seen;
  seen.question = question;
  seen.sent.resize(static_cast<std::size_t>(question.ranks));
  const auto recorder = std::make_shared<Recorder>();
  const auto store = std::make_shared<par::InProcessStore>();
  seen.results.resize(static_cast<std::size_t>(question.ranks));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(question.ranks));
  std::vector<char> right(static_cast<std::size_t>(question.ranks), 0);
  std::vector<std::thread> threads;
  const double expected = combined(question);
  const double tolerance = question.op == par::ReduceOp::kAvg ? 1e-6 * expected : 0;  // the other operations are exact
  for (int rank = 0; rank < question.ranks; ++rank) {
    seen.given.push_back(number_of(question, rank));
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      try {
        const auto group = par::init_process_group(
            {.backend = "sim",
             .world_size = question.ranks,
             .rank = rank,
             .store = store,
             .backend_options = par::SimOptions{.algorithm = question.algorithm, .observer = recorder}});
        const ls::Tensor t = ls::full({question.elements}, number_of(question, rank));
        group->all_reduce(t, question.op)->wait();
        const auto values = t.span<float>();
        right[r] = std::ranges::all_of(values, [&](float x) { return std::abs(x - expected) <= tolerance; });
        seen.results[r] = values.empty() ? expected : values[0];
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  seen.is_right = std::ranges::all_of(right, [](char each) { return each != 0; });
  seen.hops = recorder->take();
  std::ranges::sort(seen.hops, {},
                    [](const SeenHop& s) { return std::tuple(s.step, s.hop.from, s.hop.to, s.hop.begin); });
  std::set<int> steps;
  for (const SeenHop& each : seen.hops) {
    steps.insert(each.step);
    seen.sent[static_cast<std::size_t>(each.hop.from)] += (each.hop.end - each.hop.begin) * 4;
  }
  seen.steps_seen = static_cast<int>(steps.size());
  seen.steps = par::HopPlan(question.algorithm, question.ranks, question.elements).steps();
  std::set<std::int64_t> cells = {0, question.elements};
  for (const SeenHop& each : seen.hops) cells.insert({each.hop.begin, each.hop.end});
  seen.cells.assign(cells.begin(), cells.end());
  trace_contributions(seen);
  return seen;
}

std::string as_text(const SeenAllReduce& seen) {
  const AllReduceQuestion& question = seen.question;
  std::string text =
      fmt::format("all_reduce ({}) by {}: {} ranks, {} f32 each (P = {} B)\n", par::name(question.op),
                  par::name(question.algorithm), question.ranks, question.elements, question.elements * 4);
  text += "each rank's numbers:";
  for (const double given : seen.given) text += " " + number(given);
  text += "\n";
  std::vector<std::int64_t> sent(seen.sent.size(), 0);
  for (int step = 0; step < seen.steps; ++step) text += step_text(seen, step, sent);
  text += summary(seen);
  text += fmt::format("\nresult on all ranks: {}, {}\n", number(seen.results[0]),
                      seen.is_right ? "as it must be" : "which is WRONG: please report it");
  return text;
}

std::string bytes_formula(par::Algorithm algorithm, int ranks) {
  if (algorithm == par::Algorithm::kTree) return "ceil(log2 n) P, by rank 0";
  const bool folds =
      algorithm == par::Algorithm::kHalvingDoubling && !std::has_single_bit(static_cast<unsigned>(ranks));
  return folds ? "2 (p-1) / p P + P, p the power of two below n" : "2 (n-1) / n P";
}

std::string steps_formula(par::Algorithm algorithm, int ranks) {
  switch (algorithm) {
    case par::Algorithm::kRing:
      return "2 (n-1)";
    case par::Algorithm::kTree:
      return "2 ceil(log2 n)";
    case par::Algorithm::kHalvingDoubling:
      return std::has_single_bit(static_cast<unsigned>(ranks)) ? "2 log2 n"
                                                               : "2 log2 p + 2, p the power of two below n";
    default:
      return "2";
  }
}

std::string ranks_text(std::uint64_t set) {
  std::string text;
  for (int r = 0; r < 64; ++r) {
    if ((set >> r & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", r);
  }
  return "{" + text + "}";
}
