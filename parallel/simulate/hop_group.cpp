#include "lockstep/parallel/simulate/hop_group_internal.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/small_vector.h"
#include "lockstep/parallel/simulate/collective_hops_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

struct HopGroup::Head {
  std::uint64_t number = 0, signature = 0, count = 0, detail = 0, algorithm = 0, simulated = 0;
  PurposeName purpose = {};
  double seconds = 0;
};

namespace {

std::byte* bytes_at(const Tensor& data, std::int64_t element) {
  return static_cast<std::byte*>(data.raw_data()) + static_cast<std::size_t>(element) * item_size(data.dtype());
}

// Returns a view of elements [begin, end) of `data`, which has one dimension.
Tensor elements(const Tensor& data, std::int64_t begin, std::int64_t end) { return raw::slice(data, 0, begin, end, 1); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// A message and the time at which it was sent. Only `wait` advances the clock.
class TimedTransfer final : public Work {
 public:
  TimedTransfer(std::shared_ptr<Work> clock, std::shared_ptr<Work> data, Callback<void()> advance_clock)
      : clock_(std::move(clock)), data_(std::move(data)), advance_clock_(std::move(advance_clock)) {}
  void wait() override {
    clock_->wait();
    data_->wait();
    advance_clock_();
  }
  bool is_completed() override { return clock_->is_completed() && data_->is_completed(); }
  void check_completed() override {
    clock_->check_completed();
    data_->check_completed();
  }

 private:
  std::shared_ptr<Work> clock_, data_;
  Callback<void()> advance_clock_;
};

}  // namespace

HopGroup::HopGroup(const InitOptions& options, const Rendezvous& place)
    : Backend(place), options_(options.backend_options.get<SimOptions>()),
      network_free_(static_cast<std::size_t>(place.size), 0) {
  const auto part = [&](const char* prefix) {
    Rendezvous own = place;
    own.store = std::make_shared<PrefixStore>(prefix, place.store);
    own.store->set_timeout(options.timeout);
    return make_local(options, own);
  };
  messages_ = part("messages/");
  plain_ = part("plain/");
}

HopGroup::~HopGroup() {
  try {  // dropped operations are finished, unless there is an exception: then peers may never arrive
    while (!queue_.empty() && !failure_ && std::uncaught_exceptions() == 0) run_front(/*waits=*/true);
  } catch (const Error&) {
    // The user did not wait for the operation, so its error is ignored.
  }
  for (const auto& work : queue_) work->fail_without_group(work->call);
}

// A collective with a plan sends its messages. For kDirect the closed form of Backend gives the same total.
void HopGroup::record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const {
  const std::optional<HopPlan> plan = plan_of(call);
  if (!plan || options_.algorithm == Algorithm::kDirect) return Backend::record_traffic(call, phase, traffic);
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  for (int step = 0; step < plan->steps(); ++step) {
    for (const Hop& hop : plan->step(step)) {
      if (hop.from == rank())
        traffic.add(global_rank(rank()), global_rank(hop.to), phase, (hop.end - hop.begin) * item);
    }
  }
}

// --- starting -------------------------------------------------------------------------------------------------------------

std::shared_ptr<Work> HopGroup::start(Call call) {
  failure_.check_usable(call);
  if (call.is_message()) return start_transfer(std::move(call));
  // Starting may wait for peers, which may wait for this rank's part of earlier operations.
  while (queue_.size() >= (plan_of(call) ? kInFlight : 1)) run_front(/*waits=*/true);
  failure_.check_usable(call);
  auto work = std::make_shared<HopWork>(this, std::move(call), options_.simulation);
  send_head(*work);
  if (plan_of(work->call)) {
    start_plan(*work);
  } else if (work->call.kind != Kind::kEmpty) {
    work->plain = plain_->start(work->call);
  }
  queue_.push_back(work);
  return work;
}

// The messages of a collective; none for other collectives.
std::optional<HopPlan> HopGroup::plan_of(const Call& call) const {
  if (call.kind == Kind::kAllReduce) return HopPlan(options_.algorithm, size(), call.count);
  const Collective half = call.kind == Kind::kAllGather ? Collective::kAllGather : Collective::kReduceScatter;
  const bool is_half = call.kind == Kind::kAllGather || call.kind == Kind::kReduceScatter;
  if (!is_half || !HopPlan::exists(options_.algorithm, half)) return std::nullopt;
  return HopPlan(options_.algorithm, size(), call.count * size(), half);
}

// Copies this rank's input to where the messages are taken from.
void HopGroup::start_plan(HopWork& work) {
  const Call& call = work.call;
  work.plan = *plan_of(call);
  const bool gathers = call.kind == Kind::kAllGather, scatters = call.kind == Kind::kReduceScatter;
  const std::int64_t all = gathers || scatters ? call.count * size() : call.count;
  work.data = scatters ? raw::empty({all}, {.dtype = call.dtype}) : raw::reshape(call.out, {all});
  const std::int64_t own = gathers ? call.count : all;
  copy_bytes(bytes_at(work.data, gathers ? call.count * rank() : 0), static_cast<const std::byte*>(call.in.raw_data()),
             static_cast<std::size_t>(own) * item_size(call.dtype));
}

// The result of reduce_scatter is this rank's part of the sums.
void HopGroup::end_plan(const HopWork& work) {
  const Call& call = work.call;
  if (call.kind != Kind::kReduceScatter) return;
  copy_bytes(static_cast<std::byte*>(call.out.raw_data()), bytes_at(work.data, call.count * rank()), call.bytes());
}

// On a simulated network the time of the sender's clock is sent first.
std::shared_ptr<Work> HopGroup::start_transfer(Call call) {
  if (!options_.simulation) return plain_->start(std::move(call));
  const bool sends = call.kind == Kind::kSend;
  Call clock = call;
  clock.in = clock.out = raw::empty({1}, {.dtype = kFloat64});
  clock.count = 1;
  clock.dtype = kFloat64;
  clock.tag = 0;
  if (sends) clock.in.span<double>()[0] = options_.simulation->seconds();
  const Tensor sent_at = clock.out;
  auto first = plain_->start(std::move(clock));
  const double taken =
      options_.simulation->link().seconds(static_cast<double>(call.count) * static_cast<double>(item_size(call.dtype)));
  auto data = plain_->start(std::move(call));
  return std::make_shared<TimedTransfer>(std::move(first), std::move(data),
                                         [sent_at, taken, sends, simulation = options_.simulation] {
                                           if (!sends) simulation->wait_until(sent_at.span<double>()[0] + taken);
                                         });
}

void HopGroup::send_head(HopWork& work) {
  const Call& call = work.call;
  const Head head{.number = call.number,
                  .signature = signature_of(call),
                  .count = static_cast<std::uint64_t>(call.count),
                  .detail = call.detail,
                  .algorithm = static_cast<std::uint64_t>(options_.algorithm),
                  .simulated = options_.simulation ? 1u : 0u,
                  .purpose = call.purpose,
                  .seconds = options_.simulation ? options_.simulation->seconds() : 0};
  const auto bytes = static_cast<std::int64_t>(sizeof(Head));
  work.heads = raw::empty({size(), bytes}, {.dtype = kUInt8});
  work.under_way_heads = messages_->start({.kind = Kind::kAllGather,
                                           .in = raw::from_bytes(&head, {bytes}, kUInt8),
                                           .out = work.heads,
                                           .count = bytes,
                                           .number = call.number,
                                           .rank = rank(),
                                           .failed_steps = call.failed_steps});
}

// All ranks agree on the call before they get memory together.
Ref<Storage> HopGroup::allocate(const Call& call, std::size_t bytes, Device device) {
  start(call)->wait();
  return plain_->allocate(call, bytes, device);
}

void HopGroup::release_staging() {
  while (!queue_.empty()) run_front(/*waits=*/true);
  messages_->release_staging();
  plain_->release_staging();
}

void HopGroup::fail_group(const std::string& why) {
  plain_->fail_group(why);
  messages_->fail_group(why);
}

std::uint32_t HopGroup::step_failed(std::uint64_t next, const std::string& why) {
  plain_->step_failed(next, why);
  return messages_->step_failed(next, why);
}

// --- driving --------------------------------------------------------------------------------------------------------------

bool HopGroup::wait_or_poll(Work& work, bool waits) {
  if (!waits) return work.is_completed();
  work.wait();
  return true;
}

// Advances a collective as far as possible, with `waits` to its end. Returns whether it is complete.
bool HopGroup::advance(HopWork& work, bool waits) {
  if (!work.agreed) {
    if (!wait_or_poll(*work.under_way_heads, waits)) return false;
    work.under_way_heads->wait();  // is_completed hides errors
    compare_heads(work);
    work.agreed = true;
  }
  if (work.plain) return wait_or_poll(*work.plain, waits);
  if (work.step < 0) start_step(work);
  while (work.step < work.plan.steps()) {
    for (; !work.messages.empty(); work.messages.pop_back()) {
      if (!wait_or_poll(*work.messages.back(), waits)) return false;
      work.messages.back()->wait();
    }
    finish_step(work);
    start_step(work);
  }
  end_plan(work);
  return true;
}

// Works on the oldest collective. Returns whether it has completed or failed.
bool HopGroup::run_front(bool waits) {
  const std::shared_ptr<HopWork> work = queue_.front();
  try {
    if (!advance(*work, waits)) return false;
  } catch (const std::exception& error) {
    failure_ = GroupFailure(fmt::format("{}: {}", work->call.describe(), error.what()),
                            dynamic_cast<const CommTimeout*>(&error) != nullptr);
    for (const auto& each : queue_) each->fail(failure_);
    queue_.clear();
    return true;
  }
  queue_.pop_front();
  work->group = nullptr;
  return true;
}

void HopGroup::wait(HopWork& work) {
  while (work.group) run_front(/*waits=*/true);
}

bool HopGroup::poll(const HopWork& work) {
  while (work.group && run_front(/*waits=*/false)) continue;
  return !work.group;
}

// --- an operation's parts -------------------------------------------------------------------------------------------------

void HopGroup::compare_heads(HopWork& work) {
  std::vector<Head> heads(static_cast<std::size_t>(size()));
  std::memcpy(heads.data(), work.heads.raw_data(), heads.size() * sizeof(Head));
  const auto text = [](const Head& head) { return call_text(head.signature, head.count, head.purpose); };
  const auto options_text = [](const Head& head) {
    return fmt::format("algorithm {} and {} simulation", parallel::name(static_cast<Algorithm>(head.algorithm)),
                       head.simulated ? "a" : "no");
  };
  const Head& own = heads[static_cast<std::size_t>(rank())];
  std::vector<double> launched;
  for (int r = 0; r < size(); ++r) {
    const Head& peer = heads[static_cast<std::size_t>(r)];
    launched.push_back(peer.seconds);
    if (std::memcmp(&peer, &own, offsetof(Head, seconds)) == 0) continue;
    if (peer.algorithm != own.algorithm || peer.simulated != own.simulated)
      throw CommError(
          fmt::format("ranks disagree: {} has SimOptions with {}, {} with {}; pass the same on "
                      "all ranks",
                      text_of(rank()), options_text(own), text_of(r), options_text(peer)));
    throw CommError(fmt::format("ranks disagree: {} called {}, {} {}{}", text_of(rank()), text(own), text_of(r),
                                text(peer),
                                text(own) == text(peer) ? ", of another shape, scale, name, id or number" : ""));
  }
  if (options_.simulation) set_time(work, std::move(launched));
}

// Computes the simulated time of completion. All ranks get the same result from the same clocks.
void HopGroup::set_time(HopWork& work, std::vector<double> launched) {
  for (std::size_t r = 0; r < launched.size(); ++r) launched[r] = std::max(launched[r], network_free_[r]);
  const Call& call = work.call;
  const auto item = static_cast<double>(item_size(call.dtype));
  if (work.data.defined()) {
    simulate(
        options_.simulation->link(), work.plan.steps(), [&](int step) { return work.plan.step(step); }, item, launched);
  } else {
    const CollectiveHops hops(call.kind, size(), call.count, call.root);
    simulate(
        options_.simulation->link(), hops.steps(), [&](int step) { return hops.step(step); }, item, launched);
  }
  work.done_at = launched[static_cast<std::size_t>(rank())];
  network_free_ = std::move(launched);
}

void HopGroup::start_step(HopWork& work) {
  const Call& call = work.call;
  if (++work.step >= work.plan.steps()) return;
  work.step_began = TraceTime::now();
  work.step_sends = 0;
  for (const Hop& hop : work.plan.step(work.step)) {
    if (hop.from != rank() && hop.to != rank()) continue;
    Call message{.kind = hop.from == rank() ? Kind::kSend : Kind::kRecv,
                 .count = hop.end - hop.begin,
                 .dtype = call.dtype,
                 .root = hop.from == rank() ? hop.to : hop.from,
                 .tag = work.step,
                 .number = call.number,
                 .rank = rank()};
    if (hop.from == rank()) {
      message.in = elements(work.data, hop.begin, hop.end);
      work.step_sends += message.count * static_cast<std::int64_t>(item_size(call.dtype));
    } else {
      message.out = raw::empty({message.count}, {.dtype = call.dtype});
      work.arriving.push_back({hop, message.out});
    }
    work.messages.push_back(messages_->start(std::move(message)));
  }
}

void HopGroup::finish_step(HopWork& work) {
  const Call& call = work.call;
  std::ranges::sort(work.arriving, {}, [](const HopWork::Arriving& each) { return each.hop.from; });
  if (!work.arriving.empty() && work.arriving[0].hop.adds) add_arrived(work);
  for (const auto& [hop, data] : work.arriving) {
    if (!hop.adds)
      copy_bytes(bytes_at(work.data, hop.begin), static_cast<const std::byte*>(data.raw_data()),
                 static_cast<std::size_t>(data.numel()) * item_size(call.dtype));
    if (options_.observer)
      options_.observer->on_hop({.number = call.number,
                                 .step = work.step,
                                 .hop = hop,
                                 .received = data,
                                 .result = elements(work.data, hop.begin, hop.end)});
  }
  work.arriving.clear();
  trace_event(TraceKind::kHops, lockstep::parallel::name(options_.algorithm), work.step_began,
              {.bytes = work.step_sends, .from = rank(), .id = work.step});
}

// Adds the messages of one step, which are all for the same elements, to this rank's own, in the order of ranks.
void HopGroup::add_arrived(const HopWork& work) {
  const Call& call = work.call;
  const Hop& first = work.arriving[0].hop;
  void* const own = bytes_at(work.data, first.begin);
  SmallVector<const void*, 8> inputs;
  bool is_own_in = false;
  for (const auto& [hop, data] : work.arriving) {
    if (hop.from > rank() && !is_own_in) inputs.push_back(own);
    is_own_in = is_own_in || hop.from > rank();
    inputs.push_back(data.raw_data());
  }
  if (!is_own_in) inputs.push_back(own);
  const bool is_last = work.step + 1 == work.plan.reduce_steps();  // the sums are complete after this step
  raw::combine({.inputs = {inputs.begin(), inputs.size()},
                .outputs = {&own, 1},
                .dtype = call.dtype,
                .op = combine_op(call.op),
                .scale = is_last ? call.scale : 1},
               0, first.end - first.begin);
}

}  // namespace lockstep::parallel
