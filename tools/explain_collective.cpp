// Runs a collective between threads, records its messages and describes them as text.
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
double number_of(const CollectiveQuestion& question, int rank) {
  if (question.op == par::ReduceOp::kProduct) return rank % 2 + 1;
  const bool adds = question.op == par::ReduceOp::kSum || question.op == par::ReduceOp::kAvg;
  return adds && question.ranks <= 7 ? std::pow(10, rank) : rank + 1;
}

double combined(const CollectiveQuestion& question) {
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

par::HopPlan plan_of(const CollectiveQuestion& question) {
  return {question.algorithm, question.ranks, question.elements, question.collective};
}

// Runs the collective on this rank. Returns the result: of all_gather all parts.
ls::Tensor result_on(par::ProcessGroup& group, const CollectiveQuestion& question) {
  const double own = number_of(question, group.rank());
  const std::int64_t part = question.elements / question.ranks;
  if (question.collective == par::Collective::kAllReduce) {
    const ls::Tensor t = ls::full({question.elements}, own);
    group.all_reduce(t, question.op)->wait();
    return t;
  }
  const bool gathers = question.collective == par::Collective::kAllGather;
  const ls::Tensor in = ls::full({gathers ? question.elements : part * question.ranks}, own);
  const ls::Tensor out = ls::zeros({gathers ? question.elements : part});
  if (gathers)
    group.all_gather(out, in.narrow(0, 0, part))->wait();
  else
    group.reduce_scatter(out, in, question.op)->wait();
  return out;
}

// Whether every element is the expected one; of all_gather part r is the number of rank r.
bool is_right(const CollectiveQuestion& question, const ls::Tensor& result) {
  const bool gathers = question.collective == par::Collective::kAllGather;
  const double combined_number = gathers ? 0 : combined(question);
  const double tolerance = question.op == par::ReduceOp::kAvg ? 1e-6 * combined_number : 0;  // others are exact
  const std::span<const float> values = result.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto owner =
        static_cast<int>(static_cast<std::int64_t>(i) * question.ranks / std::max<std::int64_t>(question.elements, 1));
    const double expected = gathers ? number_of(question, owner) : combined_number;
    if (std::abs(values[i] - expected) > tolerance) return false;
  }
  return true;
}

// Finds the ranks that contributed to each message, step by step.
void trace_contributions(SeenCollective& seen) {
  const auto cells = seen.cells.size();
  std::vector<std::vector<std::uint64_t>> has(static_cast<std::size_t>(seen.question.ranks));
  for (std::size_t r = 0; r < has.size(); ++r) has[r] = held_at_first(seen, static_cast<int>(r));
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

std::string hop_line(const SeenCollective& seen, const SeenHop& each) {
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

std::string step_text(const SeenCollective& seen, int step, std::vector<std::int64_t>& sent) {
  const bool adds = step < seen.reduce_steps;
  std::string text =
      fmt::format("\nstep {} of {}: {}\n", step + 1, seen.steps,
                  adds ? "each receiver adds the part that arrives to its own"
                  : seen.question.collective == par::Collective::kAllGather ? "each rank forwards a part"
                                                                            : "each rank forwards a finished part");
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
std::string summary(const SeenCollective& seen) {
  const CollectiveQuestion& question = seen.question;
  const par::HopPlan plan = plan_of(question);
  std::string text = fmt::format("\n{:<14} {:>10} {:>10}  formula\n{:<14} {:>10} {:>10}  {}\n", "", "counted",
                                 "expected", "steps", seen.steps_seen, plan.steps(),
                                 steps_formula(question.algorithm, question.ranks, question.collective));
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
                      bytes_formula(question.algorithm, question.ranks, question.collective));
  const bool is_uneven = most != 4 * plan.ideal_sent();
  if (is_uneven)
    text += fmt::format("  ({} elements are not cut into equal parts, so ranks differ)\n", question.elements);
  return text;
}

// Sorts the messages and derives bytes, steps and cells from them.
void record(SeenCollective& seen, std::vector<SeenHop> hops) {
  seen.hops = std::move(hops);
  std::ranges::sort(seen.hops, {},
                    [](const SeenHop& s) { return std::tuple(s.step, s.hop.from, s.hop.to, s.hop.begin); });
  std::set<int> steps;
  std::set<std::int64_t> cells = {0, seen.question.elements};
  for (const SeenHop& each : seen.hops) {
    steps.insert(each.step);
    seen.sent[static_cast<std::size_t>(each.hop.from)] += (each.hop.end - each.hop.begin) * 4;
    cells.insert({each.hop.begin, each.hop.end});
  }
  const par::HopPlan plan = plan_of(seen.question);
  seen.steps_seen = static_cast<int>(steps.size());
  seen.steps = plan.steps();
  seen.reduce_steps = plan.reduce_steps();
  seen.cells.assign(cells.begin(), cells.end());
  trace_contributions(seen);
}

}  // namespace

std::vector<std::uint64_t> held_at_first(const SeenCollective& seen, int rank) {
  const CollectiveQuestion& question = seen.question;
  std::vector<std::uint64_t> held(seen.cells.size(), std::uint64_t{1} << rank);
  if (question.collective != par::Collective::kAllGather) return held;
  for (std::size_t c = 0; c < held.size(); ++c) {
    const std::int64_t first = question.elements * rank / question.ranks;
    const std::int64_t end = question.elements * (rank + 1) / question.ranks;
    if (seen.cells[c] < first || seen.cells[c] >= end) held[c] = 0;
  }
  return held;
}

SeenCollective run_collective(const CollectiveQuestion& question) {
  if (question.collective != par::Collective::kAllReduce && question.elements % question.ranks != 0)
    throw ls::InvalidArgument(fmt::format("{}: --elements {} cannot be cut into {} equal parts; use --elements {}",
                                          par::name(question.collective), question.elements, question.ranks,
                                          (question.elements / question.ranks + 1) * question.ranks));
  SeenCollective seen;
  seen.question = question;
  const auto ranks = static_cast<std::size_t>(question.ranks);
  seen.sent.resize(ranks);
  const auto recorder = std::make_shared<Recorder>();
  const auto store = std::make_shared<par::InProcessStore>();
  std::vector<ls::Tensor> results(ranks);
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
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
        results[r] = result_on(*group, question);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  seen.is_right = std::ranges::all_of(results, [&](const ls::Tensor& result) { return is_right(question, result); });
  const bool gathers = question.collective == par::Collective::kAllGather;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::span<const float> values = results[gathers ? 0 : r].span<float>();
    const std::size_t at = gathers ? values.size() / ranks * r : 0;
    seen.results.push_back(values.empty() ? combined(question) : values[at]);
  }
  record(seen, recorder->take());
  return seen;
}

std::string as_text(const SeenCollective& seen) {
  const CollectiveQuestion& question = seen.question;
  const bool gathers = question.collective == par::Collective::kAllGather;
  std::string text =
      fmt::format("{}{} by {}: {} ranks, {} f32 {} (P = {} B)\n", par::name(question.collective),
                  gathers ? "" : fmt::format(" ({})", par::name(question.op)), par::name(question.algorithm),
                  question.ranks, question.elements, gathers ? "together" : "each", question.elements * 4);
  text += "each rank's numbers:";
  for (const double given : seen.given) text += " " + number(given);
  text += "\n";
  std::vector<std::int64_t> sent(seen.sent.size(), 0);
  for (int step = 0; step < seen.steps; ++step) text += step_text(seen, step, sent);
  text += summary(seen);
  std::string results = number(seen.results[0]);
  for (std::size_t r = 1; gathers && r < seen.results.size(); ++r) results += " " + number(seen.results[r]);
  const bool scatters = question.collective == par::Collective::kReduceScatter;
  text += fmt::format("\nresult {}: {}, {}\n",
                      gathers    ? "on all ranks, by part"
                      : scatters ? "on rank r, in part r"
                                 : "on all ranks",
                      results, seen.is_right ? "correct" : "WRONG: please report it");
  return text;
}

std::string bytes_formula(par::Algorithm algorithm, int ranks, par::Collective collective) {
  if (collective != par::Collective::kAllReduce) return "(n-1) / n P";
  if (algorithm == par::Algorithm::kTree) return "ceil(log2 n) P, by rank 0";
  const bool is_power = std::has_single_bit(static_cast<unsigned>(ranks));
  if (algorithm == par::Algorithm::kDoubling)
    return is_power ? "log2 n P" : "(log2 p + 1) P, p the power of two below n";
  const bool folds = algorithm == par::Algorithm::kHalvingDoubling && !is_power;
  return folds ? "2 (p-1) / p P + P, p the power of two below n" : "2 (n-1) / n P";
}

std::string steps_formula(par::Algorithm algorithm, int ranks, par::Collective collective) {
  if (collective != par::Collective::kAllReduce) return algorithm == par::Algorithm::kRing ? "n-1" : "1";
  switch (algorithm) {
    case par::Algorithm::kRing:
      return "2 (n-1)";
    case par::Algorithm::kTree:
      return "2 ceil(log2 n)";
    case par::Algorithm::kHalvingDoubling:
      return std::has_single_bit(static_cast<unsigned>(ranks)) ? "2 log2 n"
                                                               : "2 log2 p + 2, p the power of two below n";
    case par::Algorithm::kDoubling:
      return std::has_single_bit(static_cast<unsigned>(ranks)) ? "log2 n" : "log2 p + 2, p the power of two below n";
    default:
      return "2";
  }
}

std::string plural(std::int64_t count, const std::string& noun) {
  const bool is_sibilant = noun.ends_with("sh") || noun.ends_with("ch");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : is_sibilant ? "es" : "s");
}

std::string ranks_text(std::uint64_t set) {
  std::string text;
  for (int r = 0; r < 64; ++r) {
    if ((set >> r & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", r);
  }
  return "{" + text + "}";
}
