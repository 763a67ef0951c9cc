// char_gpt with stages of the model on ranks along pp: the bits of one partition, schedules, resumed runs, and errors.
#include "tests/samples/mesh_runs.h"

TEST_CASE("char_gpt: a pipeline has the bits of accumulated micro-batches, with every schedule and on every mesh") {
  const std::string want = hash_of({"--strategy", "accumulate", "--untied"});
  CHECK(hash_of({"--strategy", "pipeline", "--untied"}) == want);
  CHECK(hash_of({"--strategy", "model_parallel", "-n", "4", "--untied"}) == want);
  CHECK(hash_of({"--strategy", "pipeline", "-n", "4", "--schedule", "gpipe", "--untied", "--recompute"}) == want);
  CHECK(hash_of({"--strategy", "pipeline", "--schedule", "interleaved", "--chunks", "2", "--untied"}) == want);
  CHECK(hash_of({"--mesh", "pp=2,dp=2", "--untied"}) == want);
  CHECK(hash_of({"--strategy", "pipeline", "--mesh", "fsdp=2,pp=2", "--untied"}) == want);
  CHECK(hash_of({"--mesh", "dp=2,pp=2", "--schedule", "zb1p", "--untied"}) == want);
  CHECK(hash_of({"--mesh", "fsdp=2,pp=2", "--schedule", "zb1p", "--untied"}) == want);
}

TEST_CASE("char_gpt: where embedding and logits share a weight, meshes have the bits of one rank with the chain") {
  const std::string want = hash_of({"--mesh", "pp=1"});
  CHECK(hash_of({"--strategy", "pipeline"}) == want);
  CHECK(hash_of({"--strategy", "pipeline", "-n", "4", "--schedule", "zb1p"}) == want);
  CHECK(hash_of({"--strategy", "model_parallel"}) == want);
  CHECK(hash_of({"--mesh", "pp=2,dp=2"}) == want);
  CHECK(hash_of({"--mesh", "pp=2,fsdp=2"}) == want);
  CHECK(hash_of({"--strategy", "accumulate"}) != want);
}

TEST_CASE("char_gpt: stages, tensor slices and sequence blocks") {
  CHECK(hash_of({"--mesh", "pp=2,tp=2"}) == hash_of({"--mesh", "pp=1,tp=2"}));
  CHECK(hash_of({"--mesh", "pp=2,cp=2"}) == hash_of({"--mesh", "pp=1,cp=2"}));
}

TEST_CASE("char_gpt: a run of one process continues as a pipeline, and that as another, with the same bits") {
  const auto train = [](const std::string& out, const std::string& epochs, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--epochs", epochs, "--save-every", "1", "--lr", "0.001", "--untied"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run("char_gpt", small(out, arguments));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    return finished.output;
  };
  const std::string out = fresh("stages_resumed"), whole = fresh("stages_whole");
  train(out, "1", {"--strategy", "accumulate"});
  CHECK(contains(train(out, "2", {"--strategy", "pipeline", "--resume", "yes"}), "Resuming from"));
  const std::string output = train(out, "3", {"--mesh", "pp=2,dp=2", "--resume", "yes"});
  CHECK(contains(output, "\ntest accuracy "));
  CHECK(lines(output).back().size() == 5);  // the generated text, which only the main rank prints
  train(whole, "1", {"--strategy", "accumulate"});
  train(whole, "2", {"--strategy", "accumulate", "--resume", "yes"});
  train(whole, "3", {"--strategy", "accumulate", "--resume", "yes"});
  CHECK(read_file(out + "/model.safetensors") == read_file(whole + "/model.safetensors"));
  CHECK(metrics_without_times(out) == metrics_without_times(whole));
}

TEST_CASE("char_gpt: --explain says which stages the ranks have, and its formulas give the bytes that were counted") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"pp2_gpipe", {"--strategy", "pipeline", "--schedule", "gpipe"}},
      {"pp2_model_parallel", {"--strategy", "model_parallel"}},
      {"pp2_interleaved", {"--strategy", "pipeline", "--schedule", "interleaved", "--recompute"}},
      {"pp2_dp2_zb1p", {"--mesh", "pp=2,dp=2", "--schedule", "zb1p", "--bf16"}},
      {"cp2_pp2_1f1b", {"--mesh", "cp=2,pp=2"}},
      {"pp2_tp2_1f1b", {"--mesh", "pp=2,tp=2"}}};
  for (const auto& [name, more] : cases) {
    // All windows in one step, so that the counters of the run are those of the step.
    std::vector<std::string> arguments = {"--epochs", "1", "--batch", "4096", "--explain"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run("char_gpt", small(fresh("stages_explained"), arguments));
    CAPTURE(finished.output);
    REQUIRE(finished.code == 0);
    expect_mesh(name, finished.output);
    const auto counted = result("stages_explained")["bytes_in_steps"];
    REQUIRE(result("stages_explained")["steps"] == 1);
    // Each line of the formulas compares the same two numbers; together they are what was counted.
    std::int64_t forward = 0, backward = 0;
    for (const std::string& line : lines(finished.output)) {
      const std::size_t at = line.find(" bytes, by the formula");
      if (at == std::string::npos) continue;
      const std::size_t begin = line.find(": ") + 2;
      const std::string sent = line.substr(begin, at - begin);
      CHECK(line.ends_with(" " + sent));
      (contains(line, "gradients") ? backward : forward) += std::stoll(sent);
    }
    CHECK(forward == counted["activations"].get<std::int64_t>() + counted["keys and values"].get<std::int64_t>());
    CHECK(backward == counted["activation gradients"].get<std::int64_t>());
    CHECK(forward > 0);
  }
  // From the second step on, messages are copies to memory that the ranks share.
  const Finished finished =
      run("char_gpt", small(fresh("stages_explained"), {"--strategy", "pipeline", "--epochs", "1", "--explain"}));
  CHECK(contains(finished.output, "  sends rank 1 the outputs of stage 0 for micro-batch 3: "));
  CHECK(contains(finished.output, "  sends rank 0 the gradients of the outputs of stage 0 for micro-batch 0: "));
  CHECK(!contains(finished.output, "cpu:"));
}

TEST_CASE("char_gpt: --strategies all shows every strategy, with idle time and bytes by axis") {
  const Finished finished =
      run("char_gpt", small(fresh("all_compared"), {"--strategy", "compare", "--strategies", "all", "--epochs", "1",
                                                    "-n", "2", "--dropout", "0"}));
  CAPTURE(finished.output);
  REQUIRE(finished.code == 0);
  CHECK(contains(finished.output,
                 "accumulate, dp, ddp, zero1, zero2, zero2_offload, zero3 and zero3_offload end with "
                 "bitwise identical parameters.\n"));
  CHECK(contains(finished.output, "\nmodel_parallel and pipeline end with bitwise identical parameters.\n"));
  CHECK(contains(finished.output, "\npipeline has two gradient sums of the weight that embed and head share"));
  CHECK(contains(finished.output, "\ncontext has 2 sequence blocks (zigzag), and so another order of sums"));
  CHECK(contains(finished.output, "\ntensor has 2 tensor slices, and so another order of sums"));
  const auto of = [](const char* name) { return result(std::string("all_compared/") + name); };
  // 2 ranks and 4 micro-batches: (p - 1) / (M + p - 1), and one rank at a time.
  CHECK(of("pipeline")["idle"].get<double>() == doctest::Approx(0.2));
  CHECK(of("model_parallel")["idle"].get<double>() == doctest::Approx(0.5));
  CHECK(of("tensor")["idle"].is_null());
  const std::pair<std::string, std::string> axes[] = {{"pipeline", "pp"}, {"context", "cp"}, {"tensor", "tp"}};
  for (const auto& each : axes) {
    CAPTURE(each.first);
    const nlohmann::json own = of(each.first.c_str());
    std::int64_t all = 0;
    for (const auto& [phase, bytes] : own["bytes_in_steps"].items()) all += phase == "other" ? 0 : bytes.get<int>();
    CHECK(all > 0);
    CHECK(own["bytes_by_axis"] == nlohmann::json{{each.second, all}});
  }
  CHECK(of("pipeline")["bytes_in_steps"]["activations"] > 0);
  CHECK(of("pipeline")["memory"]["parameters"] < of("ddp")["memory"]["parameters"]);
}

TEST_CASE("char_gpt: errors of pipelines name the option and the fix") {
  CHECK(contains(error_of({"--strategy", "pipeline", "--mesh", "dp=2"}),
                 "--mesh: dp=2 has no axis pp with several ranks, which --strategy pipeline needs, as pp=2"));
  CHECK(contains(error_of({"--strategy", "pipeline", "-n", "5"}),
                 "--layers 2 makes a chain of 4 modules, with embed and head, for 5 stages (5 ranks along pp with 1 "
                 "model chunk each); use --layers 3, or fewer ranks\n"));
  CHECK(contains(error_of({"--strategy", "pipeline", "--chunks", "2"}),
                 "--chunks: 2 are for --schedule interleaved, and the schedule is 1f1b; add --schedule interleaved"));
  CHECK(contains(error_of({"--strategy", "pipeline", "--schedule", "interleaved", "--chunks", "3"}),
                 "6 stages (2 ranks along pp with 3 model chunks each); use --layers 4, or fewer ranks or --chunks"));
  CHECK(contains(error_of({"--mesh", "pp=2,dp=4", "--schedule", "interleaved"}),
                 "--micro-batches 4 gives each pipeline 1, but --schedule interleaved needs a multiple of its 2 ranks; "
                 "use --micro-batches 8, or --schedule 1f1b"));
  CHECK(contains(error_of({"--mesh", "dp=2", "--schedule", "gpipe"}),
                 "--schedule: is for ranks along pp, and --mesh dp=2 has none; add pp=2 to the mesh"));
  CHECK(contains(error_of({"--strategy", "ddp", "--schedule", "gpipe"}),
                 "--schedule: is for --strategy pipeline, parallel, compare only, and the strategy is ddp"));
  CHECK(contains(error_of({"--strategy", "model_parallel", "--schedule", "gpipe"}), "--schedule: is for --strategy "));
  CHECK(contains(error_of({"--strategy", "pipeline", "--schedule", "zb1p", "--recompute"}),
                 "each of which would recompute the blocks; use --schedule 1f1b, or leave --recompute out"));
  CHECK(contains(error_of({"--strategy", "pipeline", "--schedule", "2f2b"}), "--schedule: 2f2b not in {"));
  CHECK(!std::filesystem::exists("errors/result.json"));
}
