#include "lockstep/parallel/comm/backends/ucc_team_internal.h"

#include <sched.h>

#include <condition_variable>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "lockstep/base/check_internal.h"

// UCC does not install the header of its log. Versions before 1.7 use the log of UCX, which quiet_ucx() silences.
extern "C" [[gnu::weak]] void ucc_log_push_handler(int (*handler)(const char* file, unsigned line, const char* function,
                                                                  int level, const void* component, const char* format,
                                                                  va_list arguments));

namespace lockstep::parallel {
namespace {

constexpr std::chrono::milliseconds kUntilDestroyed{1000};
// An error of UCC is mostly the end of a rank, which the engine then detects and names.
constexpr std::chrono::milliseconds kUntilExplained{1000};

void check_ucc(ucc_status_t status, const char* what) {
  if (status < 0) throw CommError(fmt::format("ucc: {}: {}", what, ucc_status_string(status)));
}

// The library, which is never finalized: groups may outlive the end of main.
ucc_lib_h library() {
  static const ucc_lib_h instance = [] {
    ucc_lib_config_h config = nullptr;
    check_ucc(ucc_lib_config_read(nullptr, nullptr, &config), "ucc_lib_config_read");
    ucc_lib_params_t params{};
    params.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCC_THREAD_MULTIPLE;
    ucc_lib_h made = nullptr;
    const ucc_status_t status = ucc_init(&params, config, &made);
    ucc_lib_config_release(config);
    check_ucc(status, "ucc_init");
    constexpr auto kDiscard = [](const char*, unsigned, const char*, int, const void*, const char*, va_list) {
      return 0;  // no other handler is called
    };
    if (ucc_log_push_handler && !std::getenv("UCC_LOG_LEVEL")) ucc_log_push_handler(kDiscard);
    return made;
  }();
  return instance;
}

ucc_context_h make_context(const std::string& device) {
  ucc_context_config_h config = nullptr;
  check_ucc(ucc_context_config_read(library(), nullptr, &config), "ucc_context_config_read");
  if (!std::getenv("UCX_NET_DEVICES"))  // UCC before 1.6 does not have the option
    static_cast<void>(ucc_context_config_modify(config, nullptr, "NET_DEVICES", device.c_str()));
  ucc_context_params_t params{};  // no exchange of addresses here: it would block
  ucc_context_h made = nullptr;
  const ucc_status_t status = ucc_context_create(library(), &params, config, &made);
  ucc_context_config_release(config);
  check_ucc(status, "ucc_context_create");
  return made;
}

// The tensors of a collective that was dropped after a failure. Other processes may access them at any time.
void keep_for_good(Tensor in, Tensor out) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::pair<Tensor, Tensor>>;
  const std::lock_guard lock(mutex);
  kept->emplace_back(std::move(in), std::move(out));
}

// Sends what UCC has not sent yet. UCC waits for it without a limit.
void destroy(ucc_context_h context, ucc_team_h team) {
  while (team && ucc_team_destroy(team) == UCC_INPROGRESS) {
    ucc_context_progress(context);
    sched_yield();
  }
  ucc_context_destroy(context);
}

}  // namespace

UccTeam::UccTeam(int rank, int size, const std::string& device, Gather gather, Finish finish)
    : rank_(rank), size_(size), gather_(std::move(gather)), finish_(std::move(finish)), context_(make_context(device)) {
}

UccTeam::~UccTeam() { end(true); }

// --- the exchange of addresses, called by UCC -----------------------------------------------------------------------

ucc_status_t UccTeam::gather(void* own, void* all, std::size_t bytes, void* team, void** request) {
  auto& self = *static_cast<UccTeam*>(team);
  try {
    *request = new Exchange{&self, self.gather_(own, all, bytes)};
    return UCC_OK;
  } catch (...) {
    self.error_ = std::current_exception();
    return UCC_ERR_NO_MESSAGE;
  }
}

ucc_status_t UccTeam::test_gather(void* request) {
  auto& exchange = *static_cast<Exchange*>(request);
  try {
    for (; !exchange.requests.empty(); exchange.requests.pop_back()) {
      if (!exchange.team->finish_(*exchange.requests.back())) return UCC_INPROGRESS;
    }
    return UCC_OK;
  } catch (...) {
    exchange.team->error_ = std::current_exception();
    return UCC_ERR_NO_MESSAGE;
  }
}

ucc_status_t UccTeam::free_gather(void* request) {
  delete static_cast<Exchange*>(request);
  return UCC_OK;
}

// Advances the creation of the team. Returns whether it is complete.
bool UccTeam::is_ready() {
  if (is_ready_) return true;
  ucc_status_t status = UCC_OK;
  if (!team_) {
    ucc_team_params_t params{};
    params.mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE;
    params.ep = static_cast<std::uint64_t>(rank_);
    params.ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG;
    params.oob = {
        gather, test_gather, free_gather, this, static_cast<std::uint32_t>(size_), static_cast<std::uint32_t>(rank_)};
    status = ucc_team_create_post(&context_, 1, &params, &team_);
  }
  if (status >= 0) {
    ucc_context_progress(context_);
    status = ucc_team_create_test(team_);
  }
  if (status < 0 && error_) std::rethrow_exception(error_);
  check_ucc(status, "ucc_team_create_test");
  return is_ready_ = status == UCC_OK;
}

// --- collectives ----------------------------------------------------------------------------------------------------

std::unique_ptr<Request> UccTeam::start(const Call& call) {
  auto request = std::make_unique<UccRequest>(shared_from_this(), call);
  const auto buffer = [&](const Tensor& tensor, int parts) {
    const std::size_t bytes = call.bytes() * static_cast<std::size_t>(parts);
    return ucc_coll_buffer_info_t{tensor.defined() ? tensor.raw_data() : nullptr, bytes, UCC_DT_UINT8,
                                  UCC_MEMORY_TYPE_HOST};
  };
  ucc_coll_args_t& args = request->args_;
  switch (call.kind) {
    case Kind::kBroadcast:
      args.coll_type = UCC_COLL_TYPE_BCAST;
      args.src.info = buffer(call.out, 1);
      args.root = static_cast<std::uint64_t>(call.root);
      return request;
    case Kind::kAllGather:
      args.coll_type = UCC_COLL_TYPE_ALLGATHER;
      args.src.info = buffer(call.in, 1);
      args.dst.info = buffer(call.out, size_);
      if (args.src.info.buffer ==
          static_cast<std::byte*>(args.dst.info.buffer) + static_cast<std::size_t>(rank_) * call.bytes()) {
        args.mask = UCC_COLL_ARGS_FIELD_FLAGS;
        args.flags = UCC_COLL_ARGS_FLAG_IN_PLACE;
      }
      return request;
    default:
      return nullptr;
  }
}

bool UccTeam::finish(UccRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    if (request.is_complete_) return true;
    if (is_ended_) throw PeerLost{kAnyRank, "the group has ended", false};
    if (request.error_.empty()) {
      try {
        if (advance(request)) return true;
      } catch (const CommError& error) {
        request.error_ = error.what();
        request.failed_at_ = Deadline::Clock::now();
      }
    } else if (Deadline::Clock::now() - request.failed_at_ > kUntilExplained) {
      throw CommError(request.error_);
    }
  }
  sched_yield();  // another rank may need this core
  return false;
}

bool UccTeam::advance(UccRequest& request) {
  if (!is_ready()) return false;
  if (!request.request_) {
    check_ucc(ucc_collective_init(&request.args_, &request.request_, team_), "ucc_collective_init");
    check_ucc(ucc_collective_post(request.request_), "ucc_collective_post");
  }
  ucc_context_progress(context_);
  const ucc_status_t status = ucc_collective_test(request.request_);
  check_ucc(status, "ucc_collective_test");
  if (status != UCC_OK) return false;
  check_ucc(ucc_collective_finalize(std::exchange(request.request_, nullptr)), "ucc_collective_finalize");
  return request.is_complete_ = true;
}

void UccTeam::end(bool failed) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_ended_, true) || failed || !is_ready_) return;  // a failed context is never destroyed
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_over = false;
  };
  const auto state = std::make_shared<State>();
  std::thread([state, context = context_, team = team_] {
    destroy(context, team);
    const std::lock_guard done(state->mutex);
    state->is_over = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock wait(state->mutex);
  state->changed.wait_for(wait, kUntilDestroyed, [&] { return state->is_over; });
}

UccRequest::UccRequest(std::shared_ptr<UccTeam> team, const Call& call)
    : Request(kAnyRank), team_(std::move(team)), in_(call.in), out_(call.out) {}

UccRequest::~UccRequest() {
  if (request_) keep_for_good(std::move(in_), std::move(out_));
}

}  // namespace lockstep::parallel
