// lockstep-explain plan: text, and predictions against a simulation of each mesh.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/simulate/simulation.h"
#include "tests/support/explained.h"
#include "tests/support/testing.h"
#include "tools/explain_plan.h"

namespace par = lockstep::parallel;
using explained::expect_golden;
using explained::explain;
using explained::Finished;

namespace {

// The step of a mesh, action by action. It takes from plan only the seconds that each module computes, and its numbers of
// parameters. All else is simulated: every collective message by message on the link, with the bytes of docs/mesh.md; every
// action of the table with the times of its own stage; messages between stages through the ports of both ranks; reductions
// of each rank when its own last backward is done. plan instead uses closed forms of collectives, and a pipeline of equal
// stages with a correction for the slowest. So this can be slower or faster than predicted, and rank meshes in another order.
class MeshSimulation {
 public:
  MeshSimulation(const plan::Job& job, const plan::Mesh& mesh)
      : job_(job), mesh_(mesh), chain_(plan::chain_of(job, mesh)),
        begins_(plan::balanced_stages(chain_, mesh.pp * mesh.chunks)),
        micro_batches_(job.micro_batches / mesh.data_ranks()) {}

  double seconds() { return mesh_.pp == 1 ? one_stage() : stages(); }

 private:
  struct Module {
    double forward = 0, input = 0, weight = 0;
  };

  double collective(par::Collective which, int ranks, double bytes) {
    if (ranks == 1 || bytes == 0) return 0;
    std::vector<double> times(static_cast<std::size_t>(ranks), 0);
    const auto count = static_cast<std::int64_t>(std::ceil(bytes / 4 / ranks)) * ranks;
    const par::HopPlan hops(par::Algorithm::kDirect, ranks, count, which);
    par::simulate(
        job_.link, hops.steps(), [&](int step) { return hops.step(step); }, 4, times);
    return *std::ranges::max_element(times);
  }
  double sum(double bytes) { return collective(par::Collective::kAllReduce, mesh_.tp, bytes); }

  // `times` messages of each rank to the next one round the ring.
  double ring(int times, double bytes) {
    std::vector<double> ends(static_cast<std::size_t>(mesh_.cp), 0);
    const auto hops = [&](int) {
      std::vector<par::Hop> all;
      for (int r = 0; r < mesh_.cp; ++r)
        all.push_back({.from = r, .to = (r + 1) % mesh_.cp, .end = static_cast<std::int64_t>(bytes)});
      return all;
    };
    par::simulate(job_.link, times, hops, 1, ends);
    return *std::ranges::max_element(ends);
  }

  double activation_bytes() const {
    return 4.0 * static_cast<double>(job_.sequences * job_.model.context / mesh_.cp * job_.model.width);
  }

  // With the messages of docs/mesh.md along tp and cp, which nothing hides.
  Module module(std::size_t k) {
    const plan::ChainModule& own = chain_[k];
    Module m{own.forward, own.backward_input, own.backward_weight};
    const double a = activation_bytes(), keys = a / mesh_.tp;
    const bool is_embedding = k == 0, is_head = k + 1 == chain_.size();
    if (is_embedding) m.forward += sum(a);
    if (is_head) m.forward += 3 * sum(a / static_cast<double>(job_.model.width)), m.input += sum(a);
    if (is_embedding || is_head) return m;
    m.forward += 2 * sum(a), m.input += 2 * sum(a);
    if (mesh_.cp > 1) {
      m.forward += ring(mesh_.cp - 1, 2 * keys);
      m.input += ring(mesh_.cp - 1, 2 * keys) + ring(mesh_.cp, 2 * keys);
    }
    return m;
  }

  double gather(double elements) {
    return collective(par::Collective::kAllGather, mesh_.gradient_ranks(), 4 * elements);
  }
  double reduce(double elements) {
    const auto which = mesh_.fsdp > 1 ? par::Collective::kReduceScatter : par::Collective::kAllReduce;
    return collective(which, mesh_.gradient_ranks(), 4 * elements);
  }
  // Parameters of stage 3 are gathered for each micro-batch, those of stages 1 and 2 in the first forward of a step.
  bool is_gathered(bool is_first_forward) const { return mesh_.fsdp > 1 && (mesh_.stage == 3 || is_first_forward); }
  double elements(std::size_t k) const { return static_cast<double>(chain_[k].parameters); }
  double root_elements() const {
    const auto shared = static_cast<double>((job_.model.vocabulary + mesh_.tp - 1) / mesh_.tp * job_.model.width);
    return elements(0) + elements(chain_.size() - 1) - shared;
  }
  double optimizer(double all) const {
    return all * job_.speed.optimizer / (mesh_.fsdp > 1 ? mesh_.gradient_ranks() : 1);
  }

  double one_stage() {
    const std::size_t blocks = chain_.size() - 2;
    const Module embedding = module(0), block = module(1), head = module(blocks + 1);
    const double unit = elements(1), root = root_elements();
    double now = 0, sent = 0;
    const auto send = [&](double seconds) { return sent = std::max(sent, now) + seconds; };
    for (int m = 0; m < micro_batches_; ++m) {
      const bool is_last = m + 1 == micro_batches_, gathers = is_gathered(m == 0);
      double ready = gathers ? send(gather(root)) : now;
      now = std::max(now, ready);
      if (gathers) ready = send(gather(unit));
      now += embedding.forward;
      for (std::size_t k = 1; k <= blocks; ++k) {
        now = std::max(now, ready);
        if (gathers && k < blocks) ready = send(gather(unit));
        now += block.forward;
      }
      now += head.forward + head.input + head.weight;
      for (std::size_t k = blocks; k >= 1; --k) {
        if (k < blocks) now = std::max(now, ready);
        if (is_gathered(false) && k > 1) ready = send(gather(unit));
        now += block.input + block.weight;
        if (is_last) send(reduce(unit));
      }
      if (is_last) send(reduce(root));
      now = std::max(now, sent);
    }
    return now + optimizer(static_cast<double>(blocks) * unit + root);
  }

  // An action of a stage. A module is gathered while the one before computes.
  double action(std::size_t stage, par::ActionKind kind, int micro_batch) {
    const bool gathers = is_gathered(kind == par::ActionKind::kForward && micro_batch == 0);
    const auto key = std::tuple(stage, kind, gathers);
    if (const auto found = actions_.find(key); found != actions_.end()) return found->second;
    const bool is_forward = kind == par::ActionKind::kForward;
    double now = 0, sent = 0, ready = 0;
    const std::size_t first = begins_[stage], count = begins_[stage + 1] - first;
    const auto at = [&](std::size_t i) { return is_forward ? first + i : first + count - 1 - i; };
    if (gathers) ready = sent = gather(elements(at(0)));
    for (std::size_t i = 0; i < count; ++i) {
      const Module m = module(at(i));
      now = std::max(now, ready);
      if (gathers && i + 1 < count) ready = sent = std::max(sent, now) + gather(elements(at(i + 1)));
      if (is_forward) now += m.forward;
      if (kind == par::ActionKind::kBackward) now += m.input + m.weight;
      if (kind == par::ActionKind::kBackwardInput) now += m.input;
      if (kind == par::ActionKind::kBackwardWeight) now += m.weight;
    }
    return actions_[key] = now;
  }

  double stages() {
    const auto table = par::ScheduleTable::make(mesh_.schedule, mesh_.pp, micro_batches_, mesh_.chunks);
    const auto p = static_cast<std::size_t>(mesh_.pp), last = begins_.size() - 2;
    std::map<std::pair<std::size_t, int>, double> forward, backward;  // arrivals by stage and micro-batch
    std::vector<std::size_t> row(p, 0);
    std::vector<double> now(p, 0), sends(p, 0), receives(p, 0);
    const double transfer = (activation_bytes() + 200) / job_.link.bandwidth;
    const auto begin_of = [&](std::size_t r) -> double {
      if (row[r] == table.actions(static_cast<int>(r)).size()) return -1;
      const par::ScheduleAction& next = table.actions(static_cast<int>(r))[row[r]];
      const auto stage = static_cast<std::size_t>(next.stage);
      const std::pair key(stage, next.micro_batch);
      const bool is_forward = next.kind == par::ActionKind::kForward;
      if (next.kind == par::ActionKind::kBackwardWeight || (is_forward ? stage == 0 : stage == last)) return now[r];
      const auto& arrivals = is_forward ? forward : backward;
      const auto found = arrivals.find(key);
      return found == arrivals.end() ? -1 : std::max(now[r], found->second);
    };
    for (;;) {
      std::size_t rank = p;
      double begin = 0;
      for (std::size_t r = 0; r < p; ++r) {
        if (const double possible = begin_of(r); possible >= 0 && (rank == p || possible < begin))
          rank = r, begin = possible;
      }
      if (rank == p) break;
      const par::ScheduleAction& next = table.actions(static_cast<int>(rank))[row[rank]++];
      const auto stage = static_cast<std::size_t>(next.stage);
      now[rank] = begin + action(stage, next.kind, next.micro_batch);
      const bool is_forward = next.kind == par::ActionKind::kForward;
      if (next.kind == par::ActionKind::kBackwardWeight || (is_forward ? stage == last : stage == 0)) continue;
      const std::size_t to = is_forward ? stage + 1 : stage - 1, receiver = to % p;
      const double sent = std::max({now[rank], sends[rank], receives[receiver]}) + transfer;
      sends[rank] = receives[receiver] = sent;
      (is_forward ? forward : backward)[{to, next.micro_batch}] = sent + job_.link.latency;
    }
    double end = 0;
    for (std::size_t r = 0; r < p; ++r) {
      REQUIRE(row[r] == table.actions(static_cast<int>(r)).size());
      end = std::max(end, finished(r, now[r]));
    }
    const double shared = 4.0 * static_cast<double>(job_.model.vocabulary * job_.model.width) / mesh_.tp;
    return end + 2 * job_.link.seconds(shared);
  }

  // When the gradients of a rank are reduced, and its parameters updated.
  double finished(std::size_t rank, double now) {
    double all = 0;
    for (std::size_t s = rank; s + 1 < begins_.size(); s += static_cast<std::size_t>(mesh_.pp)) {
      for (std::size_t k = begins_[s]; k < begins_[s + 1]; ++k) {
        now += reduce(elements(k));
        all += elements(k);
      }
    }
    return now + optimizer(all);
  }

  const plan::Job& job_;
  const plan::Mesh mesh_;
  const std::vector<plan::ChainModule> chain_;
  const std::vector<std::size_t> begins_;
  const int micro_batches_;
  std::map<std::tuple<std::size_t, par::ActionKind, bool>, double> actions_;
};

struct NamedQuestion {
  std::string name;
  PlanQuestion question;
};

// Three models, each on links of different speeds, with memory for every mesh and for few. The times of a device are in
// profiles: about 100 GFLOP/s in forward, and fewer in backward.
std::vector<NamedQuestion> questions() {
  const std::pair<std::string, plan::Gpt> models[] = {
      {"small", {.layers = 6, .width = 256, .heads = 8, .context = 256, .vocabulary = 5000}},
      {"deep", {.layers = 62, .width = 128, .heads = 8, .context = 512, .vocabulary = 256}},
      {"wide", {.layers = 4, .width = 2048, .heads = 32, .context = 512, .vocabulary = 20000}}};
  std::vector<NamedQuestion> all;
  for (const auto& [name, model] : models) {
    const plan::Operations work = plan::operations_of(model, 1);
    const std::string profile = name + ".json";
    std::ofstream(profile) << fmt::format(
        R"({{"forward_us": {:.3f}, "optimizer_us": {:.3f}, "input_bytes": 4096, "output_bytes": 4,
            "buckets": [{{"bytes": {}, "backward_us": {:.3f}}}]}})",
        work.forward / 1e5, static_cast<double>(model.parameters()) / 1e3, 4 * model.parameters(),
        work.backward() / 0.8e5);
    for (const char* link : {"NVLink", "100GbE", "10GbE", "./slow.json"}) {
      for (const int micro_batches : {4, 16}) {
        PlanQuestion question;
        question.model = model;
        question.micro_batches = micro_batches;
        question.memory_gb = 1e6;
        question.link = link;
        question.profile = profile;
        const SeenPlan seen = plan_of(question);
        std::vector<std::int64_t> memory;
        for (const PlannedMesh& each : seen.feasible) memory.push_back(each.estimate.memory);
        std::ranges::sort(memory);
        all.push_back({fmt::format("{}, {}, {} micro-batches", name, link, micro_batches), question});
        question.memory_gb = static_cast<double>(memory[memory.size() / 3]) / 1e9;
        all.push_back({all.back().name + ", less memory", question});
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("plan: the first choice is within 10 % of the fastest of all meshes of 8 ranks in a simulation") {
  std::ofstream("slow.json") << R"({"latency_us": 50, "gigabytes_per_second": 0.1})";
  double farthest = 1;
  for (const NamedQuestion& named : questions()) {
    CAPTURE(named.name);
    const SeenPlan seen = plan_of(named.question);
    REQUIRE(!seen.feasible.empty());
    double best = 0;
    std::string fastest;
    for (const PlannedMesh& each : seen.feasible) {
      for (const plan::Mesh& mesh : modes_of(seen.job, each.mesh)) {
        const plan::Estimate estimate = plan::estimate(seen.job, mesh);
        if (static_cast<double>(estimate.memory) > named.question.memory_gb * 1e9) continue;
        const double seconds = MeshSimulation(seen.job, mesh).seconds();
        farthest = std::max({farthest, seconds / estimate.seconds, estimate.seconds / seconds});
        if (best == 0 || seconds < best) best = seconds, fastest = mesh.axes() + " " + mesh.mode();
      }
    }
    CAPTURE(fastest);
    CAPTURE(seen.feasible[0].mesh.axes());
    const double chosen = MeshSimulation(seen.job, seen.feasible[0].mesh).seconds();
    CHECK(chosen <= 1.1 * best);
  }
  CHECK(farthest < 1.2);  // of any mesh
}

TEST_CASE(
    "plan: more memory never makes the first choice slower, a faster link no mesh, and nothing needs more than it "
    "has") {
  const char* const links[] = {"./slow.json", "10GbE", "100GbE", "PCIe4",
                               "NVLink"};  // PCIe4 and later: less latency, too
  for (const NamedQuestion& named : questions()) {
    CAPTURE(named.name);
    PlanQuestion question = named.question;
    double before = 0;
    std::size_t count = 0;
    for (const double gigabytes : {0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 100.0}) {
      question.memory_gb = gigabytes;
      const SeenPlan seen = plan_of(question);
      CHECK(seen.feasible.size() >= count);
      count = seen.feasible.size();
      for (const PlannedMesh& each : seen.feasible) {
        CHECK(static_cast<double>(each.estimate.memory) <= gigabytes * 1e9);
        CHECK(each.mesh.ranks() == 8);
      }
      if (seen.feasible.empty()) continue;
      if (before > 0) CHECK(seen.feasible[0].estimate.seconds <= before);
      before = seen.feasible[0].estimate.seconds;
    }
    CHECK(count > 20);

    std::map<std::string, double> slower;
    for (const char* link : links) {
      question.link = link;
      for (const PlannedMesh& each : plan_of(question).feasible) {
        for (const plan::Mesh& mesh : modes_of(job_of(question), each.mesh)) {
          const std::string name = mesh.axes() + " " + mesh.mode();
          CAPTURE(name);
          const double seconds = plan::estimate(job_of(question), mesh).seconds;
          if (slower.contains(name)) CHECK(seconds <= slower[name] * (1 + 1e-12));
          slower[name] = seconds;
        }
      }
    }
  }
}

TEST_CASE("plan: small cases, exactly") {
  const std::string gpt = "plan --layers 6 --width 384 --heads 6 --context 256 --vocabulary 65";
  expect_golden("plan_4", explain(gpt + " --ranks 4 --memory 1 --micro-batches 8 --sequences 8 --teraflops 1").output);
  expect_golden("plan_8_less_memory",
                explain("plan --parameters 1.5e9 --memory 8 --link NVLink --teraflops 50 --top 3").output);
  const Finished none = explain(gpt + " --memory 0.01");
  CHECK(none.code == 0);
  CHECK(contains(none.output, "No mesh fits."));
  CHECK(contains(none.output, "needs more than 0.01 GB per device: 0.0"));
  CHECK(contains(explain(gpt + " --ranks 1 --memory 1").output, "\n  1  dp=1 "));
  CHECK(contains(explain("plan --parameters 124e6").output, "12 layers x width 768, 12 heads"));
  CHECK(contains(explain("plan --parameters 175e9 --ranks 64").output, ": 175402.0 million"));
}

TEST_CASE("plan: meshes that Parallel refuses are counted, with the least that helps") {
  PlanQuestion question;
  question.model = {.layers = 2, .width = 60, .heads = 6, .context = 36, .vocabulary = 20};
  question.micro_batches = 6;
  const SeenPlan seen = plan_of(question);
  std::map<std::string, std::pair<int, std::string>> refused;
  int all = 0;
  for (const RefusedMeshes& each : seen.refused) refused[each.why] = {each.count, each.way_out}, all += each.count;
  CHECK(all + static_cast<int>(seen.feasible.size()) ==
        35);  // 8 = 2 x 2 x 2: each factor goes to one of five axes, (3 + 4 over 4) ways
  CHECK(refused["tp does not divide 6 heads"].second == "a model with 8 heads");
  CHECK(refused["6 micro-batches cannot be shared with equal bits"].second == "--micro-batches 8");
  CHECK(refused["dp and fsdp both above 1 is not supported"].first == 5);
  CHECK(refused["pp is above 4, the number of modules"] == std::pair(1, std::string("a model with 6 layers")));
  CHECK(refused["2 cp does not divide 36 positions"].second == "--context 40");
}

TEST_CASE("plan: wrong options are errors that name the option and the fix") {
  const std::pair<std::string, std::string> usage[] = {
      {"--ranks 0", "--ranks: \"0\" is not a number from 1 to 512"},
      {"--memory 0", "--memory: \"0\" is not a number from 1e-06 to 1000000"},
      {"--parameter 1e9", "there is no option --parameter; did you mean --parameters?"},
      {"--parameters 1e9 --width 64",
       "--width: is not for --parameters, which determines it\nLeave one of the two out"},
      {"--profile small.json --teraflops 3",
       "--teraflops: is not for --profile, which determines it\nLeave one of the two out"}};
  for (const auto& each : usage) {
    const Finished wrong = explain("plan " + each.first);
    CHECK(wrong.code == 2);
    CHECK(wrong.output == "lockstep-explain: " + each.second + "\nFor help: lockstep-explain --help\n");
  }
  const Finished heads = explain("plan --heads 7");
  CHECK(heads.code == 1);
  CHECK(heads.output == "lockstep-explain: plan: 7 heads do not divide a width of 768; use --width 770\n");
  CHECK(contains(explain("plan --link 5GbE").output, "there is no link \"5GbE\""));
  CHECK(contains(explain("plan --profile nothing.json").output, "nothing.json"));
  CHECK(contains(explain("plan --help").output, "--sequences INT"));
}
