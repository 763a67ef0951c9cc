// A transport whose ranks are threads, for the engine that gloo and mpi share: it copies bytes in memory, and counts
// the bytes that each rank sends on each channel.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "lockstep/parallel/comm/backends/message_group_internal.h"

namespace ls = lockstep;

using SentBytes = std::array<std::int64_t, ls::parallel::kChannels>;  // or messages, by channel

class Post {
 public:
  // `most_delay`: each message is withheld from up to so many attempts to receive it, a number that follows from the
  // message's line and number.
  explicit Post(int size, std::uint64_t most_delay = 0)
      : sent(static_cast<std::size_t>(size)), messages(static_cast<std::size_t>(size)),
        closed_(static_cast<std::size_t>(size), false), most_delay_(most_delay) {}

  using Line = std::tuple<int, int, ls::parallel::Channel>;  // from, to
  struct Message {
    std::uint64_t number;  // position on its line; the receive with the same number takes it
    std::vector<std::byte> data;
    std::uint64_t delay = 0;  // attempts from which it is withheld
  };

  void put(const Line& line, int rank, const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto* const first = static_cast<const std::byte*>(data);
    const std::uint64_t number = put_[line]++;
    lines_[line].push_back({number, {first, first + bytes}, delay_of(line, number)});
    sent[static_cast<std::size_t>(rank)][static_cast<std::size_t>(std::get<2>(line))] +=
        static_cast<std::int64_t>(bytes);
    ++messages[static_cast<std::size_t>(rank)][static_cast<std::size_t>(std::get<2>(line))];
    changed_.notify_all();
  }
  std::uint64_t expect(const Line& line) {
    const std::lock_guard lock(mutex_);
    return expected_[line]++;
  }
  enum class Found { kYes, kNotYet, kNever };
  // Takes message `number` of a line and waits up to `patience` for it.
  Found take(const Line& line, std::uint64_t number, std::byte* data, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    auto& queue = lines_[line];
    const auto is_it = [&](const Message& message) { return message.number == number; };
    const auto is_over = [&] {
      const int from = std::get<0>(line);
      return std::ranges::any_of(queue, is_it) ||
             (from != ls::parallel::kAnyRank && closed_[static_cast<std::size_t>(from)]) ||
             closed_[static_cast<std::size_t>(std::get<1>(line))];
    };
    if (!changed_.wait_for(lock, patience, is_over)) return Found::kNotYet;
    const auto at = std::ranges::find_if(queue, is_it);
    if (at == queue.end()) return Found::kNever;
    const bool has_left =
        std::get<0>(line) != ls::parallel::kAnyRank && closed_[static_cast<std::size_t>(std::get<0>(line))];
    if (at->delay > 0 && !has_left) return --at->delay, Found::kNotYet;
    std::memcpy(data, at->data.data(), at->data.size());
    queue.erase(at);
    return Found::kYes;
  }
  void close(int rank) {
    const std::lock_guard lock(mutex_);
    closed_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }
  bool is_closed(int rank) {
    const std::lock_guard lock(mutex_);
    return closed_[static_cast<std::size_t>(rank)];
  }

  std::vector<SentBytes> sent, messages;      // by rank; valid when all operations have ended
  std::optional<ls::parallel::Channel> lost;  // messages on it never arrive

 private:
  std::uint64_t delay_of(const Line& line, std::uint64_t number) const {
    const auto [from, to, channel] = line;
    if (channel == lost) return std::numeric_limits<std::uint64_t>::max();
    std::uint64_t mixed = number;
    for (const int part : {from, to, static_cast<int>(channel)})
      mixed = (mixed + static_cast<std::uint64_t>(part + 2)) * 0x9e3779b97f4a7c15;
    return (mixed >> 32) % (most_delay_ + 1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Line, std::deque<Message>> lines_;
  std::map<Line, std::uint64_t> put_, expected_;
  std::vector<bool> closed_;
  std::uint64_t most_delay_;
};

// `blocks`: a test of a request waits, as in gloo; otherwise it returns at once, as in mpi.
class PostTransport final : public ls::parallel::Transport {
 public:
  PostTransport(std::shared_ptr<Post> post, int rank, bool blocks)
      : post_(std::move(post)), rank_(rank), blocks_(blocks) {}

  std::unique_ptr<ls::parallel::Request> send(int to, ls::parallel::Channel channel, const void* data,
                                              std::size_t bytes) override {
    const bool is_lost = post_->is_closed(to);  // gloo does not report a lost peer: the request never finishes
    const bool is_for_any = channel >= ls::parallel::Channel::kFailedSteps;  // the receiver takes it from any rank
    if (!is_lost) post_->put({is_for_any ? ls::parallel::kAnyRank : rank_, to, channel}, rank_, data, bytes);
    return std::make_unique<Sent>(to, is_lost);
  }
  std::unique_ptr<ls::parallel::Request> receive(int from, ls::parallel::Channel channel, void* data,
                                                 std::size_t) override {
    const Post::Line line{from, rank_, channel};
    return std::make_unique<Awaited>(from, line, post_->expect(line), static_cast<std::byte*>(data));
  }
  bool finish(ls::parallel::Request& request, ls::parallel::Deadline* deadline) override {
    auto* const awaited = dynamic_cast<Awaited*>(&request);
    const auto patience = blocks_ && deadline ? deadline->slice() : std::chrono::milliseconds(0);
    if (!awaited && static_cast<Sent&>(request).is_lost) return std::this_thread::sleep_for(patience), false;
    if (!awaited || awaited->done) return true;
    const Post::Found found = post_->take(awaited->line, awaited->number, awaited->data, patience);
    if (found == Post::Found::kNever) throw ls::parallel::PeerLost{request.peer(), "it is closed", false};
    return awaited->done = found == Post::Found::kYes;
  }
  bool is_closed(int peer) override { return post_->is_closed(peer); }
  bool blocks() const override { return blocks_; }
  std::unique_ptr<ls::parallel::Request> start_native(const ls::parallel::Call&) override { return nullptr; }
  void hang_up(bool) override { post_->close(rank_); }

 private:
  struct Sent final : ls::parallel::Request {
    Sent(int to, bool is_lost) : Request(to), is_lost(is_lost) {}
    bool is_lost;
  };
  struct Awaited final : ls::parallel::Request {
    Awaited(int from, const Post::Line& line, std::uint64_t number, std::byte* data)
        : Request(from), line(line), number(number), data(data) {}
    Post::Line line;
    std::uint64_t number;
    std::byte* data;
    bool done = false;
  };

  std::shared_ptr<Post> post_;
  int rank_;
  bool blocks_;
};
