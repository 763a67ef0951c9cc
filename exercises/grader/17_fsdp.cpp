// Exercise 17: the parameters that units get, the bits of a training run, the bytes of a step, the memory whenever a unit
// computes, and from the trace of a step the gathers in flight at the end of each computation.
#include "17_fsdp.h"

#include <algorithm>
#include <numeric>

namespace grader {
namespace {

// --- values ----------------------------------------------------------------------------------------------------------
bool is_close(const ls::Tensor& have, const ls::Tensor& want, double error = 1e-5) {
  return (ls::abs(have - want).max() / ls::abs(want).max()).item<double>() <= error;  // false if it is NaN
}

// The position in `whole` of the elements that `have` begins with; -1: none.
std::int64_t place_of(const ls::Tensor& have, const ls::Tensor& whole) {
  for (std::int64_t begin = 0; begin + 8 < whole.numel(); ++begin)
    if (begins_with(have, whole, begin)) return begin;
  return -1;
}

// The shard of `rank` of a flat tensor.
ls::Tensor shard_of(const ls::Tensor& whole, const Variant& v, int rank) {
  const std::int64_t own = (whole.numel() + v.ranks - 1) / v.ranks;
  return ls::cat({whole, ls::zeros({own * v.ranks - whole.numel()})}).slice(0, rank * own, (rank + 1) * own);
}

// Throws Missing unless `have` is a unit's parameters. `where`: "step 1, forward of unit 2: ".
void require_parameters(const std::string& where, const ls::Tensor& have, int unit, int step, int rank,
                        const Variant& v, const Truth& truth) {
  const auto at = static_cast<std::size_t>(unit), now = static_cast<std::size_t>(step);
  const ls::Tensor& want = truth.parameters[now][at];
  if (begins_with(have, want)) return;
  for (std::size_t other = 0; other < truth.parameters[now].size(); ++other)
    require(other == at || !begins_with(have.slice(0, 0, 64), truth.parameters[now][other]), where,
            "These are the parameters of unit ", other,
            ". The memory has been that unit's: gather this one again, and wait for the gather");
  require(step == 0 || !begins_with(have, truth.parameters[now - 1][at]), where,
          "These are the parameters of the step before: the optimizer has changed the shards since");
  const std::int64_t own = (want.numel() + v.ranks - 1) / v.ranks;
  for (int other = 0; other < v.ranks; ++other) {
    const std::int64_t begin = other * own, end = std::min(begin + own, want.numel());
    if (!begins_with(have.slice(0, begin, end), want.slice(0, begin, end)))
      throw Missing(text(where, "On rank ", rank, " the part of rank ", other,
                         " differs from its shard. Is the gather launched, and waited for?"));
  }
}

std::string meaning_of_gradient(const ls::Tensor& have, const ls::Tensor& whole, const Variant& v, int rank) {
  const ls::Tensor want = shard_of(whole, v, rank);
  if (is_close(have, want * static_cast<double>(v.ranks)))
    return text("It is ", v.ranks, " times too large: this is the sum of the ranks' gradients");
  if (is_close(have, want)) return kLastBits;
  const std::int64_t begin = place_of(have, whole);
  if (begin >= 0) return text("It is that of the elements from ", begin, " on");
  return "It is not the mean of all ranks' gradients, and this is none of the common mistakes";
}

// --- shards ----------------------------------------------------------------------------------------------------------
// The shards, which have the expected shapes.
std::vector<ls::nn::Parameter> shards_of(const exercises::Fsdp& fsdp, const Variant& v) {
  std::vector<ls::nn::Parameter> shards = fsdp.shards();
  require(shards.size() == v.layers().size(), "shards() returns ", shards.size(),
          " parameters, expected one for each of ", v.layers().size(), " units");
  for (const Layer& layer : v.layers()) {
    const ls::Tensor have = shards[static_cast<std::size_t>(layer.index)]->detach();
    const std::int64_t own = v.shard(layer);
    require(have.shape() == ls::Shape{own} && have.dtype() == ls::kFloat32, "unit ", layer.index, ": the shard is ",
            have.shape().to_string(), ", expected ", ls::Shape{own}.to_string(), " f32: the unit has ",
            layer.elements(), " elements, with padding ", own * v.ranks);
  }
  return shards;
}

std::string check_shards() {
  const Variant v = variant();
  std::int64_t elements = 0;
  for (const Layer& layer : v.layers()) elements += v.shard(layer);
  run_ranks(v.ranks, [&](const Group& group) {
    const auto fsdp = exercises::make_fsdp(group, units_of(v, [](const auto&...) {}));
    const std::vector<ls::nn::Parameter> shards = shards_of(*fsdp, v);
    for (const Layer& layer : v.layers()) {
      const ls::Tensor have = shards[static_cast<std::size_t>(layer.index)]->detach(), whole = layer.initial();
      const std::int64_t own = v.shard(layer), begin = own * group->rank();
      const std::string where = text("unit ", layer.index, ", rank ", group->rank(), ": ");
      if (begins_with(have, shard_of(whole, v, group->rank()))) continue;
      const std::int64_t place = place_of(have, whole);
      require(place < 0 || place == begin, where, "the shard begins with element ", place, " of the unit, expected ",
              begin);
      throw Missing(text(where, "the shard has other values than elements ", begin, " to ", begin + own - 1,
                         " of the unit with zeros as padding"));
    }
  });
  return text(elements, " elements on each of ", v.ranks, " ranks, of ", v.layers().size(), " units");
}

// --- what the units get ----------------------------------------------------------------------------------------------
std::string check_parameters() {
  const Variant v = variant();
  const Truth truth(v);
  run_ranks(v.ranks, [&](const Group& group) {
    int step = 0, computed = 0;
    const auto fsdp =
        exercises::make_fsdp(group, units_of(v, [&](const std::string& pass, int unit, const ls::Tensor& parameters) {
                               const std::string where = text("step ", step + 1, ", ", pass, " of unit ", unit, ": ");
                               require_parameters(where, parameters, unit, step, group->rank(), v, truth);
                               ++computed;
                             }));
    const std::vector<ls::nn::Parameter> shards = shards_of(*fsdp, v);
    for (; step < 2; ++step) {
      for (std::size_t i = 0; i < shards.size(); ++i) {
        const ls::NoGradGuard no_grad;
        shards[i]->copy_(shard_of(truth.parameters[static_cast<std::size_t>(step)][i], v, group->rank()));
      }
      run_step(*fsdp, group, v, step);
    }
    require(computed == 4 * static_cast<int>(shards.size()), "units have computed ", computed,
            " times in two steps, expected ", 4 * shards.size(), ": forward and backward of each");
  });
  return "in forward and in backward, of two steps";
}

// --- bits ------------------------------------------------------------------------------------------------------------
std::string check_bits() {
  const Variant v = variant();
  const Truth truth(v);
  run_ranks(v.ranks, [&](const Group& group) {
    const int rank = group->rank();
    const auto fsdp = exercises::make_fsdp(group, units_of(v, [](const auto&...) {}));
    const std::vector<ls::nn::Parameter> shards = shards_of(*fsdp, v);
    ls::optim::Adam optimizer(shards, {.lr = kRate});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      run_step(*fsdp, group, v, step);
      const auto now = static_cast<std::size_t>(step);
      for (const Layer& layer : v.layers()) {
        const auto at = static_cast<std::size_t>(layer.index);
        const std::string where =
            text("step ", step + 1, ", rank ", rank, ": the gradient of the shard of unit ", at, " ");
        const ls::Tensor have = shards[at]->grad(), &want = truth.gradients[now][at];
        require(have.defined(), where, "is not set");
        if (!begins_with(have, want, v.shard(layer) * rank))
          throw Missing(where + "differs from that of one process. " + meaning_of_gradient(have, want, v, rank));
      }
      optimizer.step();
      for (const Layer& layer : v.layers()) {
        const auto at = static_cast<std::size_t>(layer.index);
        require(begins_with(shards[at]->detach(), truth.parameters[now + 1][at], v.shard(layer) * rank), "step ",
                step + 1, ", rank ", rank, ": after Adam's step the shard of unit ", at,
                " differs from that of one process");
      }
    }
  });
  return text(kSteps, " steps of Adam on ", v.ranks, " ranks, bitwise identical to one process");
}

// --- bytes -----------------------------------------------------------------------------------------------------------
ls::Trace trace_step(const Variant& v) {
  return trace_of([&] {
    run_ranks(v.ranks, [&](const Group& group) {
      const auto fsdp = exercises::make_fsdp(group, units_of(v, [](const auto&...) {}));
      run_step(*fsdp, group, v, 0);
    });
  });
}

std::string meaning_of_bytes(const Variant& v) {
  const ls::Trace trace = trace_step(v);
  const std::size_t units = v.layers().size(), gathers = collectives(trace, 0, "all_gather").size();
  if (!collectives(trace, 0, "all_reduce").empty()) return kAllReduce;
  if (gathers == 2 * units)
    return "Every unit is gathered twice. The last one need not be: its backward follows its forward";
  if (gathers <= units)
    return text(gathers, " all-gathers for ", units, " units: is none gathered again for backward?");
  return text(gathers, " all-gathers and ", collectives(trace, 0, "reduce_scatter").size(), " reduce-scatters of ",
              units, " units");
}

std::string check_bytes() {
  const Variant v = variant();
  Links links;
  run_ranks(v.ranks, [&](const Group& group) {
    const auto fsdp = exercises::make_fsdp(group, units_of(v, [](const auto&...) {}));
    group->barrier();
    group->traffic().begin_step();
    run_step(*fsdp, group, v, 0);
    add_step(links, group->traffic());
  });
  std::int64_t sum = 0;
  for (const Layer& layer : v.layers()) sum += 4 * (v.ranks - 1) * v.shard(layer);
  const std::int64_t gathers = 2 * sum - 4 * (v.ranks - 1) * v.shard(v.layers().back()), want = gathers + sum;
  for (int rank = 0; rank < v.ranks; ++rank) {
    const std::int64_t have = sent_by(links, rank).bytes;
    if (have != want)
      throw Missing(text("rank ", rank, " sends ", have, " bytes in a step, expected ", want, ": ", gathers,
                         " of parameters, ", sum, " of gradients. ", meaning_of_bytes(v)));
  }
  return text(want, " bytes of a rank in a step: ", gathers, " of parameters, ", sum, " of gradients");
}

// --- memory ----------------------------------------------------------------------------------------------------------
std::int64_t bytes_in_use() {
  const ls::AllocatorStats stats = ls::allocator_stats();
  return stats.allocated_bytes + stats.communication_bytes;
}

// The bytes are those of all ranks, which are threads, while all of them are at the same place. Three of the smallest
// units are larger than two of the largest and a third of one for activations, and four are larger than three: so one
// unit too many is found.
std::string check_memory() {
  const Variant v = variant();
  std::vector<std::int64_t> shards, units;
  for (const Layer& layer : v.layers()) {
    shards.push_back(4 * v.shard(layer));
    units.push_back(4 * v.shard(layer) * v.ranks);
  }
  const auto sum_from = [&](std::size_t first) {
    return std::accumulate(shards.begin() + static_cast<std::ptrdiff_t>(first), shards.end(), std::int64_t{0});
  };
  const std::int64_t largest = std::ranges::max(units), activations = std::ranges::min(units) / 3;
  std::int64_t most = 0;
  run_ranks(v.ranks, [&](const Group& group) {
    const Group all = group->duplicate();
    std::int64_t before = 0;
    // Throws Missing if a rank has more than the shards, `gradients` bytes of their gradients, and `whole` units.
    const auto require_bytes = [&](const std::string& where, std::int64_t gradients, int whole,
                                   const std::string& advice) {
      all->barrier();
      const std::int64_t have = (bytes_in_use() - before) / v.ranks - sum_from(0) - gradients;
      all->barrier();
      if (group->rank() == 0) most = std::max(most, have);
      const std::int64_t limit = whole * largest + activations;
      require(have <= limit, where, "a rank has ", have, " bytes besides its shards",
              gradients > 0 ? " and their gradients" : "", ", expected at most ", limit, ": ", whole,
              " units and the activations. ", advice);
    };
    const auto on_compute = [&](const std::string& pass, int unit, const ls::Tensor&) {
      const std::string where = text(pass, " of unit ", unit, ": ");
      if (pass == "backward")
        require_bytes(
            where, sum_from(static_cast<std::size_t>(unit) + 1), 3,
            "Needed are the parameters of two units and the gradients of one: release parameters after backward, and "
            "keep no gradients but those of shards");
      else if (unit == 0)
        require_bytes(where, 0, 2, "Too many units are gathered at the start: units 0 and 1 are needed");
      else
        require_bytes(where, 0, 2, "Between its forward and its backward no unit but the last is needed: release it");
    };
    const auto model = units_of(v, on_compute);
    all->barrier();
    before = bytes_in_use();
    all->barrier();
    const auto fsdp = exercises::make_fsdp(group, model);
    require_bytes("make_fsdp: ", 0, 2, "A slice shares the memory of the whole tensor: clone it");
    run_step(*fsdp, group, v, 0);
    require_bytes("after the step: ", sum_from(0), 2, "Release every unit");
  });
  return text(most, " bytes of a rank besides its shards, at most; the largest unit has ", largest);
}

// --- prefetch --------------------------------------------------------------------------------------------------------
// A computation of a unit.
struct Computation {
  std::string name;  // "forward of unit 2"
  int unit = 0;
  std::size_t gather = 0;  // position of the gather of its parameters in a step
};

std::vector<Computation> computations(int units) {
  std::vector<Computation> all;
  for (int unit = 0; unit < units; ++unit)
    all.push_back({.name = text("forward of unit ", unit), .unit = unit, .gather = static_cast<std::size_t>(unit)});
  for (int unit = units - 1; unit >= 0; --unit)
    all.push_back({.name = text("backward of unit ", unit),
                   .unit = unit,
                   .gather = static_cast<std::size_t>(2 * (units - 1) - unit)});
  return all;
}

// Only the order of events on one thread counts, not their duration.
std::string check_prefetch() {
  const Variant v = variant();
  const ls::Trace trace = trace_step(v);
  const int units = static_cast<int>(v.layers().size()), wanted = 2 * units - 1;
  const std::vector<Computation> all = computations(units);
  for (int rank = 0; rank < v.ranks; ++rank) {
    const std::vector<ls::TraceEvent> gathers = collectives(trace, rank, "all_gather");
    require(gathers.size() == static_cast<std::size_t>(wanted), "rank ", rank, " has waited for ", gathers.size(),
            " all-gathers, expected ", wanted, ": each unit in forward, all but the last one in backward");
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto span = std::ranges::find_if(trace.events, [&](const ls::TraceEvent& event) {
        return event.kind == ls::TraceKind::kUser && event.thread == gathers[0].thread && event.name == all[i].name;
      });
      require(span != trace.events.end(), "rank ", rank, ": there is no ", all[i].name);
      require(gathers[all[i].gather].end <= span->begin, all[i].name,
              ": it begins before the rank has waited for its parameters");
      if (i + 1 == all.size() || all[i + 1].gather == all[i].gather) continue;
      const ls::TraceEvent& next = gathers[all[i + 1].gather];
      require(next.begin < span->end, all[i].name, ": the gather of unit ", all[i + 1].unit,
              " is launched after it, so nothing hides the gather. Launch it before");
      require(next.end > span->end, all[i].name, ": the rank waits for the gather of unit ", all[i + 1].unit,
              " before it. Launch the gather only, and wait when unit ", all[i + 1].unit, " begins");
    }
  }
  return text(wanted - 1, " gathers of ", wanted,
              " were in flight while another unit computed, the most that is possible");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const Variant v = variant();
  std::string sizes;
  for (const Layer& layer : v.layers()) sizes += text(layer.index > 0 ? ", " : "", layer.elements());
  print_task(text(v.ranks, " ranks; units of ", sizes, " elements"));
  return {{"shards", check_shards}, {"gathered parameters", check_parameters},
          {"bits", check_bits},     {"bytes", check_bytes},
          {"memory", check_memory}, {"prefetch", check_prefetch}};
}

}  // namespace grader
