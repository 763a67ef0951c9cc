// The hosts of a job: lists and files of them, and what each one is told.
#include "lockstep/parallel/launch/hosts_options_internal.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/file_internal.h"

namespace lockstep::parallel {

namespace {

// Why ssh must not get it as a host; empty where it may. A dash would begin an option; the rest is what names,
// addresses and user names consist of, nothing that a shell in ssh's configuration would read otherwise.
std::string objection_to(std::string_view name) {
  constexpr std::size_t kLongest = 255;
  if (name.empty()) return "a host's name is missing";
  if (name.size() > kLongest) return fmt::format("the name {} is longer than {} bytes", in_quotes(name), kLongest);
  const std::size_t host = name.find('@') + 1;
  if (name[0] == '-' || host == name.size() || name[host] == '-')
    return fmt::format("{} is no host: a name cannot be empty or begin with \"-\"", in_quotes(name));
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_plain && std::string_view("._-:@%[]").find(c) == std::string_view::npos)
      return fmt::format("{} is no host: names consist of letters, digits and . _ - : @", in_quotes(name));
  }
  return "";
}

bool has(const std::vector<Host>& hosts, std::string_view name) {
  return std::any_of(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
}

// --- a file of hosts ----------------------------------------------------------------------------------------------------

struct Word {
  std::string_view text;
  std::size_t column;  // from 1
};

std::vector<Word> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  line = line.substr(0, line.find('#'));
  std::vector<Word> out;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    out.push_back({line.substr(at, end - at), at + 1});
    at = line.find_first_not_of(kBlanks, end);
  }
  return out;
}

// Of "slots=4"; 0 where it is something else.
int slots_of(std::string_view word) {
  constexpr std::string_view kName = "slots=";
  int slots = 0;
  if (!word.starts_with(kName)) return 0;
  const auto [end, error] = std::from_chars(word.data() + kName.size(), word.data() + word.size(), slots);
  return error == std::errc() && end == word.data() + word.size() && slots <= kMaxRanks ? std::max(slots, 0) : 0;
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& list) {
  std::vector<Host> hosts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin), objection = objection_to(name);
    LOCKSTEP_CHECK(objection.empty(), "hosts: {}, number {} of {}", objection, hosts.size() + 1, in_quotes(list));
    LOCKSTEP_CHECK(!has(hosts, name), "hosts: {} is there twice\nSeveral ranks on one host: --nproc-per-node", name);
    hosts.push_back({name});
    LOCKSTEP_CHECK(hosts.size() <= kMaxNodes, "hosts: more than {}", kMaxNodes);
    begin = end + 1;
  }
  return hosts;
}

std::vector<Host> read_hosts(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kMaxHostFile);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<Host> hosts;
  std::size_t line = 1;
  const auto require = [&](bool is_right, const Word& word, const std::string& what) {
    LOCKSTEP_CHECK_IO(is_right, "{}:{}:{}: {}", path, line, word.column, what);
  };
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<Word> words = words_of(text.substr(begin, end - begin));
    begin = end + 1;
    if (words.empty()) continue;
    const std::string objection = objection_to(words[0].text);
    require(objection.empty(), words[0], objection);
    require(!has(hosts, words[0].text), words[0], "the host is there twice; slots=N says how many ranks it has");
    require(hosts.size() < kMaxNodes, words[0], fmt::format("more than {} hosts", kMaxNodes));
    Host& host = hosts.emplace_back(Host{std::string(words[0].text)});
    for (std::size_t i = 1; i < words.size(); ++i) {
      require(i == 1 && slots_of(words[i].text) > 0, words[i],
              fmt::format("{}: after the host only slots=1 to {} is known", in_quotes(words[i].text), kMaxRanks));
      host.slots = slots_of(words[i].text);
    }
  }
  LOCKSTEP_CHECK_IO(!hosts.empty(), "{}:{}:1: no host in it; one a line, \"name\" or \"name slots=4\"", path, line);
  return hosts;
}

// --- what a host is told ------------------------------------------------------------------------------------------------

void check_hosts_options(const HostsOptions& options) {
  LOCKSTEP_CHECK(!options.hosts.empty() && options.hosts.size() <= kMaxNodes, "hosts: there are {}, expected 1 to {}",
                 options.hosts.size(), kMaxNodes);
  LOCKSTEP_CHECK(!options.ssh.empty() && !options.ssh[0].empty(), "hosts: there is no command for ssh");
  LOCKSTEP_CHECK(!options.command.empty(), "hosts: there is no program to run");
  LOCKSTEP_CHECK(options.min_hosts >= 0 && options.min_hosts <= static_cast<int>(options.hosts.size()),
                 "hosts: at least {} of {} hosts are wanted", options.min_hosts, options.hosts.size());
  for (const Host& host : options.hosts)
    LOCKSTEP_CHECK(objection_to(host.name).empty(), "hosts: {}", objection_to(host.name));
}

Assignment assignment_for(const HostsOptions& options, int node, const std::string& token,
                          std::vector<std::string> flags) {
  const std::string& first = options.hosts[0].name;
  std::string address = options.address.empty() ? first.substr(first.find('@') + 1) : options.address;
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  const std::size_t count = options.hosts.size();
  const Host& host = options.hosts[static_cast<std::size_t>(node)];
  flags.push_back(options.min_hosts > 0 ? fmt::format("--nnodes={}:{}", options.min_hosts, count)
                                        : fmt::format("--nnodes={}", count));
  flags.push_back(fmt::format("--node-rank={}", node));
  flags.push_back("--master-addr=" + address);
  flags.push_back(fmt::format("--master-port={}", options.port));
  flags.push_back("--host-name=" + host.name);
  if (host.slots > 0) flags.push_back(fmt::format("--nproc-per-node={}", host.slots));
  flags.push_back("--");
  flags.insert(flags.end(), options.command.begin(), options.command.end());
  return {.token = token, .folder = options.folder, .environment = options.environment, .arguments = std::move(flags)};
}

std::string shell_quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace lockstep::parallel
