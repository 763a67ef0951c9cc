// Launchers of one job on several hosts. Node 0's serves a store and says for each attempt who takes part: all, or, once the
// least number has come and the last call is over, those who are here. A key "end" says how the attempt ended: set when all
// who take part are done, or by the first one whose ranks have failed. A will sets it for a launcher that dies.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <thread>

#include "lockstep/parallel/launch/launcher_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr std::chrono::seconds kFarewell{5};  // that node 0 gives the others to hear how it ended
constexpr milliseconds kForNodeZero{500};     // to tell the others who is missing before they give up themselves
constexpr milliseconds kLeaving{1000};        // in which the store hears of the end of a launcher that was killed
constexpr const char *kAllDone = "done", *kGone = "gone";
constexpr char kNobody = '!';  // begins what stands in the place of a list of members: an error

// "3 node 1: ...": a failed attempt, with the exit code.
std::string failure(int code, const std::string& text) { return fmt::format("{} {}", code, text); }

int to_node_number(const std::string& text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// A launcher that takes part in an attempt.
struct Member {
  int node = 0;
  int nproc = 0;
  std::string id;  // of this process: another one may take its node's place
};

// "0 2 f3a1 1 4 77b0": node, ranks and id of each.
std::string to_text(const std::vector<Member>& members) {
  std::string out;
  for (const Member& member : members) out += fmt::format("{} {} {} ", member.node, member.nproc, member.id);
  return out;
}

std::vector<Member> to_members(const std::string& text) {
  std::istringstream words(text);
  std::vector<Member> out;
  for (Member member; words >> member.node >> member.nproc >> member.id;) out.push_back(member);
  return out;
}

}  // namespace

class NodeLink::State {
 public:
  State(const LaunchOptions& options, RunIdentity& identity);
  ~State();

  std::optional<Placement> meet(int attempt);
  void end(LaunchResult& result);
  int over() const { return over_.get(); }

 private:
  std::string key(const std::string& name) const { return fmt::format("attempt/{}/{}", attempt_, name); }
  std::string here_key(int node) const { return key(fmt::format("here/{}", node)); }
  static std::string gone_key(const std::string& id) { return "gone/" + id; }
  // What the key holds, without waiting and without a change; the expected value is one that nobody sets.
  std::string peek(const std::string& name) { return store_->compare_set(name, std::string(1, '\0'), ""); }
  void connect(const std::string& token);
  bool is_stop_requested();
  std::optional<std::string> await(const std::string& name, milliseconds timeout);
  void check_gone(const std::string& holder);
  void enter();
  std::vector<Member> present();
  std::optional<std::vector<Member>> gather();
  std::string describe_missing(const std::vector<Member>& here) const;
  std::optional<std::vector<Member>> hear_members();
  Placement place_among(const std::vector<Member>& members) const;
  void watch();
  void wait_until_over(LaunchResult& result);

  const LaunchOptions& options_;
  NodeOptions nodes_;
  std::string where_, id_ = random_hex(8);
  int stop_fd_;
  std::shared_ptr<TcpStore> store_;
  int attempt_ = -1;
  std::vector<Member> members_;
  std::unique_ptr<LastWill> farewell_, end_will_;
  Descriptor over_;
  std::string end_;  // what the key holds, once over_ is readable
  std::thread watcher_;
};

NodeLink::State::State(const LaunchOptions& options, RunIdentity& identity)
    : options_(options), nodes_(options.nodes),
      where_(fmt::format("hosts' launchers at {}:{}", nodes_.address, nodes_.port)), stop_fd_(options.stop_fd) {
  connect(identity.token);
  if (!store_) return;
  farewell_ = store_->leave_last_will({gone_key(id_)}, kGone);
  if (nodes_.rank == 0) {
    store_->set("run id", identity.id);
  } else {
    identity.id = store_->get("run id");
  }
}

// No store where this process is asked to stop meanwhile.
void NodeLink::State::connect(const std::string& token) {
  // Between looks at the stop request; long enough to tell a store of another job from one that is slow.
  constexpr milliseconds kEach = kHandshakeDeadline + std::chrono::seconds(1);
  TcpStoreOptions options{.is_server = nodes_.rank == 0,
                          .token = token,
                          .authenticate = nodes_.authenticate,
                          .job = fmt::format("launchers of {} hosts", nodes_.count),
                          .timeout = std::min(nodes_.timeout, kEach)};
  for (Deadline until(nodes_.timeout); !store_ && !is_stop_requested();) {
    try {
      store_ = std::make_shared<TcpStore>(nodes_.address, nodes_.port, options);
      store_->set_timeout(nodes_.timeout);
    } catch (const CommTimeout& error) {
      if (until.passed())
        throw CommTimeout(
            fmt::format("{}: node 0 did not come within {} ms: {}", where_, nodes_.timeout.count(), error.what()));
    }
  }
}

NodeLink::State::~State() {
  if (!store_) return;
  end_will_.reset();  // an attempt that an exception cut short ends for all
  if (watcher_.joinable()) watcher_.join();
  try {
    store_->set(gone_key(id_), kGone);
    if (nodes_.rank != 0) return;
    std::vector<std::string> gone;
    for (const Member& member : present()) gone.push_back(gone_key(member.id));
    if (!gone.empty()) store_->wait(gone, kFarewell);
  } catch (const Error&) {
    // The others hear that the store has gone.
  }
}

// --- who takes part -----------------------------------------------------------------------------------------------------

bool NodeLink::State::is_stop_requested() {
  pollfd stop{stop_fd_, POLLIN, 0};
  return ::poll(&stop, 1, 0) > 0 && take_request(stop_fd_) != 0;
}

// The value of a key; none where this process is asked to stop. Throws CommTimeout. It looks again and again: a short wait
// in the store costs a connection, which over a slow network takes longer than the wait.
std::optional<std::string> NodeLink::State::await(const std::string& name, milliseconds timeout) {
  for (Deadline until(timeout); !is_stop_requested();) {
    std::string value = peek(name);
    if (!value.empty()) return value;
    if (until.passed())
      throw CommTimeout(fmt::format("{}: node 0 did not set {} within {} ms", where_, name, timeout.count()));
    pollfd stop{stop_fd_, POLLIN, 0};
    static_cast<void>(::poll(&stop, 1, static_cast<int>(until.slice().count())));  // whatever ends it: look again
  }
  return std::nullopt;
}

// One that comes late, or comes back, takes part in the attempt after the one that is running.
std::optional<Placement> NodeLink::State::meet(int attempt) {
  if (!store_) return std::nullopt;
  const bool is_new = attempt_ < 0;
  attempt_ = attempt;
  if (nodes_.rank == 0) {
    store_->set("attempt", std::to_string(attempt));
  } else if (is_new) {
    attempt_ = std::max(to_node_number(store_->get("attempt")), attempt);
  }
  for (;; ++attempt_) {
    enter();
    const auto members = nodes_.rank == 0 ? gather() : hear_members();
    if (!members) return std::nullopt;
    members_ = *members;
    const bool is_in = std::any_of(members_.begin(), members_.end(), [&](const Member& m) { return m.id == id_; });
    if (is_in) break;
    const auto end = await(key("end"), kForever);
    if (!end) return std::nullopt;
    if (*end == kAllDone) throw CommError(fmt::format("{}: the job was done before node {} came", where_, nodes_.rank));
  }
  const Placement place = place_among(members_);
  watcher_ = std::thread([this] { watch(); });
  return place;
}

// Who has this node's place may be its life before this one.
void NodeLink::State::check_gone(const std::string& holder) {
  if (holder.empty() || holder == id_) return;
  try {
    store_->wait({gone_key(holder)}, std::min(kLeaving, nodes_.timeout));
  } catch (const CommTimeout&) {
    throw CommError(
        fmt::format("{}: node {} is there twice\nEvery host has a --node-rank of its own", where_, nodes_.rank));
  }
}

// The will comes first: whoever is among the members is missed when it dies.
void NodeLink::State::enter() {
  const auto id_in = [](const std::string& text) { return text.substr(text.find(' ') + 1); };
  check_gone(id_in(peek(here_key(nodes_.rank))));
  over_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
  LOCKSTEP_CHECK_IO(bool(over_), "launch: no eventfd: {}", reason(errno));
  end_will_ =
      store_->leave_last_will({key("end")}, failure(1, fmt::format("node {}: its launcher ended\n", nodes_.rank)));
  const std::string own = fmt::format("{} {}", options_.nproc, id_);
  const std::string holder = store_->compare_set(here_key(nodes_.rank), "", own);
  check_gone(id_in(holder));
  if (holder != own) store_->set(here_key(nodes_.rank), own);  // in the place of one that is gone
  store_->set(key(fmt::format("entry/{}", store_->add(key("entries"), 1))), "");
}

std::vector<Member> NodeLink::State::present() {
  std::vector<Member> out;
  for (int node = 0; node < nodes_.count; ++node) {
    std::istringstream words(peek(here_key(node)));
    Member member{.node = node, .nproc = 0, .id = {}};
    if (words >> member.nproc >> member.id && peek(gone_key(member.id)).empty()) out.push_back(member);
  }
  return out;
}

// On node 0.
std::optional<std::vector<Member>> NodeLink::State::gather() {
  const auto least = static_cast<std::size_t>(nodes_.min_count > 0 ? nodes_.min_count : nodes_.count);
  const auto give_up = [&](const std::string& why) { store_->set(key("members"), kNobody + why); };
  Deadline patience(nodes_.timeout);
  std::optional<Deadline> last_call;
  for (int entries = 1;;) {
    if (is_stop_requested()) {
      give_up(fmt::format("{}: node 0 was asked to stop while it waited for other hosts", where_));
      return std::nullopt;
    }
    try {
      store_->wait({key(fmt::format("entry/{}", entries))}, kSlice);
      ++entries;
    } catch (const CommTimeout&) {
      // Time to look who is gone.
    }
    std::vector<Member> here = present();
    if (here.size() < least) {
      last_call.reset();
    } else if (!last_call) {
      last_call.emplace(nodes_.last_call);
    }
    if (here.size() < least && patience.passed()) {
      const std::string missing = describe_missing(here);
      give_up(missing);
      throw CommTimeout(missing);
    }
    if (here.size() < static_cast<std::size_t>(nodes_.count) && !(last_call && last_call->passed())) continue;
    store_->set(key("members"), to_text(here));
    return here;
  }
}

std::string NodeLink::State::describe_missing(const std::vector<Member>& here) const {
  std::string missing;
  for (int node = 0; node < nodes_.count; ++node) {
    const bool is_here = std::any_of(here.begin(), here.end(), [&](const Member& m) { return m.node == node; });
    if (!is_here && missing.size() < 60) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", node);
  }
  return fmt::format("{}: node {} of {} did not arrive within {} ms; {} of them are here", where_, missing,
                     nodes_.count, nodes_.timeout.count(), here.size());
}

// On the others.
std::optional<std::vector<Member>> NodeLink::State::hear_members() {
  const auto text = await(key("members"), nodes_.timeout + nodes_.last_call + kForNodeZero);
  if (!text) return std::nullopt;
  if (text->starts_with(kNobody)) throw CommError(text->substr(1));
  return to_members(*text);
}

Placement NodeLink::State::place_among(const std::vector<Member>& members) const {
  Placement place{.local_size = options_.nproc, .world_size = 0, .attempt = attempt_};
  place.group_size = static_cast<int>(members.size());
  for (const Member& member : members) {
    if (member.nproc < 1 || member.nproc > kMaxRanks)
      throw CommError(fmt::format("{}: node {} starts {} ranks", where_, member.node, member.nproc));
    if (member.node < nodes_.rank) {
      place.first_rank += member.nproc;
      ++place.group_rank;
    }
    place.world_size += member.nproc;
  }
  if (place.world_size > kMaxRanks)
    throw CommError(fmt::format("{}: {} ranks in all, at most {} are possible", where_, place.world_size, kMaxRanks));
  return place;
}

// --- how it ends --------------------------------------------------------------------------------------------------------

// On its own thread, until the attempt is over.
void NodeLink::State::watch() {
  try {
    end_ = store_->get(key("end"), kForever);
  } catch (const Error& error) {
    end_ = failure(1, fmt::format("node 0's launcher is lost: {}\n", error.what()));
  }
  const std::uint64_t one = 1;
  static_cast<void>(::write(over_.get(), &one, sizeof(one)) ==
                    sizeof(one));  // cannot fail on an eventfd that stands at 0
}

void NodeLink::State::end(LaunchResult& result) {
  try {
    if (result.exit_code != 0) {
      store_->compare_set(key("end"), "",
                          failure(result.exit_code, fmt::format("node {}: {}", nodes_.rank, result.summary())));
    } else if (store_->add(key("finished"), 1) == static_cast<int>(members_.size())) {
      store_->compare_set(key("end"), "", kAllDone);
    }
  } catch (const Error&) {
    // The watcher hears it, too.
  }
  wait_until_over(result);
  watcher_.join();
  const std::string own = fmt::format("node {}: ", nodes_.rank);
  const std::string text = end_.substr(std::min(end_.find(' ') + 1, end_.size()));
  if (end_ == kAllDone || text.starts_with(own)) return;
  result.elsewhere = text;
  if (result.exit_code == 0) result.exit_code = std::max(to_node_number(end_), 1);
}

// This host's ranks have ended; those of others may run on. A second thought is possible meanwhile.
void NodeLink::State::wait_until_over(LaunchResult& result) {
  pollfd polled[] = {{over_.get(), POLLIN, 0}, {result.was_asked_to_stop ? -1 : stop_fd_, POLLIN, 0}};
  for (;;) {
    if (::poll(polled, 2, -1) < 0) continue;  // EINTR, or no memory for a moment
    if (polled[0].revents) return;
    polled[1].fd = -1;
    if (take_request(stop_fd_) == 0) continue;
    result.was_asked_to_stop = true;
    try {
      store_->compare_set(key("end"), "", failure(1, fmt::format("node {}: was asked to stop\n", nodes_.rank)));
    } catch (const Error&) {
      // The watcher hears it, too.
    }
  }
}

NodeLink::NodeLink(const LaunchOptions& options, RunIdentity& identity)
    : state_(std::make_unique<State>(options, identity)) {}
NodeLink::~NodeLink() = default;
std::optional<Placement> NodeLink::meet(int attempt) { return state_->meet(attempt); }
int NodeLink::failed_elsewhere() const { return state_->over(); }
void NodeLink::end(LaunchResult& result) { state_->end(result); }

}  // namespace lockstep::parallel
