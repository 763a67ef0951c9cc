// Launchers of one job on several hosts. Node 0's serves a store; for each attempt there is a roll call that all enter, and
// a key "end" that says how it ended: set when all hosts are done, or by the first one whose ranks have failed. A will sets
// it for a launcher that dies.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <charconv>
#include <thread>

#include "lockstep/parallel/launcher_internal.h"
#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/rendezvous_internal.h"
#include "lockstep/parallel/tcp_store_internal.h"
#include "lockstep/tensor/byte_reader.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr std::chrono::seconds kFarewell{5};  // that node 0 gives the others to hear how it ended
constexpr const char* kAllDone = "done";

// "3 node 1: ...": a failed attempt, with the exit code.
std::string failure(int code, const std::string& text) { return fmt::format("{} {}", code, text); }

int to_number(const std::string& text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

class NodeLink::State {
 public:
  State(const LaunchOptions& options, RunIdentity& identity);
  ~State();

  Placement meet(int attempt);
  void end(LaunchResult& result);
  int over() const { return over_.get(); }

 private:
  std::string key(const std::string& name) const { return fmt::format("attempt/{}/{}", attempt_, name); }
  std::string bye_of(int node) const { return fmt::format("bye/{}", node); }
  Placement count_ranks();
  void watch();
  void wait_until_over(LaunchResult& result);

  const LaunchOptions& options_;
  NodeOptions nodes_;
  std::string where_;
  std::shared_ptr<TcpStore> store_;
  int attempt_ = 0;
  Descriptor farewell_, call_will_, end_will_;  // wills
  Descriptor over_;
  std::string end_;  // what the key holds, once over_ is readable
  std::thread watcher_;
};

NodeLink::State::State(const LaunchOptions& options, RunIdentity& identity)
    : options_(options), nodes_(options.nodes),
      where_(fmt::format("hosts' launchers at {}:{}", nodes_.address, nodes_.port)) {
  store_ = std::make_shared<TcpStore>(nodes_.address, nodes_.port,
                                      TcpStoreOptions{.is_server = nodes_.rank == 0,
                                                      .token = identity.token,
                                                      .authenticate = nodes_.authenticate,
                                                      .job = fmt::format("launchers of {} hosts", nodes_.count),
                                                      .timeout = nodes_.timeout});
  farewell_ = TcpMeeting::leave_will(*store_, {bye_of(nodes_.rank)}, "");
  if (nodes_.rank == 0) {
    store_->set("run id", identity.id);
  } else {
    identity.id = store_->get("run id");
  }
}

NodeLink::State::~State() {
  end_will_.reset();  // an attempt that an exception cut short ends for all
  if (watcher_.joinable()) watcher_.join();
  try {
    store_->set(bye_of(nodes_.rank), "");
    std::vector<std::string> byes;
    for (int node = 0; node < nodes_.count; ++node) byes.push_back(bye_of(node));
    if (nodes_.rank == 0) store_->wait(byes, kFarewell);
  } catch (const Error&) {
    // The others hear that the store has gone.
  }
}

Placement NodeLink::State::meet(int attempt) {
  attempt_ = attempt;
  PrefixStore calls(key("call/"), store_);
  RollCall call(calls, nodes_.rank, nodes_.count, where_);
  over_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
  LOCKSTEP_CHECK_IO(bool(over_), "launch: no eventfd: {}", reason(errno));
  call_will_ = TcpMeeting::leave_will(*store_, {key("call/") + RollCall::kOutcome}, call.will());
  end_will_ = TcpMeeting::leave_will(*store_, {key("end")},
                                     failure(1, fmt::format("node {}: its launcher ended\n", nodes_.rank)));
  if (!call.enter()) throw CommError(call.error());
  calls.set(fmt::format("nproc/{}", nodes_.rank), std::to_string(options_.nproc));
  call.arrive();
  call.wait_for_all(nodes_.timeout, nodes_.timeout);
  const Placement place = count_ranks();
  watcher_ = std::thread([this] { watch(); });
  return place;
}

Placement NodeLink::State::count_ranks() {
  Placement place{.local_size = options_.nproc, .world_size = 0, .attempt = attempt_};
  for (int node = 0; node < nodes_.count; ++node) {
    if (node == nodes_.rank) place.first_rank = place.world_size;
    const std::string text = store_->get(key(fmt::format("call/nproc/{}", node)));
    const int count = to_number(text);
    if (count < 1 || count > kMaxRanks)
      throw CommError(fmt::format("{}: node {} starts {} ranks", where_, node, quoted(text)));
    place.world_size += count;
  }
  if (place.world_size > kMaxRanks)
    throw CommError(fmt::format("{}: {} ranks in all, at most {} are possible", where_, place.world_size, kMaxRanks));
  return place;
}

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
    } else if (store_->add(key("finished"), 1) == nodes_.count) {
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
  if (result.exit_code == 0) result.exit_code = std::max(to_number(end_), 1);
}

// This host's ranks have ended; those of others may run on. A second thought is possible meanwhile.
void NodeLink::State::wait_until_over(LaunchResult& result) {
  pollfd polled[] = {{over_.get(), POLLIN, 0}, {result.was_asked_to_stop ? -1 : options_.stop_fd, POLLIN, 0}};
  for (;;) {
    if (::poll(polled, 2, -1) < 0) continue;  // EINTR, or no memory for a moment
    if (polled[0].revents) return;
    polled[1].fd = -1;
    signalfd_siginfo request;
    if (::read(options_.stop_fd, &request, sizeof(request)) == 0) continue;  // closed: nobody will ask
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
Placement NodeLink::meet(int attempt) { return state_->meet(attempt); }
int NodeLink::failed_elsewhere() const { return state_->over(); }
void NodeLink::end(LaunchResult& result) { state_->end(result); }

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
