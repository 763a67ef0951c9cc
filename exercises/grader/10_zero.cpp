// Exercise 10: parameters bitwise identical to those of one process, the bytes of a step, and the memory that ranks keep.
#include <algorithm>

#include "harness.h"

namespace grader {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kSamples = 6;  // of a rank in a step
constexpr double kRate = 0.001;

struct Variant {
  std::int64_t hidden = 20;  // width of the first hidden layer
  double phase = 0;          // of the data
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  return {.hidden = 10 + dice.roll(40), .phase = 0.01 * dice.roll(300)};
}

struct Model : ls::nn::Module {
  ls::nn::Linear &fc1, &fc2;
  explicit Model(std::int64_t hidden = variant().hidden)
      : fc1(add<ls::nn::Linear>("fc1", 12, hidden)), fc2(add<ls::nn::Linear>("fc2", hidden, 5)) {
    set_parameters(*this);
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::tanh(fc1(x))); }
  std::int64_t elements() const {
    std::int64_t count = 0;
    for (const ls::nn::Parameter& parameter : parameters()) count += parameter->numel();
    return count;
  }
};

// The samples of all ranks in a step, one rank's after the other's.
ls::Tensor batch(int step, int ranks, std::int64_t columns) {
  const double count = static_cast<double>(ranks * kSamples * columns);
  return ls::cos(ls::arange(0, count, 1, {.dtype = ls::kFloat32}) * 0.37 + step + variant().phase)
      .reshape({ranks * kSamples, columns});
}

ls::Tensor rows_of(const ls::Tensor& batch, int rank) { return batch.slice(0, rank * kSamples, (rank + 1) * kSamples); }

// The gradients are so small that Adam's epsilon counts: else a step with their sum would be almost that with their mean.
ls::Tensor loss_of(const Model& model, const ls::Tensor& x, const ls::Tensor& y) {
  const ls::Tensor error = model(x) - y;
  return ls::mean(error * error) * 1e-7;
}

ls::Tensor flat(const Model& model) {
  std::vector<ls::Tensor> all;
  for (const ls::nn::Parameter& parameter : model.parameters()) all.push_back(parameter->detach().reshape({-1}));
  return ls::cat(all);
}

// The parameters of one process, at first and after each step. It runs the micro-batches of all ranks, or of rank `only`,
// with gradients that are `factor` times as large.
std::vector<ls::Tensor> train_alone(int ranks, double factor = 1, int only = -1) {
  Model model;
  ls::optim::Adam optimizer(model.parameters(), {.lr = kRate});
  par::GradientAccumulation run(model, {.micro_batches = only < 0 ? ranks : 1});
  std::vector<ls::Tensor> steps = {flat(model)};
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    ls::Tensor x = batch(step, ranks, 12), y = batch(step, ranks, 5);
    if (only >= 0) x = rows_of(x, only), y = rows_of(y, only);
    run.backward(x, y, [&](const ls::Tensor& in, const ls::Tensor& out) { return loss_of(model, in, out) * factor; });
    optimizer.step();
    steps.push_back(flat(model));
  }
  return steps;
}

// Backward of a rank on its own samples.
void backward_of_rank(Model& model, const Group& group, int step) {
  model.zero_grad();
  const auto own = [&](std::int64_t columns) { return rows_of(batch(step, group->size(), columns), group->rank()); };
  loss_of(model, own(12), own(5)).backward();
}

double distance(const ls::Tensor& a, const ls::Tensor& b) { return ls::abs(a - b).max().item<double>(); }

// The position in `whole` of the elements that are nearest to `have`; -1 if one of them is not within `error`.
std::int64_t place_of(const ls::Tensor& have, const ls::Tensor& whole, double error) {
  std::int64_t place = -1;
  for (std::int64_t begin = 0; begin + have.numel() <= whole.numel(); ++begin) {
    const double off = distance(have, whole.slice(0, begin, begin + have.numel()));
    if (off <= error) place = begin, error = off;
  }
  return place;
}

// Parameters after a step, as a rank has them and as they should be.
struct Result {
  int ranks, rank, step;
  ls::Tensor before, have, want;  // flat

  std::int64_t elements() const { return have.numel(); }
  std::int64_t part() const { return (elements() + ranks - 1) / ranks; }  // of a rank
  bool is_wrong(std::int64_t i) const { return !begins_with(have.slice(0, i, i + 1), want, i); }
  bool is_unchanged(std::int64_t i) const { return begins_with(have.slice(0, i, i + 1), before, i); }
};

// The meaning of wrong elements from `first` to `last` that are unchanged.
std::string meaning_of_unchanged(const Result& r, std::int64_t first, std::int64_t last) {
  if (begins_with(r.have, r.before)) return "No parameter has changed: does the model get the new values?";
  bool others = true;  // of the other ranks' parts all elements are wrong
  for (std::int64_t i = 0; i < r.elements(); ++i) others = others && r.is_wrong(i) == (i / r.part() != r.rank);
  if (others) return "Only the elements of the rank's own part have changed: does it get those of the other ranks?";
  return text("Of ", r.elements(), " elements, ", first, " to ", last,
              " have not changed: is each element in the part of a rank, and back in the model?");
}

std::string meaning_of(const Result& r) {
  const auto now = static_cast<std::size_t>(r.step);
  std::vector<std::int64_t> wrong;
  for (std::int64_t i = 0; i < r.elements(); ++i)
    if (r.is_wrong(i)) wrong.push_back(i);
  const std::int64_t first = wrong.front(), owner = first / r.part();
  if (std::ranges::all_of(wrong, [&](std::int64_t i) { return r.is_unchanged(i); }))
    return meaning_of_unchanged(r, first, wrong.back());

  constexpr double kSame = 1e-3 * kRate;  // far below the change of an element in a step, far above rounding
  if (distance(r.have, r.want) <= kSame) return kLastBits;
  if (distance(r.have, train_alone(r.ranks, r.ranks)[now]) <= kSame)
    return "This is a step with the sum of the ranks' gradients, not with their mean";
  // Ten elements tell all places apart.
  const std::int64_t end = std::min({first + 10, (owner + 1) * r.part(), r.elements()});
  const auto some = [&](const ls::Tensor& whole) { return whole.slice(0, first, end); };
  for (const int only : {static_cast<int>(owner), r.rank})
    if (distance(some(r.have), some(train_alone(r.ranks, 1, only)[now])) <= kSame)
      return text("This is a step with the gradients of rank ", only, " alone, not with the mean of all ranks'");

  const ls::Tensor change = r.want - r.before;
  const std::string where = text("Element ", first, " of ", r.elements(), ": ");
  if (const std::int64_t place = place_of(some(r.have), r.want, 0); place >= 0)
    return text(where, "these are the new values from element ", place, " on. Right, but in the wrong place");
  if (const std::int64_t place = place_of(some(r.have - change), r.before, kSame); place >= 0 && place != first)
    return text(where, "these are the values from element ", place,
                " on after a step. Does the rank step the elements whose mean gradient it gets?");
  const std::int64_t place = place_of(some(r.have - r.before), change, kSame);
  if (place >= 0 && place != first)
    return text(where, "the step is that of the elements from ", place, " on. Are these gradients of the same part?");
  if (r.step > 1) return "The step before is right: does Adam's state last from step to step?";
  return "This is none of the common mistakes";
}

std::string check_bits(const std::vector<int>& sizes) {
  for (const int size : sizes) {
    const std::vector<ls::Tensor> want = train_alone(size);
    run_ranks(size, [&](const Group& group) {
      Model model;
      const auto optimizer = exercises::make_sharded_adam(group, model, kRate);
      for (int step = 1; step <= kSteps; ++step) {
        backward_of_rank(model, group, step - 1);
        optimizer->step();
        const auto now = static_cast<std::size_t>(step);
        std::int64_t begin = 0;
        for (const auto& [name, parameter] : model.named_parameters()) {
          if (!begins_with(parameter->detach().reshape({-1}), want[now], begin))
            throw Missing(text(size, " ranks, step ", step, ", rank ", group->rank(), ": the parameter ", name,
                               " differs from that of one process. ",
                               meaning_of({size, group->rank(), step, want[now - 1], flat(model), want[now]})));
          begin += parameter->numel();
        }
      }
    });
  }
  return "bitwise identical to Adam in one process";
}

std::string check_bytes() {
  constexpr int kRanks = 4;
  Links links;
  const ls::Trace trace = trace_of([&] {
    run_ranks(kRanks, [&](const Group& group) {
      Model model;
      const auto optimizer = exercises::make_sharded_adam(group, model, kRate);
      backward_of_rank(model, group, 0);
      group->traffic().begin_step();
      optimizer->step();
      add_step(links, group->traffic());
    });
  });
  const std::int64_t bytes = 4 * Model().elements(), least = 2 * (kRanks - 1) * bytes / kRanks;
  const std::int64_t most = least + 2 * (kRanks - 1) * 64;
  const Sent have = sent_by(links, 0);
  require(have.bytes >= least && have.bytes <= most, kRanks, " ranks: a rank sends ", have.bytes,
          " bytes in a step, expected ", least, " to ", most, ": a reduce-scatter and an all-gather",
          collectives(trace, 0, "all_reduce").empty() ? "" : text(". ", kAllReduce));
  return text(have.bytes, " bytes of a rank in a step, for ", bytes, " bytes of parameters");
}

std::string check_memory() {
  constexpr int kRanks = 8;
  std::int64_t kept = 0, parameters = 0;
  run_ranks(kRanks, [&](const Group& group) {
    Model model(400);  // so large that small allocations do not matter
    group->barrier();
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    group->barrier();
    const auto optimizer = exercises::make_sharded_adam(group, model, kRate);
    backward_of_rank(model, group, 0);
    optimizer->step();
    model.zero_grad();
    group->barrier();
    if (group->rank() == 0) {
      kept = (ls::allocator_stats().allocated_bytes - before) / kRanks;  // of all ranks, which are threads
      parameters = 4 * model.elements();
    }
    group->barrier();
  });
  require(2 * kept <= 3 * parameters, kRanks, " ranks: after a step a rank keeps ", kept, " bytes, expected ",
          3 * parameters / 2, " at most; the parameters have ", parameters);
  return text(kept, " bytes kept by a rank, for ", parameters, " bytes of parameters");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("an MLP 12 -> ", variant().hidden, " -> 5, ", kSamples, " samples on each rank"));
  return {{"2 and 4 ranks: bits",
           [] {
             return check_bits({2, 4});
           }},
          {"3 ranks: bits", [] { return check_bits({3}); }},
          {"bytes of a step", check_bytes},
          {"memory", check_memory}};
}

}  // namespace grader
