#include "lockstep/parallel/comm/backends/ucc_worker_internal.h"

#include <sched.h>
#include <signal.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <cstdlib>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr const char* kConnectionClosed = "its connection is closed";
constexpr int kIdleAtEnd = 100;  // calls without progress after which nothing more arrives from a closed connection
constexpr int kSenderBits = 16, kChannelBits = 4;

// The sender's rank, the channel, and in all other bits the token.
ucp_tag_t tag_of(std::uint64_t token, int channel, int sender) {
  return token << (kSenderBits + kChannelBits) | static_cast<ucp_tag_t>(channel) << kSenderBits |
         static_cast<ucp_tag_t>(sender);
}

ucs_log_func_rc_t discard(const char*, unsigned, const char*, ucs_log_level_t, const ucs_log_component_config_t*,
                          const char*, va_list) {
  return UCS_LOG_FUNC_RC_STOP;
}

// Guards the creation and destruction of contexts and workers: ranks may be threads of one process.
std::mutex lifetimes;

void set_option(ucp_config_t* config, const char* name, const std::string& value) {
  check_ucx(ucp_config_modify(config, name, value.c_str()), name);
}

ucp_request_param_t host_memory() {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

}  // namespace

void check_ucx(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw CommError(fmt::format("ucc: {}: {}", what, ucs_status_string(status)));
}

void quiet_ucx() {
  static std::once_flag once;
  std::call_once(once, [] {
    ucs_log_push_handler(discard);
    for (const int each : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP}) ucs_debug_disable_signal(each);
    if (std::getenv("UCX_LOG_LEVEL") || std::getenv("UCC_LOG_LEVEL")) ucs_log_pop_handler();
  });
}

UcxWorker::UcxWorker(const UcxOptions& options, int rank, int size)
    : rank_(rank), copies_sends_(options.copies_sends), peers_(static_cast<std::size_t>(size)) {
  const std::lock_guard lock(lifetimes);
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> owner(config, ucp_config_release);
  const auto is_set = [&](const char* name) { return options.by_environment && std::getenv(name); };
  if (!is_set("UCX_TLS")) set_option(config, "TLS", options.transports);
  if (!is_set("UCX_NET_DEVICES")) set_option(config, "NET_DEVICES", options.device);

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG;
  params.estimated_num_eps = static_cast<std::size_t>(size);
  check_ucx(ucp_init(&params, config, &context_), "ucp_init");
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const ucs_status_t status = ucp_worker_create(context_, &worker, &worker_); status != UCS_OK) {
    ucp_cleanup(context_);
    check_ucx(status, "ucp_worker_create");
  }
}

UcxWorker::~UcxWorker() { close(false, std::chrono::milliseconds(0)); }

std::string UcxWorker::address() {
  const std::lock_guard lock(mutex_);
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check_ucx(ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
  std::string copy(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return copy;
}

void UcxWorker::connect(int peer, std::string_view address, bool detects_end) {
  Peer& other = peers_[static_cast<std::size_t>(peer)];
  other.detects_end = detects_end;
  const std::string copy(address);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(copy.data());
  params.err_mode = detects_end ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler = {on_error, &other};
  const std::lock_guard lock(mutex_);
  check_ucx(ucp_ep_create(worker_, &params, &other.endpoint), "ucp_ep_create");
}

void UcxWorker::on_error(void* peer, ucp_ep_h, ucs_status_t) {
  auto& closed = *static_cast<Peer*>(peer);
  if (!closed.is_closed) closed.closed_at = std::chrono::steady_clock::now().time_since_epoch().count();
  closed.is_closed = true;
}

std::chrono::steady_clock::time_point UcxWorker::closed_at(int peer) const {
  using Clock = std::chrono::steady_clock;
  return Clock::time_point(Clock::duration(peers_[static_cast<std::size_t>(peer)].closed_at.load()));
}

// --- requests -------------------------------------------------------------------------------------------------------

std::unique_ptr<UcxRequest> UcxWorker::send(int to, int channel, const void* data, std::size_t bytes) {
  auto request = std::make_unique<UcxRequest>(to, shared_from_this(), false);
  if (copies_sends_) {
    const auto* const begin = static_cast<const std::byte*>(data);
    request->copy_.assign(begin, begin + bytes);
    data = request->copy_.data();
  }
  const ucp_request_param_t param = host_memory();
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(to)];
  if (!worker_ || peer.is_closed) throw PeerLost{to, kConnectionClosed, false};
  void* const posted = ucp_tag_send_nbx(peer.endpoint, data, bytes, tag_of(token_, channel, rank_), &param);
  if (UCS_PTR_IS_ERR(posted)) throw PeerLost{to, ucs_status_string(UCS_PTR_STATUS(posted)), false};
  request->request_ = posted;
  return request;
}

std::unique_ptr<UcxRequest> UcxWorker::receive(int from, int channel, void* data, std::size_t bytes) {
  auto request = std::make_unique<UcxRequest>(from, shared_from_this(), true);
  const ucp_tag_t any_sender = ~ucp_tag_t{0} << kSenderBits;
  const ucp_request_param_t param = host_memory();
  const std::lock_guard lock(mutex_);
  if (!worker_) throw PeerLost{from, kConnectionClosed, false};
  void* const posted = ucp_tag_recv_nbx(worker_, data, bytes, tag_of(token_, channel, std::max(from, 0)),
                                        from == kAnyRank ? any_sender : ~ucp_tag_t{0}, &param);
  if (UCS_PTR_IS_ERR(posted)) throw PeerLost{from, ucs_status_string(UCS_PTR_STATUS(posted)), false};
  request->request_ = posted;
  return request;
}

unsigned UcxWorker::progress() {
  const unsigned events = ucp_worker_progress(worker_);
  if (!unsent_.empty())
    std::erase_if(unsent_, [](const Unsent& each) {
      if (ucp_request_check_status(each.request) == UCS_INPROGRESS) return false;
      ucp_request_free(each.request);
      return true;
    });
  return events;
}

bool UcxWorker::is_complete(UcxRequest& request) {
  if (!request.request_) return true;
  if (!worker_) throw PeerLost{request.peer(), kConnectionClosed, false};
  const ucs_status_t status = ucp_request_check_status(request.request_);
  if (status == UCS_INPROGRESS) return false;
  ucp_request_free(request.request_);
  request.request_ = nullptr;
  if (status != UCS_OK) throw PeerLost{request.peer(), ucs_status_string(status), false};
  return true;
}

bool UcxWorker::finish(UcxRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    if (is_complete(request)) return true;
    const unsigned events = progress();
    if (is_complete(request)) return true;
    if (request.peer() >= 0 && is_closed(request.peer())) {
      // UCX may report the end before data that arrived earlier.
      for (int idle = 0; idle < kIdleAtEnd; idle = progress() == 0 ? idle + 1 : 0) {
        if (is_complete(request)) return true;
      }
      throw PeerLost{request.peer(), kConnectionClosed, false};
    }
    if (events > 0) return false;
  }
  sched_yield();  // another rank may need this core
  return false;
}

void UcxWorker::poll() {
  const std::lock_guard lock(mutex_);
  if (worker_) progress();
}

// Called when a request is destroyed: its memory may be freed afterwards.
void UcxWorker::drop(UcxRequest& request) {
  const std::lock_guard lock(mutex_);
  if (!request.request_ || !worker_) return;  // close() has ended the request
  if (request.receives_) ucp_request_cancel(worker_, request.request_);
  if (ucp_request_check_status(request.request_) != UCS_INPROGRESS) {
    ucp_request_free(request.request_);
  } else if (!request.receives_ && copies_sends_) {
    unsent_.push_back({request.request_, std::move(request.copy_)});
  } else {
    close_locked(false, std::chrono::milliseconds(0));  // UCX cannot cancel a request that has begun
  }
}

// --- the end --------------------------------------------------------------------------------------------------------

void UcxWorker::close(bool flush, std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  close_locked(flush, timeout);
}

void UcxWorker::close_locked(bool flush, std::chrono::milliseconds timeout) {
  if (!worker_) return;
  std::vector<void*> closing;
  for (Peer& peer : peers_) {
    const bool is_forced = !flush || peer.is_closed;
    peer.is_closed = true;
    if (!peer.endpoint || (is_forced && !peer.detects_end)) continue;  // those end with the worker
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = is_forced ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    void* const request = ucp_ep_close_nbx(peer.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  for (Deadline deadline(timeout); !closing.empty() && !deadline.passed();) {
    if (progress() == 0) sched_yield();
    std::erase_if(closing, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
  }
  for (void* const request : closing) ucp_request_free(request);  // UCX then ends them with the worker
  // UCX frees callbacks twice that are left in a worker, such as those of endpoints that have failed.
  for (int i = 0; i < kIdleAtEnd; ++i) progress();
  {
    const std::lock_guard lock(lifetimes);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  worker_ = nullptr;
  unsent_.clear();
}

}  // namespace lockstep::parallel
