// A team of UCC, whose collectives move large tensors that are not summed, for the backend ucc.
#pragma once

#include <ucc/api/ucc.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/backends/transport_internal.h"

namespace lockstep::parallel {

// A collective of UCC. After a failure it can be neither cancelled nor freed, so that its tensors are kept for good.
class UccRequest;

// A context and a team of UCC, which the ranks make with the first collective that uses them. All functions may be called
// by any thread.
class UccTeam : public std::enable_shared_from_this<UccTeam> {
 public:
  // Posts the exchange of a block of memory of every rank for those of all ranks, in the order of the ranks.
  using Gather = std::function<std::vector<std::unique_ptr<Request>>(const void* own, void* all, std::size_t bytes)>;
  using Finish = std::function<bool(Request& request)>;

  UccTeam(int rank, int size, const std::string& device, Gather gather, Finish finish);
  ~UccTeam();
  UccTeam(const UccTeam&) = delete;
  UccTeam& operator=(const UccTeam&) = delete;

  // Starts a broadcast or an all_gather; returns null for other calls.
  std::unique_ptr<Request> start(const Call& call);
  // Makes progress and returns whether the collective is complete.
  bool finish(UccRequest& request);
  // Nothing is started or finished afterwards. Without a failure, sends what UCC has not sent yet, for a limited time.
  void end(bool failed);

 private:
  friend class UccRequest;
  struct Exchange {
    UccTeam* team;
    std::vector<std::unique_ptr<Request>> requests;
  };
  static ucc_status_t gather(void* own, void* all, std::size_t bytes, void* team, void** request);
  static ucc_status_t test_gather(void* request);
  static ucc_status_t free_gather(void* request);
  bool is_ready();
  bool advance(UccRequest& request);

  const int rank_, size_;
  const Gather gather_;
  const Finish finish_;
  std::mutex mutex_;  // guards the members below, and UCC's objects
  ucc_context_h context_ = nullptr;
  ucc_team_h team_ = nullptr;
  bool is_ready_ = false, is_ended_ = false;
  std::exception_ptr error_;  // thrown by the functions that UCC calls
};

class UccRequest final : public Request {
 public:
  UccRequest(std::shared_ptr<UccTeam> team, const Call& call);
  ~UccRequest() override;
  UccTeam& team() const { return *team_; }

 private:
  friend class UccTeam;
  const std::shared_ptr<UccTeam> team_;
  Tensor in_, out_;
  ucc_coll_args_t args_{};
  ucc_coll_req_h request_ = nullptr;  // null: not begun, or complete
  bool is_complete_ = false;
  std::string error_ = {};  // of UCC; empty: none
  std::chrono::steady_clock::time_point failed_at_ = {};
};

}  // namespace lockstep::parallel
