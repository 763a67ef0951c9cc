// Injected faults: the syntax of --inject, and the reaction of the other ranks to each fault.
#include "support/inject.h"

#include "tests/samples/support.h"

namespace {

using samples::Injection;

constexpr const char* kProgram = "logistic_regression";

std::string refusal(const std::string& text) {
  try {
    Injection::parse(text);
  } catch (const lockstep::InvalidArgument& error) {
    return error.what();
  }
  return "";
}

Finished train(const std::string& fault, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"--nproc", "2", "--epochs", "4", "--out", fresh("faulty"), "--inject", fault};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run(kProgram, arguments);
}

std::string model_of(const std::string& out) { return read_file(out + "/model.safetensors"); }

// The model of a run without faults.
const std::string& undisturbed() {
  static const std::string model = [] {
    REQUIRE(run(kProgram, {"--nproc", "2", "--epochs", "4", "--out", fresh("undisturbed")}).code == 0);
    return model_of("undisturbed");
  }();
  return model;
}

}  // namespace

TEST_CASE("inject: kind, rank, step and time are read in any order") {
  const Injection kill = Injection::parse("kill:rank=1,step=17");
  CHECK(kill.kind() == Injection::Kind::kKill);
  CHECK(kill.rank() == 1);
  CHECK(kill.step() == 17);
  const Injection delay = Injection::parse("delay:ms=200,step=3,rank=0");
  CHECK(delay.kind() == Injection::Kind::kDelay);
  CHECK(delay.milliseconds() == 200);
  CHECK(Injection::parse("stop:rank=0,step=1").kind() == Injection::Kind::kStop);
  CHECK(Injection::parse("corrupt:rank=0,step=1").kind() == Injection::Kind::kCorrupt);
  CHECK(Injection::parse("mismatch:rank=0,step=1").kind() == Injection::Kind::kMismatch);
  CHECK(Injection::parse("drop:rank=0,step=1").kind() == Injection::Kind::kDrop);
  CHECK(Injection::parse("").kind() == Injection::Kind::kNone);
}

TEST_CASE("inject: errors name the wrong part and the expected form") {
  const std::pair<const char*, const char*> wrong[] = {
      {"explode:rank=1,step=2", "there is no fault \"explode\""},
      {":rank=1,step=2", "there is no fault \"\""},
      {"kill", "neither rank nor step is given"},
      {"kill:", "\"\" is not key=value"},
      {"kill:rank=1", "step is not given"},
      {"kill:step=1", "rank is not given"},
      {"kill:rank=1,step=0", "step is \"0\", not a number from 1"},
      {"kill:rank=-1,step=1", "rank is \"-1\", not a number from 0"},
      {"kill:rank=1x,step=1", "rank is \"1x\""},
      {"kill:rank=1,step=99999999999999999999", "step is \"99999999999999999999\""},
      {"kill:rank=1,step=2,", "\"\" is not key=value"},
      {"kill:rank=1,rank=2,step=1", "rank is given twice"},
      {"kill:rank=1,step=1,ms=3", "this fault has no \"ms\""},
      {"delay:rank=1,step=1", "ms is not given"},
      {"delay:rank=1,step=1,ms=0", "ms is \"0\""},
  };
  for (const auto& each : wrong) {
    const std::string error = refusal(each.first);
    CHECK_MESSAGE(contains(error, std::string("--inject \"") + each.first + "\": " + each.second), error);
    CHECK(contains(error, "Expected kill, stop, delay, drop, corrupt or mismatch"));
  }
  CHECK(refusal("kill:" + std::string(10'000, 'x')).size() < 400);
}

TEST_CASE("inject: faults for no rank, for another mode, or with a syntax error end the program before it trains") {
  CHECK(contains(train("kill:rank=2,step=1").output, "--inject: there is no rank 2; the ranks are 0 to 1\n"));
  CHECK(contains(train("kill:rank").output, "--inject \"kill:rank\": \"rank\" is not key=value\n"));
  const Finished single = run(kProgram, {"--inject", "kill:rank=0,step=1", "--out", fresh("single")});
  CHECK(single.code == 2);
  CHECK(contains(single.output, "--inject: is for --strategy ddp, zero*, compare only, and the strategy is single"));
}

TEST_CASE("inject: a fault whose step is never reached is an error, after the results are written") {
  for (const std::string rank : {"0", "1"}) {
    const Finished run = train("kill:rank=" + rank + ",step=100000");
    CAPTURE(run.output);
    CHECK(run.code == 1);
    const std::string text = "--inject \"kill:rank=" + rank + ",step=100000\": the fault never happened: this run had ";
    CHECK(contains(run.output, text));
    CHECK(run.output.find(text) == run.output.rfind(text));  // reported once, not by each rank
    CHECK(contains(run.output, "\ntest accuracy 0."));
    CHECK(model_of("faulty") == undisturbed());
  }
  const Finished launched =
      run(LOCKSTEP_RUN, {"--nproc-per-node", "2", std::string(LOCKSTEP_SAMPLES_DIR) + "/" + kProgram, "--epochs", "4",
                         "--out", fresh("faulty"), "--inject", "delay:rank=1,step=100000,ms=1"});
  CAPTURE(launched.output);
  CHECK(launched.code == 1);
  CHECK(contains(launched.output, "the fault never happened"));
  CHECK(model_of("faulty") == undisturbed());
}

TEST_CASE("inject: compare injects faults in its ranks, and reports one that never happened") {
  const auto compare = [](const std::string& fault) {
    return run(kProgram, {"--mode", "compare", "--epochs", "2", "--out", fresh("faulty"), "--inject", fault});
  };
  const Finished late = compare("delay:rank=1,step=3,ms=1");
  CAPTURE(late.output);
  CHECK(late.code == 0);
  CHECK(contains(late.output, "accumulate, dp and ddp end with bitwise identical parameters."));
  CHECK(compare("kill:rank=1,step=3").code == 128 + SIGKILL);
  const Finished never = compare("kill:rank=1,step=100000");
  CHECK(never.code == 1);
  CHECK(contains(never.output, "the fault never happened"));
  CHECK(contains(compare("kill:rank=2,step=1").output, "--inject: there is no rank 2; the ranks are 0 to 1\n"));
}

TEST_CASE(
    "inject: a killed rank ends the run with its signal; with a restart it ends with the bits of an undisturbed run") {
  const Finished killed = train("kill:rank=1,step=17");
  CHECK(killed.code == 128 + SIGKILL);
  CHECK_MESSAGE(contains(killed.output, "First to fail: rank 1"), killed.output);
  const Finished restarted =
      run(LOCKSTEP_RUN,
          {"--nproc-per-node", "2", "--max-restarts", "1", std::string(LOCKSTEP_SAMPLES_DIR) + "/" + kProgram,
           "--epochs", "4", "--out", fresh("restarted"), "--save-every", "1", "--inject", "kill:rank=1,step=17"});
  CAPTURE(restarted.output);
  CHECK(restarted.code == 0);
  CHECK(contains(restarted.output, "was killed by signal 9 (SIGKILL)"));
  CHECK(contains(restarted.output, "lockstep-run: restart 1 of 1\n"));
  CHECK(contains(restarted.output, "Resuming from restarted/checkpoint.safetensors"));
  CHECK(model_of("restarted") == undisturbed());
}

TEST_CASE("inject: a wrong gradient is detected one step later, by the parameters that differ from then on") {
  const Finished run = train("corrupt:rank=1,step=17");
  CAPTURE(run.output);
  CHECK(run.code == 1);
  CHECK(contains(run.output, "replicas have diverged: fc.weight of rank 1 is not rank 0's"));
  CHECK_FALSE(std::filesystem::exists("faulty/model.safetensors"));
}

TEST_CASE("inject: a rank that leaves too early exits normally, and the others report that it has left") {
  const Finished run = train("drop:rank=1,step=17");
  CAPTURE(run.output);
  CHECK(run.code == 1);
  CHECK(contains(run.output, "First to fail: rank 0"));
  CHECK(contains(run.output, "bucket 0 of 1 of step 17"));
  CHECK(contains(run.output, "rank 1 has left the group"));
}

TEST_CASE("inject: a tensor of another shape is an error that names both sides") {
  const Finished run = train("mismatch:rank=1,step=17");
  CAPTURE(run.output);
  CHECK(run.code == 1);
  CHECK(contains(run.output, "ranks disagree"));
  CHECK(contains(run.output, "all_reduce of 3 f32 (sum)"));
}

TEST_CASE("inject: a late rank delays the others and keeps the bits; after the timeout it is an error that names it") {
  CHECK(train("delay:rank=1,step=17,ms=300").code == 0);
  CHECK(model_of("faulty") == undisturbed());
  const Finished late = train("delay:rank=1,step=17,ms=30000", {"--timeout", "3"});
  CAPTURE(late.output);
  CHECK(late.code == 1);
  CHECK(contains(late.output, "not complete after 3000 ms: rank 1 has not arrived"));
}

TEST_CASE("inject: a stopped rank is named after the timeout, and its process is ended") {
  const Finished run = train("stop:rank=1,step=17", {"--timeout", "3"});
  CAPTURE(run.output);
  CHECK(run.code == 1);
  CHECK(contains(run.output, "bucket 0 of 1 of step 17"));
  CHECK(contains(run.output, "not complete after 3000 ms: rank 1 has not arrived"));
  CHECK(contains(run.output, "Stopped: 1 other rank"));
}
