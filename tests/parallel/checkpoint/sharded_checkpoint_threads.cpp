// Checkpoints of ranks that are threads.
#include "tests/parallel/checkpoint/sharded_checkpoint.h"

TEST_CASE("pieces on 1 to 4 ranks are saved as the file of one process, and loaded from it") {
  check_all_pieces("local");
}

TEST_CASE("slices of parameters on 1, 2 and 4 ranks are saved as the file of one process, and loaded from it") {
  check_slices("local");
}

TEST_CASE("an error of a load on one rank is an error on all ranks, and changes nothing on any") {
  TiedNet source;
  ls::optim::AdamW saved(trained(source), {.lr = 0.5});
  set_gradients(source, 0);
  saved.step();
  ls::save_checkpoint("good.safetensors", {.model = &source, .optimizer = &saved});
  ls::save(ls::load("good.safetensors"), "plain.safetensors");
  ls::save_checkpoint("model.safetensors", {.model = &source});
  ls::Metadata metadata;
  const ls::StateDict good = ls::load("good.safetensors", &metadata);
  const auto broken = [&](const std::string& path, const std::string& key, const ls::Tensor& value) {
    ls::StateDict dict;
    for (const auto& [name, tensor] : good) {
      if (name != key || value.defined()) dict.insert(name, name == key ? value : tensor);
    }
    ls::save(dict, path, metadata);
  };
  broken("shape.safetensors", "model.fc.weight", ls::zeros({3, 5}));
  broken("state.safetensors", "optimizer.state.head.exp_avg", ls::zeros({3, 7}));
  broken("missing.safetensors", "model.mean", {});
  broken("random.safetensors", "random.state", ls::tensor({1, 2}));
  std::string bytes = content_of_file("good.safetensors");
  bytes[bytes.size() - 40] ^= 1;
  std::ofstream("damaged.safetensors", std::ios::binary) << bytes;
  std::ofstream("cut.safetensors", std::ios::binary) << bytes.substr(0, bytes.size() - 1);

  struct Case {
    std::string path, other_path, expected;  // other_path: of the last rank
  };
  for (const Case& c : std::vector<Case>{{"absent.safetensors", "", "absent.safetensors: cannot open"},
                                         {"good.safetensors", "absent.safetensors", "absent.safetensors: cannot open"},
                                         {"good.safetensors", "model.safetensors", "reads another file than rank 0"},
                                         {"plain.safetensors", "", "not a checkpoint"},
                                         {"model.safetensors", "", "\"optimizer.\""},
                                         {"shape.safetensors", "", "\"model.fc.weight\": the model has (5, 3)"},
                                         {"state.safetensors", "", "the model has (7, 3), the file (3, 7)"},
                                         {"missing.safetensors", "", "1 missing: \"mean\""},
                                         {"random.safetensors", "", "2 numbers are not a state"},
                                         {"damaged.safetensors", "", "the file is damaged"},
                                         {"cut.safetensors", "", "truncated"}}) {
    INFO(c.path, " ", c.other_path);
    with_group("local", 3, [&](const Group& group) {
      TiedNet net;
      const auto model = std::make_shared<PieceModel>(net, group);
      ls::optim::AdamW optimizer(model->trained(), {.lr = 0.25});
      const auto hash = [&] {
        std::vector<double> all;
        for (const par::StatePart& part : model->parts())
          for (const double value : part.part.to_vector<double>()) all.push_back(value);
        return all;
      };
      group->barrier();  // threads share the random state, which initial values change
      const std::vector<double> before = hash();
      const std::vector<std::uint64_t> random = ls::random::state();
      const std::string path = group->rank() == 2 && !c.other_path.empty() ? c.other_path : c.path;
      const std::string text = error_of<ls::Error>(
          [&] { par::load_checkpoint(path, {.model = par::CheckpointModel(model), .optimizer = &optimizer}); });
      CHECK_MESSAGE(contains(text, c.expected), text);
      CHECK(hash() == before);
      CHECK(ls::random::state() == random);
      CHECK(optimizer.lr() == 0.25);
      CHECK(optimizer.state_dict(nullptr).size() == 6);  // options: nothing was loaded
      CHECK(model->loads == 0);
    });
  }
}

TEST_CASE("where one rank cannot load what the others can, nothing changes on any") {
  TiedNet source;
  ls::optim::AdamW saved(trained(source), {.lr = 0.5});
  ls::save_checkpoint("adamw.safetensors", {.model = &source, .optimizer = &saved});
  with_group("local", 3, [&](const Group& group) {
    TiedNet net;
    const auto model = std::make_shared<PieceModel>(net, group);
    ls::optim::AdamW adamw(model->trained(), {.lr = 0.25});
    ls::optim::SGD sgd(model->trained(), {.lr = 0.25});
    ls::optim::Optimizer* const optimizer = group->rank() == 1 ? static_cast<ls::optim::Optimizer*>(&sgd) : &adamw;
    net.mean->fill_(9);
    const std::string text = error_of([&] {
      par::load_checkpoint("adamw.safetensors", {.model = par::CheckpointModel(model), .optimizer = optimizer});
    });
    CHECK(
        contains(text, "load_checkpoint: adamw.safetensors: load_state_dict: \"param_groups.0.momentum\" is missing"));
    CHECK(text.starts_with("rank 1: ") == (group->rank() != 1));
    CHECK(net.mean->to_vector<float>() == std::vector<float>(5, 9));
    CHECK(optimizer->lr() == 0.25);
    CHECK(model->loads == 0);
  });
}

TEST_CASE("a sharded model's optimizer must have the model's pieces") {
  with_group("local", 2, [](const Group& group) {
    TiedNet net;
    const auto model = std::make_shared<PieceModel>(net, group);
    ls::optim::SGD optimizer(trained(net), {.momentum = 0.5});
    const std::string text = error_of([&] {
      par::save_checkpoint("foreign.safetensors", {.model = par::CheckpointModel(model), .optimizer = &optimizer});
    });
    CHECK_MESSAGE(contains(text, "construct it with run.parameters()"), text);
  });
  CHECK(contains(error_of([] { par::save_checkpoint("none.safetensors", {}); }), "save_checkpoint: there is no model"));
}

TEST_CASE("GradientAccumulation and DataParallel write the file of lockstep::save_checkpoint") {
  save_twice(accumulation(), 0, 4, "accumulation");
  save_twice(data_parallel(), 0, 4, "data_parallel");
  CHECK(content_of_file("accumulation_3") == content_of_file("data_parallel_3"));
  CHECK(content_of_file("accumulation_6") == content_of_file("data_parallel_6"));
  save_twice(data_parallel(), 0, 4, "resumed", "accumulation_3");
  CHECK(content_of_file("resumed_6") == content_of_file("data_parallel_6"));

  Everything model;
  ls::optim::AdamW optimizer(model.parameters(), {.lr = 1});
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 10});
  ls::load_checkpoint("data_parallel_6", {.model = &model, .optimizer = &optimizer, .scheduler = &schedule});
  ls::save_checkpoint("one", {.model = &model, .optimizer = &optimizer, .scheduler = &schedule});
  CHECK(content_of_file("one") == content_of_file("data_parallel_6"));
}
