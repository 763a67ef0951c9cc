// Checkpoints in all modes of training: the file of any mode is the file of one process.
#pragma once

#include "lockstep/parallel/step/model_state_internal.h"

#include "tests/parallel/checkpoint/group_file.h"
#include "tests/parallel/step/same_bits.h"

// A model with a tied weight, a frozen parameter, a buffer, and a parameter of one element.
struct TiedNet : ls::nn::Module {
  ls::nn::Embedding& embed = add<ls::nn::Embedding>("embed", 7, 3);
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 3, 5);
  ls::nn::Parameter& head = add_parameter("head", embed.weight);
  ls::nn::Parameter& scale = add_parameter("scale", ls::ones({1}));
  ls::nn::Parameter& frozen = add_parameter("frozen", ls::full({2, 2}, 3.0));
  ls::nn::Buffer& mean = add_buffer("mean", ls::zeros({5}));
  TiedNet() {
    frozen->requires_grad_(false);
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = 0;
    for (const auto& entry : state_dict()) entry.second.copy_(numbers(entry.second.shape(), {}, ++salt));
  }
};

// A model whose parameters are cut into one 1-D piece for each rank, as if they lay one after another in a buffer that is
// padded to a multiple of the ranks. Pieces may be empty. The parameters keep their names in `net`.
struct PieceModel final : par::ModelState {
  struct Cut {
    std::string name;
    ls::nn::Parameter whole, piece;
    std::int64_t first;
  };

  PieceModel(TiedNet& net, const Group& group) : net(net), ranks(group) {
    std::int64_t total = 0, begin = 0;
    for (const ls::nn::Parameter& p : net.parameters()) total += p->numel();
    const std::int64_t share = (total + group->size() - 1) / group->size();
    const std::int64_t own_begin = share * group->rank(), own_end = own_begin + share;
    for (const auto& [name, parameter] : net.named_parameters()) {
      const std::int64_t numel = parameter->numel();
      const std::int64_t first = std::clamp<std::int64_t>(own_begin - begin, 0, numel);
      const std::int64_t end = std::clamp<std::int64_t>(own_end - begin, 0, numel);
      const ls::Tensor flat = parameter->detach().reshape({numel}).slice(0, first, end).clone();
      cuts.push_back({name, parameter, ls::nn::Parameter(flat), first});
      if (!parameter->requires_grad()) cuts.back().piece->requires_grad_(false);
      begin += numel;
    }
  }

  par::ProcessGroup* group() const override { return ranks.get(); }
  std::vector<par::StatePart> parts() const override {
    std::vector<par::StatePart> parts;
    for (const auto& [name, tensor] : net.state_dict()) {
      const auto* cut = cut_of(name);
      if (cut)
        parts.push_back({.name = name,
                         .part = cut->piece->detach(),
                         .shape = tensor.shape(),
                         .place = ls::TensorPart::whole(tensor.shape()).narrow(cut->first, cut->piece->numel())});
      else
        parts.push_back({.name = name,
                         .part = tensor,
                         .shape = tensor.shape(),
                         .place = ls::TensorPart::whole(tensor.shape()),
                         .is_saved = ranks->rank() == 0});
    }
    return parts;
  }
  ls::optim::NamedParameters parameters() const override {
    ls::optim::NamedParameters named;
    for (const Cut& cut : cuts) named.emplace_back(cut.name, cut.piece);
    return named;
  }
  void after_load() override { ++loads; }

  // The cut of an entry of state_dict, also under the second name of a tied parameter; null for a buffer.
  const Cut* cut_of(const std::string& name) const {
    for (const Cut& cut : cuts)
      if (cut.name == name || (name == "embed.weight" && cut.whole == net.embed.weight)) return &cut;
    return nullptr;
  }
  std::vector<ls::nn::Parameter> trained() const {
    std::vector<ls::nn::Parameter> result;
    for (const Cut& cut : cuts)
      if (cut.whole->requires_grad()) result.push_back(cut.piece);
    return result;
  }
  // Gives the pieces their parts of the gradients that set_gradients gives to whole parameters.
  void set_gradients(int step) const {
    for (const Cut& cut : cuts) {
      if (!cut.whole->requires_grad()) continue;
      const std::int64_t numel = cut.whole->numel(), first = cut.first;
      cut.piece->set_grad(gradient(cut.name, numel, step).slice(0, first, first + cut.piece->numel()).clone());
    }
  }
  static ls::Tensor gradient(const std::string& name, std::int64_t numel, int step) {
    return numbers({numel}, {}, static_cast<std::uint32_t>(name.size()) * 100 + static_cast<std::uint32_t>(step));
  }

  TiedNet& net;
  Group ranks;
  std::vector<Cut> cuts;
  int loads = 0;
};

// An optimizer and its scheduler.
template <class Optimizer, class Options>
struct Stepper {
  Stepper(const std::vector<ls::nn::Parameter>& parameters, const Options& options)
      : optimizer(parameters, options), schedule(optimizer, {.step_size = 2, .gamma = 0.5}) {}
  Optimizer optimizer;
  ls::optim::StepLR schedule;
};

inline std::vector<ls::nn::Parameter> trained(const TiedNet& net) {
  std::vector<ls::nn::Parameter> result;
  for (const ls::nn::Parameter& p : net.parameters())
    if (p->requires_grad()) result.push_back(p);
  return result;
}

inline void set_gradients(const TiedNet& net, int step) {
  for (const auto& [name, p] : net.named_parameters())
    if (p->requires_grad()) p->set_grad(PieceModel::gradient(name, p->numel(), step).reshape(p->shape()));
}

// Whole and sharded training write the same files, and both continue from either's file.
template <class Optimizer, class Options>
void check_pieces(const std::string& backend, const Options& options, const std::string& tag) {
  const auto step = [](const auto& model, auto& stepper, int begin, int end) {
    for (int i = begin; i < end; ++i) {
      if constexpr (std::is_same_v<std::decay_t<decltype(model)>, PieceModel>)
        model.set_gradients(i);
      else
        set_gradients(model, i);
      stepper.optimizer.step();
      stepper.schedule.step();
    }
  };
  const std::string at_3 = tag + "_3.safetensors", at_6 = tag + "_6.safetensors", ranks_file = tag + ".safetensors";
  {
    TiedNet net;
    ls::manual_seed(3);  // after the initial values: the count of those is in the file
    Stepper<Optimizer, Options> whole(trained(net), options);
    step(net, whole, 0, 3);
    net.mean->fill_(4);
    ls::save_checkpoint(at_3, {.model = &net, .optimizer = &whole.optimizer, .scheduler = &whole.schedule});
    step(net, whole, 3, 6);
    ls::save_checkpoint(at_6, {.model = &net, .optimizer = &whole.optimizer, .scheduler = &whole.schedule});
  }
  const std::string want_3 = content_of_file(at_3), want_6 = content_of_file(at_6);
  for (const int size : {1, 2, 3, 4}) {
    INFO(backend, " ", size, " ", tag);
    with_group(backend, size, [&](const Group& group) {
      TiedNet net, second;
      group->barrier();
      ls::manual_seed(3);
      const auto model = std::make_shared<PieceModel>(net, group);
      Stepper<Optimizer, Options> pieces(model->trained(), options);
      step(*model, pieces, 0, 3);
      net.mean->fill_(group->rank() == 0 ? 4 : 5);  // rank 0's buffers are saved
      const par::CheckpointParts parts = {
          .model = par::CheckpointModel(model), .optimizer = &pieces.optimizer, .scheduler = &pieces.schedule};
      par::save_checkpoint(ranks_file, parts);
      CHECK(content_of_file(ranks_file) == want_3);
      step(*model, pieces, 3, 6);
      par::save_checkpoint(ranks_file, parts);
      CHECK(content_of_file(ranks_file) == want_6);

      const auto other = std::make_shared<PieceModel>(second, group);
      Stepper<Optimizer, Options> resumed(other->trained(), options);
      par::load_checkpoint(
          at_3,
          {.model = par::CheckpointModel(other), .optimizer = &resumed.optimizer, .scheduler = &resumed.schedule});
      CHECK(other->loads == 1);
      CHECK(second.mean->to_vector<float>() == std::vector<float>(5, 4));
      step(*other, resumed, 3, 6);
      par::save_checkpoint(
          ranks_file,
          {.model = par::CheckpointModel(other), .optimizer = &resumed.optimizer, .scheduler = &resumed.schedule});
      CHECK(content_of_file(ranks_file) == want_6);
    });
    TiedNet net;
    Stepper<Optimizer, Options> whole(trained(net), options);
    ls::load_checkpoint(ranks_file, {.model = &net, .optimizer = &whole.optimizer, .scheduler = &whole.schedule});
    ls::save_checkpoint(ranks_file, {.model = &net, .optimizer = &whole.optimizer, .scheduler = &whole.schedule});
    CHECK(content_of_file(ranks_file) == want_6);
  }
}

inline void check_all_pieces(const std::string& backend) {
  using ls::optim::Adam, ls::optim::AdamW, ls::optim::SGD;
  check_pieces<AdamW>(backend, ls::optim::AdamWOptions{.lr = 0.1}, "adamw_" + backend);
  check_pieces<Adam>(backend, ls::optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1}, "adam_" + backend);
  check_pieces<SGD>(backend, ls::optim::SGDOptions{.lr = 0.1, .momentum = 0.9}, "momentum_" + backend);
  check_pieces<SGD>(backend, ls::optim::SGDOptions{.lr = 0.1}, "sgd_" + backend);
}

// An in_proj weight of three parts, whose rows are divided, a weight of divided columns, and a bias that all ranks have.
struct SlicedNet : ls::nn::Module {
  ls::nn::Parameter& in_proj = add_parameter("in_proj", numbers({24, 5}, {}, 1));
  ls::nn::Parameter& down = add_parameter("down", numbers({5, 8}, {}, 2));
  ls::nn::Parameter& bias = add_parameter("bias", numbers({5}, {}, 3));
};

// One rank's slices of a SlicedNet.
struct SliceModel final : par::ModelState {
  SliceModel(const SlicedNet& net, const Group& group) : ranks(group) {
    const int rank = group->rank(), size = group->size();
    add("in_proj", slice_of(net.in_proj->detach(), 0, rank, size, 3), {24, 5},
        ls::TensorPart::slice({24, 5}, 0, rank, size, 3));
    add("down", slice_of(net.down->detach(), 1, rank, size), {5, 8}, ls::TensorPart::slice({5, 8}, 1, rank, size));
    add("bias", net.bias->detach(), {5}, ls::TensorPart::whole({5}));
    own.back().is_saved = rank == 0;
  }
  void add(const std::string& name, const ls::Tensor& values, const ls::Shape& shape, const ls::TensorPart& place) {
    named.emplace_back(name, ls::nn::Parameter(values.clone()));
    own.push_back({.name = name, .part = named.back().second->detach(), .shape = shape, .place = place});
  }
  par::ProcessGroup* group() const override { return ranks.get(); }
  std::vector<par::StatePart> parts() const override { return own; }
  ls::optim::NamedParameters parameters() const override { return named; }

  Group ranks;
  ls::optim::NamedParameters named;
  std::vector<par::StatePart> own;
};

// Steps of AdamW on the slices that 1, 2 and 4 ranks have: the files are those of one process, and each continues from
// either's file.
inline void check_slices(const std::string& backend) {
  const auto gradient = [](const std::string& name, const ls::Shape& shape, int step) {
    return numbers(shape, {}, static_cast<std::uint32_t>(name.size()) * 100 + static_cast<std::uint32_t>(step));
  };
  const auto step_whole = [&](const SlicedNet& net, ls::optim::AdamW& optimizer, int step) {
    for (const auto& [name, p] : net.named_parameters()) p->set_grad(gradient(name, p->shape(), step));
    optimizer.step();
  };
  const auto step_slices = [&](const SliceModel& model, ls::optim::AdamW& optimizer, int step) {
    const int rank = model.ranks->rank(), size = model.ranks->size();
    const auto set = [&](std::size_t p, const ls::Tensor& grad) { model.named[p].second->set_grad(grad.clone()); };
    set(0, slice_of(gradient("in_proj", {24, 5}, step), 0, rank, size, 3));
    set(1, slice_of(gradient("down", {5, 8}, step), 1, rank, size));
    set(2, gradient("bias", {5}, step));
    optimizer.step();
  };
  const auto all_of = [](const SlicedNet& net) { return net.parameters(); };
  const auto all_slices = [](const SliceModel& model) {
    std::vector<ls::nn::Parameter> all;
    for (const auto& each : model.named) all.push_back(each.second);
    return all;
  };
  std::string want[2];
  {
    ls::manual_seed(3);
    SlicedNet net;
    ls::optim::AdamW optimizer(all_of(net), {.lr = 0.1});
    for (const int step : {0, 1}) {
      step_whole(net, optimizer, step);
      const std::string path = "whole_" + std::to_string(step) + ".safetensors";
      ls::save_checkpoint(path, {.model = &net, .optimizer = &optimizer});
      want[step] = content_of_file(path);
    }
  }
  for (const int size : {1, 2, 4}) {
    INFO(backend, " ", size);
    with_group(backend, size, [&](const Group& group) {
      group->barrier();
      ls::manual_seed(3);
      const SlicedNet net;
      const auto model = std::make_shared<SliceModel>(net, group), other = std::make_shared<SliceModel>(net, group);
      ls::optim::AdamW optimizer(all_slices(*model), {.lr = 0.1}), resumed(all_slices(*other), {.lr = 0.1});
      step_slices(*model, optimizer, 0);
      par::save_checkpoint("sliced.safetensors", {.model = par::CheckpointModel(model), .optimizer = &optimizer});
      CHECK(content_of_file("sliced.safetensors") == want[0]);
      group->barrier();
      par::load_checkpoint("whole_0.safetensors", {.model = par::CheckpointModel(other), .optimizer = &resumed});
      step_slices(*other, resumed, 1);
      par::save_checkpoint("sliced.safetensors", {.model = par::CheckpointModel(other), .optimizer = &resumed});
      CHECK(content_of_file("sliced.safetensors") == want[1]);
    });
  }
}

// Trains `steps` steps of 4 micro-batches, of which this rank has `count` from `first` on.
template <class Run>
void train(Run& run, Everything& model, ls::optim::Optimizer& optimizer, ls::optim::Scheduler& schedule, int first,
           int count, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const std::int64_t rows = 3;
    const auto tokens = [&](std::uint32_t salt) {
      const ls::Tensor all = (ls::abs(numbers({4 * rows}, {.dtype = ls::kFloat64}, salt)) * 11.9).to(ls::kInt64);
      return all.narrow(0, first * rows, count * rows);
    };
    optimizer.zero_grad();
    ls::nn::CrossEntropyLoss criterion;
    run.backward(tokens(static_cast<std::uint32_t>(2 * i + 1)), tokens(static_cast<std::uint32_t>(2 * i + 2)),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
    optimizer.step();
    schedule.step();
  }
}

// Trains to step 3, saves `path`, trains to step 6 and saves `path` again. With `from`, starts with that file at step 3.
template <class MakeRun>
void save_twice(MakeRun make_run, int first, int count, const std::string& path, const std::string& from = "") {
  ls::manual_seed(7);
  Everything model;
  auto run = make_run(model);
  ls::optim::AdamW optimizer(run->parameters(), {.lr = 1e-2});
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 10});
  const par::CheckpointParts parts = {.model = run.get(), .optimizer = &optimizer, .scheduler = &schedule};
  if (from.empty()) {
    train(*run, model, optimizer, schedule, first, count, 0, 3);
    par::save_checkpoint(path + "_3", parts);
  } else {
    par::load_checkpoint(from, parts);
  }
  train(*run, model, optimizer, schedule, first, count, 3, 6);
  par::save_checkpoint(path + "_6", parts);
}

inline auto accumulation() {
  return [](Everything& model) {
    return std::make_unique<par::GradientAccumulation>(model, par::GradientAccumulationOptions{.micro_batches = 4});
  };
}
inline auto data_parallel() {
  return [](Everything& model) { return std::make_unique<par::DataParallel>(model, virtual_devices(4)); };
}
inline auto distributed(const Group& group) {
  return [group](Everything& model) {
    return std::make_unique<par::DistributedDataParallel>(
        model, group,
        par::DistributedDataParallelOptions{.bucket_cap_mb = 1e-4, .micro_batches_per_rank = 4 / group->size()});
  };
}
