// The engine of the message-passing backends gloo, mpi and ucc: all collectives are built from sends and receives.
//
// Every collective begins with an exchange of headers, which describe the call, in ceil(log2 n) rounds
// (message_rounds_internal.h): a rank that has completed it knows that all ranks have called the same, and a
// disagreement is found before any data is sent. Small operations append their data to the headers and need no other
// message. In larger reductions each element has an owner, which receives that element from all ranks, combines them in
// canonical order and, if all ranks need the result, sends it to them: 2 (n-1) / n of the bytes per rank, and the same
// bits as on shm.
//
// The first header is sent when an operation is started. Waiting threads do the rest. If waiting blocks (gloo),
// collectives that need more of this rank have their own thread, so that they proceed while the caller computes and no
// receive waits behind another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/backends/message_liveness_internal.h"
#include "lockstep/parallel/comm/backends/message_rounds_internal.h"
#include "lockstep/parallel/comm/backends/transport_internal.h"
#include "lockstep/parallel/comm/group_failure_internal.h"

namespace lockstep::parallel {

class MessageGroup;
using Requests = std::vector<std::unique_ptr<Request>>;

// The header of an operation's data.
struct Header {
  static constexpr std::uint32_t kMagic = 0x6c6b7374;
  std::uint32_t magic = kMagic;
  std::int32_t tag = 0;  // of a message; of a collective Call::failed_steps
  std::uint64_t signature = 0;
  std::int64_t count = 0;
  std::uint64_t number = 0, detail = 0;
  PurposeName purpose = {};
};
static_assert(sizeof(Header) == 64);  // aligns the data that follows
Header header_of(const Call& call);

// The steps of one rank that exceptions have ended.
struct FailedSteps {
  std::uint32_t count = 0;  // steps so far
  // Numbers of collectives when the last of them failed: the rank's next one, and the first one it had not completed.
  std::uint64_t next = 0, unfinished = 0;
  std::uint64_t sent = 0, received = 0;  // messages that it had started by then, to and from the rank that is told
  std::array<char, 384> text = {};
};

// A report of a failure, or of a failed step.
struct Note {
  std::int32_t kind = 0;   // of a failure: a Poison
  std::int32_t rank = 0;   // the global rank of the culprit; or the sender
  FailedSteps steps = {};  // of the sender; for a Poison other than kLeft and kLeftByError the text alone
};

// Thrown where ranks that arrive at one operation have not failed in the same steps. `rank` has failed in more.
struct StepFailed {
  int rank;
};

// Thrown where `peer` has called another operation. `text` is "rank 0 called ..., rank 1 called ...".
struct Disagreement {
  int peer;
  std::string text;
};

class MessageWork final : public Work {
 public:
  struct Step {
    Requests needs;              // requests to complete first
    std::function<void()> then;  // called after them
  };

  MessageWork(MessageGroup* group, Call call) : group(group), call(std::move(call)) {}
  void wait() override;
  bool is_completed() override;
  bool is_known_complete() override { return over.load(std::memory_order_acquire); }

  MessageGroup* const group;
  const Call call;
  std::size_t round = 0, rounds_sent = 0;        // of the exchange: completed so far, and sent
  std::vector<std::vector<std::byte>> messages;  // of the exchange: headers, with the data of small operations
  bool begun = false;                            // all headers have been received
  std::vector<Step> steps;
  std::size_t next_step = 0;
  Requests last;  // requests to complete after all steps
  GroupFailure failure;
  std::atomic<bool> over = false;  // complete or failed; `group` may be gone then
};

class MessageGroup final : public Backend {
 public:
  MessageGroup(const InitOptions& options, const Rendezvous& place, std::unique_ptr<Transport> transport);
  ~MessageGroup() override;

  Ref<Storage> allocate(const Call& call, std::size_t bytes, Device device) override;
  std::shared_ptr<Work> start(Call call) override;
  void fail_group(const std::string& why) override;
  bool has_failed() override;
  std::uint32_t step_failed(std::uint64_t next, const std::string& why) override;
  std::shared_ptr<Liveness> liveness() const override { return liveness_; }

 private:
  friend class MessageWork;

  // A queue of operations that run one after another: all collectives; all transfers with one peer in one direction.
  struct Queue {
    std::deque<std::shared_ptr<MessageWork>> works;
    bool is_driven = false;  // a thread works on the front
    // Only if the transport blocks, started on first use: works until the queue is empty.
    std::thread thread;
    std::condition_variable thread_wanted;
    bool wants_thread = false;
    std::atomic<int> waits_for{kNobody};  // the global rank that a thread waits for
  };
  static constexpr std::size_t kExchangedBytes = 32 * 1024;  // maximum of data after a header of a collective

  // Receives posted for the next headers from one peer.
  struct PostedHeaders {
    struct Slot {
      std::vector<std::byte> memory;
      std::unique_ptr<Request> request;
    };
    int peer = 0;
    Channel channel = Channel::kHeaders;
    std::deque<Slot> slots;
  };

  // --- the exchange of headers and of small operations (message_exchange.cpp) ---
  void check_header(const Call& call, int peer, const Header& got);
  bool receive_header(MessageWork& work, PostedHeaders& posted, Deadline* deadline);
  bool is_small(const Call& call) const;
  void start_exchange(MessageWork& work);
  void send_round(MessageWork& work);
  bool exchange(MessageWork& work, Deadline* deadline);
  void merge_message(MessageWork& work, const Round& round, const std::vector<std::byte>& received);
  void finish_small(const MessageWork& work);

  // --- what an operation sends and receives (message_plan.cpp) ---
  std::byte* data_for(const Call& call, int peer) const;    // null if nothing is sent
  std::byte* place_from(const Call& call, int peer) const;  // null if nothing is received
  void keep_own_part(const Call& call) const;
  void send_transfer(MessageWork& work);
  void begin(MessageWork& work);  // once all headers agree
  void begin_exchange(MessageWork& work);
  void begin_reduction(MessageWork& work);
  void receive_piece(Requests& requests, const Call& call, std::int64_t piece);
  void finish_piece(MessageWork& work, std::int64_t piece);
  std::byte* staged(const Call& call, int rank, std::int64_t piece);
  Range owned(const Call& call, int rank) const;
  Range piece_range(const Call& call, std::int64_t piece) const;
  std::int64_t piece_elements(std::size_t item) const;
  std::int64_t pieces_ahead(std::size_t item) const;
  void post(Requests& requests, bool sending, int peer, Channel channel, std::byte* data, std::size_t bytes,
            std::size_t piece_bytes);

  // --- driving (message_group.cpp) ---
  Queue& queue_of(const Call& call);
  bool only_receives(const MessageWork& work) const;
  void open(PostedHeaders& posted, int peer, Channel channel, std::size_t bytes);
  void post_slot(PostedHeaders& posted, PostedHeaders::Slot slot);
  void recycle(PostedHeaders& posted);
  bool advance(MessageWork& work, Deadline* deadline);
  bool finish(const MessageWork& work, Request& request, Deadline* deadline);
  bool run_front(Queue& queue, std::unique_lock<std::mutex>& lock, Deadline* deadline);
  void poll_queues(std::unique_lock<std::mutex>& lock);
  void wait(MessageWork& work);
  bool poll(MessageWork& work);
  void ask_thread(Queue& queue);
  void run_thread(Queue& queue);

  // --- failing (message_failures.cpp) ---
  struct Failure {
    Poison reason;
    int culprit;            // a global rank, which may be outside this group after a timeout
    std::string message;    // for this rank
    std::string what = {};  // has happened to the culprit, for the others; or empty
  };
  bool is_needed(const MessageWork& work, int peer);
  bool is_missing(const MessageWork& work, int peer);
  bool is_second_hand(const Failure& report, int peer) const;
  std::optional<Failure> report_or_loss_of(const MessageWork& work, int peer);
  bool is_still_needed(const MessageWork& work, int peer, const std::optional<Failure>& report);
  int check_peers(const MessageWork& work);
  void check_liveness(Queue& queue, std::unique_lock<std::mutex>& lock, Deadline& deadline);
  void check_liveness_blocking(const MessageWork& work, int waited_for, Deadline& deadline);
  void fail(const Failure& failure);
  Failure failure_of(const MessageWork& work, Poison reason, int global_culprit, const std::string& what = "") const;
  Failure explain(const MessageWork& work, const PeerLost& lost);
  Failure explain_departure(const MessageWork& work, const Failure& departure);
  Failure explain_delay(const MessageWork& work, int waited_for);
  void read_failed_steps();
  int find_failed_step(const MessageWork& work, bool is_waited_for);
  Failure explain_failed_step(const MessageWork& work, int rank);
  std::optional<Failure> report_of(const MessageWork& work, int peer, Deadline* deadline);
  void report_to_others(Poison reason, int global_culprit, const std::string& what = {});
  void end_queues();

  std::chrono::milliseconds timeout_;
  bool canonical_;
  std::size_t transfer_bytes_;  // maximum of data after a header of send and recv
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<MessageLiveness> liveness_;

  std::mutex mutex_;  // guards the members up to stopping_; the front of a queue belongs to the thread that drives it
  std::condition_variable changed_;
  std::vector<Queue> queues_;  // of all collectives; of the sends to each peer; of the receives from each peer
  GroupFailure failure_;       // why the group is unusable
  bool stopping_ = false;
  std::vector<std::uint64_t> messages_sent_, messages_received_;  // started so far, by peer; for the user's thread

  const std::vector<Round> rounds_;                        // of the exchange
  std::vector<PostedHeaders> headers_, transfer_headers_;  // by peer; the first only of the peers of rounds_
  std::vector<std::byte> staging_;                         // for reductions: pieces of the other ranks' data
  std::mutex report_mutex_;                // guards the failure reports: several queues may fail at once
  std::vector<Note> reports_, own_notes_;  // failure reports by peer, received and sent
  Requests report_requests_, own_reports_;
  // Also guarded by report_mutex_:
  Note step_note_;  // the next report of a failed step, from any rank
  std::unique_ptr<Request> step_request_;
  Outbox<Note> step_outbox_;
  std::vector<FailedSteps> failed_steps_;    // by rank
  std::vector<FailedSteps> steps_reported_;  // this rank's, as last reported to each peer
};

}  // namespace lockstep::parallel
