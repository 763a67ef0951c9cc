// Lists of hosts, what each host is told, and what comes back.
#include "lockstep/parallel/launch/hosts_options_internal.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "tests/support/ranks.h"
#include "tests/support/testing.h"

namespace par = lockstep::parallel;

namespace {

std::string write_hosts(const std::string& text) {
  std::ofstream("hosts.txt", std::ios::binary) << text;
  return "hosts.txt";
}

// A descriptor from which `bytes` can be read, and then the end.
struct Input {
  explicit Input(const std::string& bytes) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    REQUIRE(::write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(ends[1]);
    fd = ends[0];
  }
  ~Input() { ::close(fd); }
  int fd;
};

std::string refusal(const std::string& bytes) {
  const Input input(bytes);
  return error_of<lockstep::IoError>([&] { par::read_assignment(input.fd); });
}

}  // namespace

TEST_CASE("a list of hosts") {
  const auto hosts = par::parse_hosts("a,user@node-2.local,10.0.0.3,[fe80::1%eth0]");
  REQUIRE(hosts.size() == 4);
  CHECK(hosts[1].name == "user@node-2.local");
  for (const char* wrong : {"", "a,", ",a", "-oProxyCommand=x", "a,-b", "a b", "a;b", "u@", "u@-b", "a\nb", "$(x)"}) {
    INFO(wrong);
    CHECK(!error_of([&] { par::parse_hosts(wrong); }).empty());
  }
  CHECK(contains(error_of([] { par::parse_hosts("a,b,a"); }), "a is there twice"));
  CHECK(contains(error_of([] { par::parse_hosts("a,-b"); }), "\"-b\" is no host"));
}

TEST_CASE("a file of hosts, and the place of what is wrong in it") {
  const auto hosts = par::read_hosts(write_hosts("# ours\n\n a slots=4 # first\r\nb\nc\tslots=1"));
  REQUIRE(hosts.size() == 3);
  CHECK(hosts[0].name == "a");
  CHECK(hosts[0].slots == 4);
  CHECK(hosts[1].slots == 0);
  CHECK(hosts[2].slots == 1);
  struct Case {
    std::string text, part;
  };
  for (const Case& wrong : std::vector<Case>{{"a\n  -b\n", "hosts.txt:2:3: \"-b\" is no host"},
                                             {"a slots=0", "hosts.txt:1:3: \"slots=0\""},
                                             {"a slots=4x", "hosts.txt:1:3: "},
                                             {"a slots=99999999999999", "hosts.txt:1:3: "},
                                             {"a slots=4097", "slots=1 to 4096"},
                                             {"a max-slots=4", "hosts.txt:1:3: "},
                                             {"a slots=2 slots=3", "hosts.txt:1:11: "},
                                             {"a\nb\na\n", "hosts.txt:3:1: the host is there twice"},
                                             {std::string("a\0b", 3), "hosts.txt:1:1: \"a\\x00b\" is no host"},
                                             {"# nothing\n", "no host in it"},
                                             {"", "hosts.txt:1:1: no host in it"},
                                             {std::string(300, 'a'), "hosts.txt:1:1: "}}) {
    INFO(wrong.text);
    const std::string text = error_of<lockstep::IoError>([&] { par::read_hosts(write_hosts(wrong.text)); });
    CHECK_MESSAGE(contains(text, wrong.part), text);
  }
  std::string many;
  for (int i = 0; i < 1025; ++i) many += "host" + std::to_string(i) + "\n";
  CHECK(contains(error_of<lockstep::IoError>([&] { par::read_hosts(write_hosts(many)); }), "hosts.txt:1025:1: "));
  CHECK(!error_of<lockstep::IoError>([] { par::read_hosts(write_hosts(std::string(2 << 20, '\n'))); }).empty());
  CHECK(!error_of<lockstep::IoError>([] { par::read_hosts("/dev/zero"); }).empty());
  CHECK(!error_of<lockstep::IoError>([] { par::read_hosts("nowhere"); }).empty());
}

TEST_CASE("an assignment arrives as it was, whatever its words hold") {
  const par::Assignment sent{.token = "secret",
                             .folder = "/a folder",
                             .environment = {"A=", "B=x\ny"},
                             .arguments = {"", "a'b\"c", "\xff\n$(x)", "--"}};
  const Input input(par::to_bytes(sent) + "x");
  const par::Assignment got = par::read_assignment(input.fd);
  CHECK(got.token == sent.token);
  CHECK(got.folder == sent.folder);
  CHECK(got.environment == sent.environment);
  CHECK(got.arguments == sent.arguments);
  char next = 0;
  CHECK(::read(input.fd, &next, 1) == 1);  // what follows is not touched
  CHECK(next == 'x');
}

TEST_CASE("what is no assignment is refused, and nothing of it is shown") {
  const std::string whole =
      par::to_bytes({.token = "secret", .folder = "/", .environment = {"A=1"}, .arguments = {"x"}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    const std::string text = refusal(whole.substr(0, size));
    CHECK(!text.empty());
    CHECK(!contains(text, "secret"));
  }
  const std::string magic = "lockstep-run assignment 1 ";
  CHECK(contains(refusal("hello\n"), "is no assignment"));
  CHECK(contains(refusal("lockstep-run assignment 2 5\n"), "another version"));
  CHECK(contains(refusal(magic + "4194305\n"), "no number up to 4194304"));
  CHECK(contains(refusal(magic + "-1\n"), "no number up to"));
  CHECK(contains(refusal(magic + "99999999999999999999999999\n"), "too long a line"));
  CHECK(contains(refusal(magic + "3\nabc"), "no end"));
  CHECK(contains(refusal(magic + std::string("4\na\0b\0", 6)), "too few words"));
  CHECK(contains(refusal(magic + std::string("6\na\0b\0"
                                             "9\0",
                                             8)),
                 "another number of variables"));
}

TEST_CASE("a probe's line is taken as a whole or not at all") {
  const std::string hash(64, 'a');
  par::HostReport report;
  CHECK(par::take_probe_line("lockstep-probe facts 0.1.0 " + hash + " " + hash + " 8", report));
  CHECK(report.cores == 8);
  CHECK(par::take_probe_line("lockstep-probe link 2 1 12.5 1.25", report));
  REQUIRE(report.links.size() == 1);
  CHECK(report.links[0].from == 2);
  CHECK(report.links[0].to == 1);
  CHECK(report.links[0].latency_us == 12.5);
  CHECK(report.links[0].gigabytes_per_s == 1.25);
  for (const std::string& wrong : std::vector<std::string>{
           std::string("Welcome"), std::string("lockstep-probe"), "lockstep-probe facts 1 x y 8",
           "lockstep-probe facts 0.1.0 " + hash + " " + hash, std::string("lockstep-probe link 2 1 12.5")})
    CHECK(!par::take_probe_line(wrong, report));
  CHECK(report.cores == 8);
  par::HostReport again;
  CHECK(par::take_probe_line(par::facts_line(report), again));
  CHECK(again.program_hash == hash);
}

TEST_CASE("every link is measured once, and the first host's come last") {
  CHECK(par::links_between(1).empty());
  std::string order;
  for (const par::HostLink& link : par::links_between(4)) order += std::to_string(link.from * 10 + link.to) + " ";
  CHECK(order == "21 31 32 10 20 30 ");
}

TEST_CASE("a word is one word to a shell") {
  CHECK(par::shell_quoted("/a b/$x") == "'/a b/$x'");
  CHECK(par::shell_quoted("it's") == "'it'\\''s'");
}
