// What is said about an environment that does not fit.
#include <doctest/doctest.h>

#include "lockstep/parallel/rendezvous.h"
#include "tests/parallel/rendezvous_support.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

using Variables = std::vector<std::pair<const char*, std::string>>;

par::Place place(const Variables& variables, const par::InitOptions& options = {}) {
  clear_environment();
  for (const auto& [name, value] : variables) set_variable(name, value);
  return par::place_from_environment(options);
}

template <class E>
void check_error(const Variables& variables, const std::vector<std::string>& parts,
                 const par::InitOptions& options = {}) {
  const std::string text = error_of<E>([&] { place(variables, options); });
  for (const std::string& part : parts) CHECK_MESSAGE(text.find(part) != std::string::npos, part << " | " << text);
}

}  // namespace

TEST_CASE("what is missing is named, with what is there and the ways out") {
  using E = ls::InvalidArgument;
  check_error<E>({}, {"env:// needs RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT\n", "lockstep-run --nproc-per-node 2",
                      "give .store, .rank and .world_size"});
  check_error<E>({{"RANK", "0"}}, {"needs WORLD_SIZE, MASTER_ADDR, MASTER_PORT (RANK is \"0\")"});
  check_error<E>({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}},
                 {"needs MASTER_PORT (RANK is \"1\", WORLD_SIZE is \"2\", MASTER_ADDR is \"localhost\")"});
  check_error<E>({{"RANK", "1"}, {"WORLD_SIZE", ""}}, {"needs WORLD_SIZE"});
  check_error<E>({}, {"needs MASTER_ADDR, MASTER_PORT\n"}, {.world_size = 2, .rank = 0});
  check_error<E>({{"OMPI_COMM_WORLD_RANK", "0"}}, {"needs OMPI_COMM_WORLD_SIZE"});
  check_error<E>({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, {"needs MASTER_ADDR, MASTER_PORT"});
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

TEST_CASE("ranks on several hosts are not in this version, and the reason for thinking so is told") {
  using E = ls::NotBuilt;
  Variables four = {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1"}};
  check_error<E>(four, {"MASTER_ADDR is \"node7\", which is no loopback address, and LOCAL_WORLD_SIZE is not set",
                        "ranks of one host only"});
  four.push_back({"LOCAL_WORLD_SIZE", "2"});
  check_error<E>(four, {"LOCAL_WORLD_SIZE is 2 and WORLD_SIZE is 4: the ranks are on several hosts"});
  check_error<E>({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"PMIX_NAMESPACE", "x"}},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE is 2"});
  check_error<E>({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}, {"SLURM_JOB_ID", "8"}},
                 {"srun started the ranks on \"2\" hosts"});
  for (const char* method : {"tcp://127.0.0.1:1", "file:///tmp/x", ""}) {
    CHECK(error_of<E>([&] { par::rendezvous({.init_method = method}); }).find("Use env://") != std::string::npos);
  }
}

TEST_CASE("the address follows from user, port, host and group, the job from token, run and restart") {
  const Variables base = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "5"}};
  const auto with = [&](const char* name, const std::string& value, const std::string& group = "") {
    Variables out = base;
    out.push_back({name, value});
    return place(out, {.group_name = group});
  };
  const par::Place first = place(base);
  CHECK(first.socket.size() < 100);
  CHECK(with("RANK", "1").socket == first.socket);
  CHECK(with("MASTER_ADDR", "localhost").socket == first.socket);
  CHECK(with("MASTER_PORT", "6").socket != first.socket);
  CHECK(with("RANK", "0", "other").socket != first.socket);
  CHECK(with("LOCKSTEP_JOB_TOKEN", "secret").socket == first.socket);
  CHECK_FALSE(with("LOCKSTEP_JOB_TOKEN", "secret").job == first.job);
  CHECK_FALSE(with("LOCKSTEP_JOB_TOKEN", "secret").job == with("LOCKSTEP_JOB_TOKEN", "other").job);
  CHECK_FALSE(with("TORCHELASTIC_RUN_ID", "a").job == first.job);
  CHECK_FALSE(with("TORCHELASTIC_RESTART_COUNT", "1").job == first.job);
  CHECK(with("TORCHELASTIC_RESTART_COUNT", "0").job == first.job);
  // RANK goes before what an mpirun or srun around it says.
  CHECK(with("OMPI_COMM_WORLD_RANK", "1").rank == 0);
  CHECK(with("SLURM_PROCID", "1").rank == 0);
}

TEST_CASE("options that do not fit") {
  using E = ls::InvalidArgument;
  const auto store = std::make_shared<par::InProcessStore>();
  const auto text = [](const par::InitOptions& options) { return error_of<E>([&] { par::rendezvous(options); }); };
  CHECK(text({.store = store}).find("with .store, .rank and .world_size must be given") != std::string::npos);
  CHECK(text({.world_size = 2, .rank = 2, .store = store}).find("the rank is 2, expected 0 to 1") != std::string::npos);
  CHECK(text({.world_size = 0, .rank = 0, .store = store}).find("the world size is 0") != std::string::npos);
  CHECK(text({.timeout = std::chrono::milliseconds(0)}).find("the timeout is 0 ms") != std::string::npos);
}
