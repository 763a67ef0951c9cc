// lockstep-run --hosts as a user starts it. Without sshd: a script stands for ssh. As that one does, it joins the words
// behind the host with blanks and gives them to a shell, in a session of its own that only its stdin ties to ssh.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "lockstep/lockstep.h"
#include "tests/samples/support.h"
#include "tests/support/ports.h"

namespace {

constexpr const char* kStandIn =
    "#!/bin/sh\n"
    "# A file with the host's name says what is special about it: `down`, or what to run instead of the command.\n"
    "host=$1\n"
    "shift\n"
    "echo $$ > pid.$host\n"
    "if [ -e down.$host ]; then echo \"ssh: connect to host $host port 22: No route to host\" >&2; exit 255; fi\n"
    "if [ -e path.$host ]; then PATH=$(cat path.$host):$PATH; export PATH; fi\n"
    "exec setsid --wait sh -c \"$*\"\n";

void write_script(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), 0755) == 0);
}

// A folder of its own, with the stand-in; the test works in it.
class Place {
 public:
  explicit Place(const std::string& name) : before_(std::filesystem::current_path()) {
    std::filesystem::create_directories(fresh(name));
    std::filesystem::current_path(name);
    write_script("ssh", kStandIn);
  }
  ~Place() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

std::vector<std::string> on_hosts(std::vector<std::string> options, const std::vector<std::string>& command) {
  std::vector<std::string> out{"--hosts", "127.0.0.1,127.0.0.2", "--ssh",
                               "./ssh",   "--master-port",       std::to_string(free_port())};
  out.insert(out.end(), options.begin(), options.end());
  out.insert(out.end(), command.begin(), command.end());
  return out;
}

Finished run_on_hosts(const std::vector<std::string>& options, const std::vector<std::string>& command) {
  return run(LOCKSTEP_RUN, on_hosts(options, command));
}

// Whether a process with this word in its command line is there.
bool is_there(const std::string& word) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (contains(read_file(entry.path().string() + "/cmdline"), word)) return true;
  }
  return false;
}

pid_t pid_in(const std::string& path) {
  pid_t pid = 0;
  std::istringstream(read_file(path)) >> pid;
  return pid;
}

// Ranks that stay: `sleep` with an argument that tells this test's from all others.
struct Sleepers {
  std::string mark = "1000." + std::to_string(::getpid()) + std::to_string(count++);
  std::vector<std::string> command = {"sh", "-c", "echo ready $RANK; exec sleep " + mark};
  static int count;
};
int Sleepers::count = 0;

void wait_until_ready(const Process& process, int ranks) {
  const bool are_ready = eventually([&] {
    const std::string text = read_file(process.output_path());
    for (int rank = 0; rank < ranks; ++rank) {
      if (!contains(text, "ready " + std::to_string(rank))) return false;
    }
    return true;
  });
  INFO(read_file(process.output_path()));
  REQUIRE(are_ready);
}

}  // namespace

TEST_CASE("ranks of all hosts are one job, and arguments arrive as they are") {
  const Place place("job");
  const std::string strange = "a'b \"c\" $HOME `x` \\ \xff;|&*\nnext";
  ::setenv("LOCKSTEP_OWN", "handed on", 1);
  ::setenv("EXPORTED", "x y", 1);
  const Finished finished = run_on_hosts(
      {"--nproc-per-node", "2", "--export", "WANTED=" + strange, "--export", "EXPORTED", "--export", "B=1 2"},
      {"sh", "-c",
       "[ \"$1\" = \"$WANTED\" ] && [ -z \"$2\" ] && "
       "echo $RANK/$WORLD_SIZE $GROUP_RANK $0 \"$#\" \"$LOCKSTEP_OWN\" \"$EXPORTED\" \"$B\" $(pwd)",
       "name", strange, ""});
  INFO(finished.output);
  CHECK(finished.code == 0);
  const std::string rest = " name 2 handed on x y 1 2 " + std::filesystem::current_path().string() + "\n";
  for (const char* line : {"[0] 0/4 0", "[1] 1/4 0", "[2] 2/4 1", "[3] 3/4 1"})
    CHECK(contains(finished.output, line + rest));
}

TEST_CASE("the token is in no command line, and not in what is written") {
  const Place place("token");
  const Finished finished =
      run_on_hosts({}, {"sh", "-c",
                        "[ ${#LOCKSTEP_JOB_TOKEN} = 64 ] || exit 3\n"
                        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; done 2>/dev/null > all.$RANK\n"
                        "case $(cat all.$RANK) in *$LOCKSTEP_JOB_TOKEN*) exit 4;; esac\n"
                        "printf %s \"$LOCKSTEP_JOB_TOKEN\" > token.$RANK"});
  INFO(finished.output);
  CHECK(finished.code == 0);
  const std::string token = read_file("token.0");
  CHECK(token.size() == 64);
  CHECK(token == read_file("token.1"));
  CHECK(!contains(finished.output, token));
}

TEST_CASE("a file of hosts says how many ranks each has") {
  const Place place("slots");
  std::ofstream("hosts.txt") << "127.0.0.1 slots=1\n127.0.0.2 slots=3 # more\n";
  const Finished finished =
      run(LOCKSTEP_RUN, {"--hostfile", "hosts.txt", "--ssh", "./ssh", "--master-port", std::to_string(free_port()),
                         "sh", "-c", "echo $RANK of $WORLD_SIZE, $LOCAL_RANK"});
  INFO(finished.output);
  CHECK(finished.code == 0);
  CHECK(contains(finished.output, "[0] 0 of 4, 0\n"));
  CHECK(contains(finished.output, "[3] 3 of 4, 2\n"));
}

TEST_CASE("the pre-flight shows hosts and links, and --preflight does only that") {
  const Place place("preflight");
  const Finished finished =
      run(LOCKSTEP_RUN, {"--hosts", "127.0.0.1,127.0.0.2,127.0.0.3", "--ssh", "./ssh", "--master-port",
                         std::to_string(free_port()), "--preflight", "sh", "-c", "touch started"});
  INFO(finished.output);
  CHECK(finished.code == 0);
  CHECK(!std::filesystem::exists("started"));
  const auto text = lines(finished.output);
  REQUIRE(text.size() == 9);
  CHECK(text[0] == "host       reachable  cores");
  CHECK(text[1].starts_with("127.0.0.1 "));
  CHECK(text[1].find(" ms ") != std::string::npos);
  CHECK(text[5] == "link                    latency   bandwidth");
  CHECK(text[6].starts_with("127.0.0.2  127.0.0.1  "));
  CHECK(text[7].starts_with("127.0.0.3  127.0.0.1  "));
  CHECK(text[8].starts_with("127.0.0.3  127.0.0.2  "));
  for (int link = 6; link < 9; ++link) {
    CHECK(text[link].find(" us ") != std::string::npos);
    CHECK(text[link].ends_with(" GB/s"));
  }
  CHECK(run_on_hosts({"--no-preflight", "--no-prefix"}, {"true"}).output.empty());
}

TEST_CASE("a host that cannot be reached is named before anything starts") {
  const Place place("down");
  std::ofstream("down.127.0.0.2") << "";
  const Finished finished = run_on_hosts({}, {"sh", "-c", "touch started"});
  INFO(finished.output);
  CHECK(finished.code == 1);
  CHECK(!std::filesystem::exists("started"));
  CHECK(
      contains(finished.output,
               "lockstep-run: host 127.0.0.2: the connection failed or ended: ssh: connect to host 127.0.0.2 port 22: "
               "No route to host\n"));
  CHECK(!contains(finished.output, "host 127.0.0.1:"));
  CHECK(contains(finished.output, "--no-preflight"));
  const Finished blind = run_on_hosts({"--no-preflight"}, {"sh", "-c", "touch started"});
  INFO(blind.output);
  CHECK(blind.code == 255);
  CHECK(!std::filesystem::exists("started"));
  CHECK(contains(blind.output, "First to fail: host 127.0.0.2 (node 1): the connection failed or ended: ssh: connect"));
}

TEST_CASE("another binary on one host is found by its contents") {
  const Place place("binary");
  for (const char* folder : {"one", "two", "three"}) std::filesystem::create_directory(folder);
  write_script("one/trainer", "#!/bin/sh\nexit 0\n");
  write_script("two/trainer", "#!/bin/sh\nexit  0\n");
  write_script("three/trainer", "#!/bin/sh\nexit 0\n");
  const std::string here = std::filesystem::current_path().string();
  std::ofstream("path.127.0.0.1") << here + "/one";
  std::ofstream("path.127.0.0.2") << here + "/two";
  const Finished finished = run_on_hosts({}, {"trainer"});
  INFO(finished.output);
  CHECK(finished.code == 1);
  CHECK(contains(finished.output, "lockstep-run: host 127.0.0.2: the hash of trainer is "));
  CHECK(contains(finished.output, ", that on 127.0.0.1 is "));
  std::ofstream("path.127.0.0.2") << here + "/three";
  CHECK(run_on_hosts({}, {"trainer"}).code == 0);
}

TEST_CASE("what is missing on a host is said with its name") {
  const Place place("missing");
  const Finished program = run_on_hosts({}, {"no-such-program"});
  CHECK(program.code == 1);
  CHECK(contains(program.output, "lockstep-run: host 127.0.0.2: launch: no program \"no-such-program\" in PATH"));
  const Finished launcher = run_on_hosts({"--remote-path", "/no/launch er"}, {"true"});
  CHECK(launcher.code == 1);
  CHECK(contains(launcher.output, "lockstep-run could not be run there: sh: 1: exec: /no/launch er: not found"));
  CHECK(contains(launcher.output, "--remote-path"));
}

TEST_CASE("a rank's failure ends all hosts, and its host tells it") {
  const Place place("failure");
  const Sleepers sleepers;
  const Finished finished = run_on_hosts({"--nproc-per-node", "2", "--max-restarts", "1"},
                                         {"sh", "-c", "[ $RANK != 3 ] || exit 7; exec sleep " + sleepers.mark});
  INFO(finished.output);
  CHECK(finished.code == 7);
  CHECK(contains(finished.output, "lockstep-run: host 127.0.0.2: First to fail: rank 3 (pid "));
  CHECK(contains(finished.output, "lockstep-run: restart 1 of 1\n"));
  CHECK(contains(finished.output, "lockstep-run: host 127.0.0.2: After 1 restart: First to fail: rank 3 (pid "));
  CHECK(!is_there(sleepers.mark));
}

TEST_CASE("Ctrl-C reaches the ranks of all hosts") {
  const Place place("interrupted");
  Process process(
      LOCKSTEP_RUN,
      on_hosts({}, {"sh", "-c",
                    "trap 'touch got.$RANK; while ! [ -e got.0 -a -e got.1 ]; do sleep 0.01; done; exit 5' INT\n"
                    "echo ready $RANK; while :; do sleep 0.01; done"}));
  wait_until_ready(process, 2);
  process.signal(SIGINT);
  const int code = process.wait();
  INFO(process.output());
  CHECK(code == 5);
  CHECK(std::filesystem::exists("got.0"));
  CHECK(std::filesystem::exists("got.1"));
}

TEST_CASE("nothing is left when a host's connection, or the launcher of all, is killed") {
  const Place place("killed");
  const Sleepers sleepers;
  Process process(LOCKSTEP_RUN, on_hosts({}, sleepers.command));
  wait_until_ready(process, 2);
  SUBCASE("the second host's connection") {
    ::kill(pid_in("pid.127.0.0.2"), SIGKILL);
    const int code = process.wait();
    INFO(process.output());
    CHECK(code != 0);
    CHECK(contains(process.output(), "First to fail: host 127.0.0.2 (node 1)"));
  }
  SUBCASE("the first host's") {
    ::kill(pid_in("pid.127.0.0.1"), SIGKILL);
    const int code = process.wait();
    INFO(process.output());
    CHECK(code != 0);
    CHECK(contains(process.output(), "First to fail: host 127.0.0.1 (node 0)"));
  }
  SUBCASE("lockstep-run") {
    process.signal(SIGKILL);
    CHECK(process.wait() == -SIGKILL);
  }
  SUBCASE("lockstep-run, by Ctrl-C twice") {
    process.signal(SIGINT);
    process.signal(SIGTERM);
    process.wait();
  }
  CHECK(eventually([&] { return !is_there(sleepers.mark) && !is_there("--assigned"); }));
}

TEST_CASE("a host whose connection is lost: the others go on without it where so few are enough") {
  const Place place("fewer");
  const Sleepers sleepers;
  Process process(
      LOCKSTEP_RUN,
      on_hosts({"--nnodes", "1:2", "--max-restarts", "1", "--last-call-timeout", "3"},
               {"sh", "-c", "echo ready $RANK; [ $WORLD_SIZE = 1 ] && touch alone || exec sleep " + sleepers.mark}));
  wait_until_ready(process, 2);
  ::kill(pid_in("pid.127.0.0.2"), SIGKILL);
  const int code = process.wait();
  INFO(process.output());
  CHECK(code == 0);
  CHECK(std::filesystem::exists("alone"));
  CHECK(contains(process.output(), "Lost: host 127.0.0.2 (node 1): ssh was killed by signal 9"));
  CHECK(eventually([&] { return !is_there(sleepers.mark) && !is_there("--assigned"); }));
}

TEST_CASE("a rank of the hosts' test" * doctest::skip()) {
  namespace par = lockstep::parallel;
  try {
    const auto group = par::init_process_group({.backend = "gloo"});
    lockstep::Tensor x = lockstep::full({3}, 1.0 + group->rank());
    group->all_reduce(x)->wait();
    CHECK(group->size() == 4);
    CHECK(lockstep::equal(x, lockstep::full({3}, 10.0)));
  } catch (const lockstep::NotBuilt&) {
    MESSAGE("SKIPPED: this build has no backend gloo");
  }
}

TEST_CASE("two hosts with networks of their own") {
  const Place place("namespaces");
  const std::string id = std::to_string(::getpid() % 100000), a = "lsa" + id, b = "lsb" + id;
  const auto ip = [](const std::string& words) { return std::system(("ip " + words + " 2>/dev/null").c_str()) == 0; };
  struct Cleanup {
    std::string words;
    ~Cleanup() { CHECK(std::system((words + " 2>/dev/null; true").c_str()) == 0); }
  } cleanup{"ip netns del " + a + "; ip netns del " + b};
  if (!ip("netns add " + a) || !ip("netns add " + b) ||
      !ip("link add " + a + " netns " + a + " type veth peer name " + b + " netns " + b)) {
    MESSAGE("SKIPPED: network namespaces cannot be made here");
    return;
  }
  for (const auto& [name, address] : {std::pair(a, "10.213.7.1"), std::pair(b, "10.213.7.2")}) {
    REQUIRE(ip("-n " + name + " addr add " + address + "/24 dev " + name));
    REQUIRE(ip("-n " + name + " link set " + name + " up"));
    REQUIRE(ip("-n " + name + " link set lo up"));
  }
  write_script("ssh", "#!/bin/sh\nhost=$1\nshift\ncase $host in 10.213.7.1) name=" + a + ";; *) name=" + b +
                          ";; esac\nexec ip netns exec $name sh -c \"$*\"\n");
  const std::vector<std::string> start{"--hosts", "10.213.7.1,10.213.7.2", "--ssh", "./ssh"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), start.begin(), start.end());
    return run(LOCKSTEP_RUN, more);
  };
  const Finished look = with({"--preflight", "true"});
  INFO(look.output);
  CHECK(look.code == 0);
  REQUIRE(lines(look.output).size() == 6);
  CHECK(lines(look.output)[5].ends_with(" GB/s"));
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const Finished job = with({"--nproc-per-node", "2", self, "--no-skip", "--test-case=a rank of the hosts' test"});
  INFO(job.output);
  CHECK(job.code == 0);
}

TEST_CASE("a launcher that waits for a host which never comes ends with its connection") {
  const Place place("waiting");
  const std::string port = std::to_string(free_port());
  Process process(LOCKSTEP_RUN, {"--hosts", "127.0.0.1,127.0.0.2", "--ssh", "./ssh", "--no-preflight", "--master-port",
                                 port, "--master-addr", "127.0.0.3", "true"});
  // Node 0 listens there; the second host is stopped before it can come.
  REQUIRE(eventually([] { return pid_in("pid.127.0.0.1") > 0 && pid_in("pid.127.0.0.2") > 0; }));
  process.signal(SIGINT);
  process.wait();
  CHECK(eventually([] { return !is_there("--assigned"); }));
}

TEST_CASE("wrong command lines are refused") {
  const Place place("wrong");
  struct Case {
    std::vector<std::string> arguments;
    std::string part;
  };
  for (const Case& wrong : std::vector<Case>{
           {{"--hosts", "a,-b", "true"}, "\"-b\" is no host"},
           {{"--hosts", "a,a", "true"}, "a is there twice"},
           {{"--hosts", "a", "--hostfile", "x", "true"}, "both given"},
           {{"--hostfile", "nowhere.txt", "true"}, "nowhere.txt"},
           {{"--hosts", "a", "--export", "NOT_SET", "true"}, "\"NOT_SET\" is no variable"},
           {{"--hosts", "a"}, "PROGRAM is required"},
           {{"--hosts", "a", "--ssh", "/no/such/ssh", "true"}, "/no/such/ssh"},
           {{"--hosts", "a", "--nproc-per-node", "0", "true"}, "expected a number from 1"},
       }) {
    const Finished finished = run(LOCKSTEP_RUN, wrong.arguments);
    CHECK(finished.code != 0);
    CHECK_MESSAGE(contains(finished.output, wrong.part), wrong.part << ": " << finished.output);
  }
  CHECK(run("/bin/sh", {"-c", std::string(LOCKSTEP_RUN) + " --assigned < /dev/null"}).code == 125);
}
