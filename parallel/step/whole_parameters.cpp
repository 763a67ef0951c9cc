// A model that tensor or pipeline parallelism has cut, whole for a while.

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"
#include "lockstep/parallel/step/step.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// The slices that this rank has of a parameter, and the whole parameter.
struct JoinedParameter {
  std::vector<nn::Parameter> slices;
  std::shared_ptr<nn::Parameter> whole;
  std::uint64_t version = 0;  // of the whole parameter's values

  const nn::ParameterSlice& first() const { return *slices[0].slice(); }
  bool has_changed(const Storage* storage) const {
    const Storage* const now = whole->master().impl().storage.get();
    return now != storage || now->version() != version;
  }
};

// Where a module lists the slices of a parameter.
struct ListedSlices {
  nn::Module* module;
  std::string name;                 // of the whole parameter in the module
  std::vector<std::string> listed;  // of the slices
  std::size_t parameter = 0;        // in `parameters`
};

struct JoinedModel {
  std::vector<JoinedParameter> parameters;  // in the order of the model
  std::vector<ListedSlices> places;         // those of a tied parameter have the same one
};

JoinedModel joined_model(nn::Module& root) {
  JoinedModel model;
  std::map<const nn::TensorSlot*, std::size_t> known;  // by the first slice
  for (nn::Module* const module : root.modules()) {
    for (const auto& [listed, parameter] : module->named_parameters()) {
      if (!parameter.slice() || !nn::module_path(listed).empty()) continue;
      std::string name = nn::ListedTensor{.name = listed, .tensor = {}, .slice = parameter.slice()}.whole_name();
      ListedSlices* const last = model.places.empty() ? nullptr : &model.places.back();
      if (last && last->module == module && last->name == name) {
        last->listed.push_back(listed);
        std::vector<nn::Parameter>& slices = model.parameters[last->parameter].slices;
        if (std::ranges::find(slices, parameter) == slices.end()) slices.push_back(parameter);
        continue;
      }
      const auto [found, is_new] = known.emplace(parameter.id(), model.parameters.size());
      if (is_new) model.parameters.push_back({.slices = {parameter}, .whole = nullptr});
      model.places.push_back(
          {.module = module, .name = std::move(name), .listed = {listed}, .parameter = found->second});
    }
  }
  return model;
}

// Copies elements to their places in a whole tensor, both contiguous and of one dimension.
void put_in_whole(const Tensor& elements, const TensorPart& part, const Tensor& whole) {
  if (part.begin == 0 && part.run > 0 && part.numel % part.run == 0) {
    const Shape shape{part.numel / part.run, part.run};
    raw::copy(raw::view(elements, shape), raw::as_strided(whole, shape, {part.stride, 1}, part.first));
    return;
  }
  std::int64_t at = 0;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const auto [first, count] = part.run_at(k);
    raw::copy(raw::slice(elements, 0, at, at + count, 1), raw::slice(whole, 0, first, first + count, 1));
    at += count;
  }
}

// The parts of each parameter that each rank has.
using Parts = std::vector<TensorPart>;
using PartsOfRanks = std::vector<std::vector<Parts>>;  // [rank][parameter]

// Ranks may have different numbers of slices of a parameter. A null group: this rank alone.
PartsOfRanks parts_of_ranks(const JoinedModel& model, ProcessGroup* group) {
  constexpr std::size_t kFields = 5;
  std::vector<std::int64_t> counts;
  for (const JoinedParameter& each : model.parameters) counts.push_back(static_cast<std::int64_t>(each.slices.size()));
  const Tensor gathered_counts = gather_numbers(group, counts);
  const std::span<const std::int64_t> all_counts = gathered_counts.span<std::int64_t>();
  const std::size_t parameters = counts.size(), ranks = all_counts.size() / parameters;
  for (std::size_t i = 0; i < all_counts.size(); ++i)
    counts[i % parameters] = std::max(counts[i % parameters], all_counts[i]);

  std::vector<std::int64_t> own;  // as many of a parameter as the rank with most has; the rest are 0
  for (std::size_t p = 0; p < parameters; ++p) {
    const std::size_t begin = own.size();
    for (const nn::Parameter& slice : model.parameters[p].slices) {
      const TensorPart& part = slice.slice()->part;
      own.insert(own.end(), {part.first, part.run, part.stride, part.begin, part.numel});
    }
    own.resize(begin + kFields * static_cast<std::size_t>(counts[p]));
  }
  const Tensor gathered = gather_numbers(group, own);
  const std::span<const std::int64_t> all = gathered.span<std::int64_t>();
  PartsOfRanks of_ranks(ranks, std::vector<Parts>(parameters));
  for (std::size_t r = 0, i = 0; r < ranks; ++r) {
    for (std::size_t p = 0; p < parameters; ++p) {
      for (std::int64_t k = 0; k < counts[p]; ++k, i += kFields) {
        if (k < all_counts[r * parameters + p])
          of_ranks[r][p].push_back({all[i], all[i + 1], all[i + 2], all[i + 3], all[i + 4]});
      }
    }
  }
  return of_ranks;
}

// The values of parameter `p`, of which the ranks have these parts.
Tensor whole_values(const JoinedParameter& cut, const PartsOfRanks& of_ranks, std::size_t p, ProcessGroup* group) {
  const Tensor& like = cut.slices[0].master();
  std::int64_t most = 0;  // elements of a rank
  for (const std::vector<Parts>& of_rank : of_ranks) {
    std::int64_t elements = 0;
    for (const TensorPart& part : of_rank[p]) elements += part.numel;
    most = std::max(most, elements);
  }
  const Tensor own = raw::full({most}, 0, like.options());
  std::int64_t at = 0;
  for (const nn::Parameter& slice : cut.slices) {
    const std::int64_t numel = slice.slice()->part.numel;
    raw::copy(raw::reshape(slice.master().detach(), {numel}), raw::slice(own, 0, at, at + numel, 1));
    at += numel;
  }
  const auto ranks = static_cast<std::int64_t>(of_ranks.size());
  Tensor all = raw::view(own, {1, most});
  if (group) {
    all = raw::empty({ranks, most}, like.options());
    group->all_gather(all, own, {.phase = Phase::kParameters, .name = cut.first().name})->wait();
  }
  const Tensor flat = raw::view(all, {ranks * most}), whole = raw::full({cut.first().shape.numel()}, 0, like.options());
  for (std::int64_t r = 0; r < ranks; ++r) {
    at = r * most;
    for (const TensorPart& part : of_ranks[static_cast<std::size_t>(r)][p]) {
      put_in_whole(raw::slice(flat, 0, at, at + part.numel, 1), part, whole);
      at += part.numel;
    }
  }
  return raw::view(whole, cut.first().shape);
}

void join_slices(JoinedModel& model, ProcessGroup* group) {
  const NoGradGuard no_grad;
  const PartsOfRanks of_ranks = parts_of_ranks(model, group);
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    JoinedParameter& each = model.parameters[p];
    each.whole = std::make_shared<nn::Parameter>(whole_values(each, of_ranks, p, group));
    each.whole->master().requires_grad_(each.slices[0].master().requires_grad());
  }
}

void list_whole(const JoinedModel& model) {
  for (const ListedSlices& place : model.places) {
    for (const std::string& listed : place.listed) nn::set_parameter(*place.module, listed, nn::Parameter(Tensor()));
    nn::set_parameter(*place.module, place.name, *model.parameters[place.parameter].whole);
  }
}

void list_slices(const JoinedModel& model) {
  for (const ListedSlices& place : model.places) {
    nn::set_parameter(*place.module, place.name, nn::Parameter(Tensor()));
    const std::vector<nn::Parameter>& slices = model.parameters[place.parameter].slices;
    for (std::size_t j = 0; j < slices.size(); ++j) nn::set_parameter(*place.module, place.listed[j], slices[j]);
  }
}

// Takes away the runners of slices while it exists.
class WithoutRunners {
 public:
  explicit WithoutRunners(nn::Module& root) {
    for (nn::Module* const module : root.modules()) {
      std::vector<std::shared_ptr<const nn::ModuleRunner>> runners = nn::runners_of(*module);
      if (runners.empty()) continue;
      for (const auto& runner : runners) {
        const auto* const shared = dynamic_cast<const SharedRunner*>(runner.get());
        if (shared && shared->part == SharedRunner::Part::kModel) nn::remove_runner(*module, shared);
      }
      taken_.emplace_back(module, std::move(runners));
    }
  }
  ~WithoutRunners() {
    for (const auto& [module, runners] : taken_) nn::set_runners(*module, runners);
  }
  WithoutRunners(const WithoutRunners&) = delete;
  WithoutRunners& operator=(const WithoutRunners&) = delete;

 private:
  std::vector<std::pair<nn::Module*, std::vector<std::shared_ptr<const nn::ModuleRunner>>>> taken_;
};

void with_whole_slices(nn::Module& module, FunctionRef<void()> body) {
  JoinedModel model = joined_model(module);
  if (model.places.empty()) return body();
  const std::shared_ptr<const SharedRunner> cut = model_runner(module);
  join_slices(model, cut ? cut->group.get() : nullptr);
  std::vector<Ref<Storage>> storages;
  for (JoinedParameter& each : model.parameters) {
    storages.push_back(each.whole->master().impl().storage);
    each.version = storages.back()->version();
  }
  {
    const WithoutRunners without_runners(module);
    const Finally again([&] { list_slices(model); });
    list_whole(model);
    body();
  }
  for (std::size_t p = 0; p < model.parameters.size(); ++p)
    LOCKSTEP_CHECK(!model.parameters[p].has_changed(storages[p].get()),
                   "{} was changed inside gathered, and the change is lost; change a model that tensor parallelism has "
                   "cut by its optimizer or by parallel::load_checkpoint",
                   model.parameters[p].first().name);
}

}  // namespace

// The slices of all stages first, so that they are joined with those of this rank's.
void with_whole_parameters(nn::Module& module, FunctionRef<void()> body) {
  const std::shared_ptr<const StageRunner> stages = stage_runner(module);
  if (!stages) return with_whole_slices(module, body);
  stages->with_all_stages([&] { with_whole_slices(module, body); });
}

}  // namespace lockstep::parallel
