// What is said about an environment that does not fit.
#include <doctest/doctest.h>

#include <cstdlib>

#include "lockstep/base/warning.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "tests/parallel/rendezvous/rendezvous_support.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

using Variables = std::vector<std::pair<const char*, std::string>>;

par::Membership place(const Variables& variables, const par::RendezvousOptions& options = {}) {
  clear_environment();
  for (const auto& [name, value] : variables) set_variable(name, value);
  return par::membership_from_environment(options);
}

// The membership of an environment with one more variable.
par::Membership with(Variables variables, const char* name, const std::string& value, const std::string& group = "") {
  variables.push_back({name, value});
  return place(variables, {.group_name = group});
}

template <class E>
void check_error(const Variables& variables, const std::vector<std::string>& parts,
                 const par::RendezvousOptions& options = {}) {
  const std::string text = error_of<E>([&] { place(variables, options); });
  for (const std::string& part : parts) CHECK_MESSAGE(text.find(part) != std::string::npos, part << " | " << text);
}

}  // namespace

TEST_CASE("what is missing is named, with what is there and the ways out") {
  using E = ls::InvalidArgument;
  check_error<E>({{"MASTER_PORT", "1"}}, {"env:// needs RANK, WORLD_SIZE, MASTER_ADDR (MASTER_PORT is \"1\")\n",
                                          "lockstep-run --nproc-per-node 2", "give .store, .rank and .world_size"});
  check_error<E>({{"RANK", "0"}}, {"needs WORLD_SIZE, MASTER_ADDR, MASTER_PORT (RANK is \"0\")"});
  check_error<E>({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}},
                 {"needs MASTER_PORT (RANK is \"1\", WORLD_SIZE is \"2\", MASTER_ADDR is \"localhost\")"});
  check_error<E>({{"RANK", "1"}, {"WORLD_SIZE", ""}}, {"needs WORLD_SIZE"});
  check_error<E>({}, {"needs MASTER_ADDR, MASTER_PORT (.rank is 0, .world_size is 2)\nA launcher sets the variables: "},
                 {.world_size = 2, .rank = 0});
  check_error<E>({{"OMPI_COMM_WORLD_RANK", "0"}}, {"needs OMPI_COMM_WORLD_SIZE"});
  check_error<E>({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, {"needs MASTER_ADDR, MASTER_PORT"});
}

TEST_CASE("a process that no launcher started is a group of one, with a warning") {
  std::vector<std::string> seen;
  ls::on_warning([&](const std::string& message) { seen.push_back(message); });
  clear_environment();
  const auto group = par::init_process_group();
  ls::on_warning({});
  CHECK(group->size() == 1);
  CHECK(group->rank() == 0);
  CHECK(group->mean(2.5) == 2.5);
  const ls::Tensor t = ls::tensor({1.0, 2.0});
  group->all_reduce(t)->wait();
  CHECK(t.to_vector<double>() == std::vector<double>{1, 2});
  REQUIRE(seen.size() == 1);
  CHECK(contains(seen[0], "no launcher has set RANK and WORLD_SIZE"));
  // With any variable, also of a launcher that is not read, it stays an error.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "OMPI_COMM_WORLD_RANK", "SLURM_NTASKS", "PMI_RANK", "MV2_COMM_WORLD_RANK"}) {
    clear_environment();
    set_variable(name, "1");
    CHECK_MESSAGE(contains(error_of([] { par::init_process_group(); }), "env:// needs "), name);
    unsetenv(name);
  }
  CHECK(contains(error_of([] { par::init_process_group({.world_size = 2}); }), "env:// needs RANK"));
  CHECK(contains(error_of([] { par::init_process_group({.rank = 0}); }), "env:// needs WORLD_SIZE"));
}

TEST_CASE("a backend that does not exist is reported before variables that are missing") {
  clear_environment();
  set_variable("RANK", "0");
  CHECK(contains(error_of([] { par::init_process_group({.backend = "nccl2"}); }), "there is no backend 'nccl2'"));
  CHECK(contains(error_of([] { par::init_process_group({.backend = "", .init_method = "tcp://nowhere:1"}); }),
                 "there is no backend ''"));
  clear_environment();
}

TEST_CASE("numbers that are none, or do not fit together") {
  using E = ls::InvalidArgument;
  const Variables two = {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}, {"WORLD_SIZE", "2"}};
  const auto with = [&](const char* name, const std::string& value) {
    Variables out = two;
    out.push_back({"RANK", "0"});
    out.push_back({name, value});
    return out;
  };
  check_error<E>(with("RANK", "one"), {"RANK is \"one\", expected a number from 0"});
  check_error<E>(with("RANK", "-1"), {"RANK is \"-1\""});
  check_error<E>(with("RANK", "2"), {"the rank is 2, expected 0 to 1 (world size 2)"});
  check_error<E>(with("RANK", "1 "), {"RANK is \"1 \""});
  check_error<E>(with("WORLD_SIZE", "0"), {"WORLD_SIZE is \"0\", expected a number from 1"});
  check_error<E>(with("WORLD_SIZE", "99999999999"), {"WORLD_SIZE is "});
  check_error<E>(with("MASTER_PORT", "65536"), {"MASTER_PORT is \"65536\", expected a number from 0 to 65535"});
  check_error<E>(with("LOCAL_WORLD_SIZE", "3"), {"LOCAL_WORLD_SIZE is 3, more than the 2 ranks of WORLD_SIZE"});
  CHECK(place(with("LOCAL_WORLD_SIZE", "2")).address == "127.0.0.1:1");
}

TEST_CASE("where ranks are on several hosts, rank 0's address comes from MASTER_ADDR or SLURM's list") {
  using E = ls::InvalidArgument;
  Variables four = {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
  for (int i = 0; i < 2; ++i) {
    const par::Membership several = place(four);
    CHECK_FALSE(several.is_one_host);
    CHECK(several.host == "node7");
    CHECK(several.port == 29500);
    CHECK(several.port_name == "MASTER_PORT 29500 of node7");
    four.push_back({"LOCAL_WORLD_SIZE", "2"});
  }
  four.push_back({"TORCHELASTIC_USE_AGENT_STORE", "True"});
  CHECK(place(four).port == 29501);
  CHECK(place(four).port_name ==
        "LOCKSTEP_PORT 29501, by default MASTER_PORT + 1 (torchrun's agent has MASTER_PORT 29500) of node7");
  four.push_back({"LOCKSTEP_PORT", "4000"});
  CHECK(place(four).port == 4000);
  CHECK(place(four).port_name == "LOCKSTEP_PORT 4000 (torchrun's agent has MASTER_PORT 29500) of node7");
  four.push_back({"LOCAL_WORLD_SIZE", "4"});
  CHECK(place(four).is_one_host);

  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "x"}};
  check_error<E>(mpi, {"mpirun started ranks on several hosts", "Set MASTER_ADDR and MASTER_PORT", "mpi://"});

  Variables slurm = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}, {"SLURM_JOB_ID", "8"}};
  check_error<E>(slurm, {"srun started ranks on several hosts"});
  slurm.push_back({"SLURM_STEP_NODELIST", "gpu[07-08]"});
  const par::Membership step = place(slurm);
  CHECK(step.host == "gpu07");
  CHECK(step.port >= 20000);
  CHECK(step.port < 60000);
  CHECK(place(slurm).port == step.port);
  slurm.push_back({"SLURM_STEP_ID", "1"});
  CHECK(place(slurm).port != step.port);
  slurm.push_back({"MASTER_PORT", "77"});
  CHECK(place(slurm).port == 77);
}

TEST_CASE("the first host of SLURM's lists") {
  CHECK(par::first_host("") == "");
  CHECK(par::first_host("a") == "a");
  CHECK(par::first_host("a,b[1-2]") == "a");
  CHECK(par::first_host("node[03-05,9],gpu1") == "node03");
  CHECK(par::first_host("node[9]") == "node9");
  CHECK(par::first_host("node[") == "node");
}

TEST_CASE("what identifies a job of several hosts") {
  const Variables base = {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "5"}};
  const auto text = [](const par::Membership& own) { return own.store.job + " store " + own.store.name; };
  const std::string first = text(place(base));
  CHECK(text(with(base, "RANK", "3")) == first);
  CHECK(text(with(base, "TORCHELASTIC_RESTART_COUNT", "0")) == first);
  CHECK(text(with(base, "TORCHELASTIC_RESTART_COUNT", "1")) != first);
  CHECK(text(with(base, "TORCHELASTIC_RUN_ID", "a")) != first);
  CHECK(text(with(base, "RANK", "0", "other")) != first);
  CHECK(text(with(base, "LOCKSTEP_JOB_TOKEN", "secret")) == first);  // never in a text
}

TEST_CASE("init_method is read, or refused by the part that is wrong") {
  using E = ls::InvalidArgument;
  const auto read = [](const std::string& method) { return par::read_url({.init_method = method}); };
  CHECK(read("env://").scheme == "env");
  CHECK(read("tcp://node7:29500?rank=3&world_size=4").host == "node7");
  CHECK(read("tcp://node7:29500?rank=3&world_size=4").port == 29500);
  CHECK(read("tcp://node7:29500?rank=3&world_size=4").rank == 3);
  CHECK(read("tcp://[::1]:29500").host == "::1");
  CHECK(read("file:///tmp/x?world_size=2").path == "/tmp/x");
  CHECK(read("file:///tmp/x?world_size=2").size == 2);
  CHECK(par::read_url({.init_method = "tcp://a:1?rank=3", .rank = 1}).rank == 1);  // options come first
  const auto text = [&](const std::string& method) { return error_of<E>([&] { read(method); }); };
  for (const char* method : {"", "tcp", "http://x", "tcp:/x:1"}) {
    CHECK(contains(text(method), "none of env://, tcp://host:port, file:///path"));
  }
  CHECK(contains(text("tcp://node7"), "expected tcp://host:port"));
  CHECK(contains(text("tcp://[::1]"), "expected tcp://host:port"));
  CHECK(contains(text("tcp://a:0"), "the port is \"0\""));
  CHECK(contains(text("tcp://a:1?size=2"), "unknown \"size\""));
  CHECK(contains(text("tcp://a:1?rank=x"), "rank is \"x\""));
  CHECK(contains(text("file://x"), "an absolute path"));
  CHECK(contains(text("env://x"), "nothing may follow"));
  for (const char* method : {"tcp://a:1", "file:///tmp/x"}) {
    CHECK(contains(error_of<E>([&] { par::rendezvous({.init_method = method}); }), "needs .rank and .world_size"));
  }
}

TEST_CASE("the address follows from user, port, host and group, the job from token, run and restart") {
  const Variables base = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "5"}};
  const par::Membership first = place(base);
  CHECK(first.local.socket.size() < 100);
  CHECK(with(base, "RANK", "1").local.socket == first.local.socket);
  CHECK(with(base, "MASTER_ADDR", "localhost").local.socket == first.local.socket);
  CHECK(with(base, "MASTER_PORT", "6").local.socket != first.local.socket);
  CHECK(with(base, "RANK", "0", "other").local.socket != first.local.socket);
  CHECK(with(base, "LOCKSTEP_JOB_TOKEN", "secret").local.socket == first.local.socket);
  CHECK_FALSE(with(base, "LOCKSTEP_JOB_TOKEN", "secret").local.job == first.local.job);
  CHECK_FALSE(with(base, "LOCKSTEP_JOB_TOKEN", "secret").local.job ==
              with(base, "LOCKSTEP_JOB_TOKEN", "other").local.job);
  CHECK_FALSE(with(base, "TORCHELASTIC_RUN_ID", "a").local.job == first.local.job);
  CHECK_FALSE(with(base, "TORCHELASTIC_RESTART_COUNT", "1").local.job == first.local.job);
  CHECK(with(base, "TORCHELASTIC_RESTART_COUNT", "0").local.job == first.local.job);
  // RANK goes before what an mpirun or srun around it says.
  CHECK(with(base, "OMPI_COMM_WORLD_RANK", "1").rank == 0);
  CHECK(with(base, "SLURM_PROCID", "1").rank == 0);
}

TEST_CASE("options that do not fit") {
  using E = ls::InvalidArgument;
  const auto store = std::make_shared<par::InProcessStore>();
  const auto text = [](const par::RendezvousOptions& options) {
    return error_of<E>([&] { par::rendezvous(options); });
  };
  CHECK(contains(text({.store = store}), "with .store, .rank and .world_size must be given"));
  CHECK(contains(text({.world_size = 2, .rank = 2, .store = store}), "the rank is 2, expected 0 to 1"));
  CHECK(contains(text({.world_size = 0, .rank = 0, .store = store}), "the world size is 0"));
  const auto arrival = [&] {
    par::init_process_group(
        {.backend = "gloo", .world_size = 1, .rank = 0, .store = store, .reduction = par::Reduction::kArrival});
  };
  CHECK(error_of<E>(arrival).find("in order of arrival are for the backends local and shm") != std::string::npos);
  CHECK(contains(text({.timeout = std::chrono::milliseconds(0)}), "the timeout is 0 ms"));
}
