// The failure of a group or of one of its operations: state and texts that all backends share.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/comm/backend_internal.h"

namespace lockstep::parallel {

// A failure, or none yet.
class GroupFailure {
 public:
  GroupFailure() = default;
  explicit GroupFailure(std::string text, bool late = false) : text_(std::move(text)), late_(late) {}

  explicit operator bool() const { return !text_.empty(); }
  // Returns the same failure with the operation in front of the text.
  GroupFailure with_context(const Call& call) const { return GroupFailure(call.describe() + ": " + text_, late_); }
  // Throws the failure: a CommError, or a CommTimeout where a rank was late.
  [[noreturn]] void raise() const;
  void check() const {
    if (*this) raise();
  }
  // Called before `call` is started: throws CommError if the group has failed before.
  void check_usable(const Call& call) const;

 private:
  std::string text_;
  bool late_ = false;
};

// The reason of a failure, as one rank reports it to the others.
enum class Poison : std::uint32_t { kNone, kLost, kLeft, kLate, kDisagreed, kLeftByError, kFailed };
// The text before the first zero, which another rank may have written: characters that are not printable become '?'.
std::string printable(std::span<const char> text);
// The first line of an error that other ranks report, in at most `size` >= 64 characters: " ... " stands for the middle of
// a longer one, because it begins with the operation and ends with the cause.
std::string first_line(std::string_view text, std::size_t size);
// For example "rank 2 has left the group", for the culprit "rank 2". `what` says what happened to a lost or failed rank,
// or who called what if ranks disagree, or is empty. `reason` may be any number.
std::string poison_text(Poison reason, const std::string& culprit, const std::string& what);

// "all_reduce #3 on rank 0 (...): not complete after 500 ms: rank 1 has not arrived"
std::string not_complete(const Call& call, std::chrono::milliseconds timeout, const std::string& why);

// An operation that its group completes or fails. `Group` has members wait(operation) and poll(operation), which
// returns whether the operation has ended.
template <class Group, class Operation>
class GroupWork : public Work {
 public:
  explicit GroupWork(Group* group) : group(group) {}
  void wait() final {
    if (group) group->wait(static_cast<Operation&>(*this));
    failure.check();
    static_cast<Operation&>(*this).after_wait();
  }
  bool is_completed() final { return !group || group->poll(static_cast<Operation&>(*this)); }
  void check_completed() final { failure.check(); }
  void after_wait() const {}  // for an operation to hide

  void fail(GroupFailure why) {
    failure = std::move(why);
    group = nullptr;
  }
  // Fails the operation because its group is destroyed before the operation is complete.
  void fail_without_group(const Call& call) { fail(GroupFailure(call.describe() + ": its group is gone")); }

  Group* group;  // null once the operation is complete, has failed, or the group is gone
  GroupFailure failure;
};

}  // namespace lockstep::parallel
