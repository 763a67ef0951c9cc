// Messages between some ranks of a group, before, between and during collectives of all ranks.
#pragma once

#include "tests/parallel/comm/collectives.h"

// The value of message `k` from one rank to another.
inline double message_value(int from, int to, int k) { return 100.0 * from + 10.0 * to + k; }

class Messages {
 public:
  Messages(Group group, std::int64_t count) : group_(std::move(group)), count_(count) {}

  using Works = std::vector<std::shared_ptr<ls::parallel::Work>>;
  // Starts message `k` with the tag `k` on its two ranks.
  Works start(int from, int to, int k) {
    if (group_->rank() == from) return {group_->send(ls::full({count_}, message_value(from, to, k)), to, k)};
    if (group_->rank() != to) return {};
    received_.push_back({ls::empty({count_}), message_value(from, to, k)});
    return {group_->recv(received_.back().tensor, from, k)};
  }
  void exchange(int from, int to, int k = 0) { wait(start(from, to, k)); }
  static void wait(const Works& works) {
    for (const auto& work : works) work->wait();
  }
  // Checks what has been received.
  void check() {
    for (const auto& [tensor, value] : received_) {
      CHECK(tensor.min().item<double>() == value);
      CHECK(tensor.max().item<double>() == value);
    }
    received_.clear();
  }
  // Runs collectives on every path: small, large, without data.
  void check_collectives() {
    const int n = group_->size();
    const ls::Tensor sum = ls::ones({count_}), all = ls::empty({n, 2});
    const auto reduced = group_->all_reduce(sum);
    group_->all_gather(all, ls::full({2}, 1.0 * group_->rank()))->wait();
    reduced->wait();
    group_->barrier();
    CHECK(sum.min().item<double>() == n);
    CHECK(sum.max().item<double>() == n);
    for (int r = 0; r < n; ++r) CHECK(all[r].min().item<double>() == r);
  }

 private:
  struct Received {
    ls::Tensor tensor;
    double value;
  };
  Group group_;
  std::int64_t count_;
  std::vector<Received> received_;
};

// For three or more ranks, each of which has made a different number of calls before every collective.
inline void check_point_to_point(const Group& group) {
  const int n = group->size();
  for (const std::int64_t count : {3, 50'000}) {
    CAPTURE(count);
    Messages messages(group, count);
    for (int from = 0; from < n; ++from) {
      for (int to = 0; to < n; ++to) {
        if (from == to) continue;
        messages.exchange(from, to);
        messages.check_collectives();
      }
    }
    for (int k = 0; k < 5; ++k) messages.exchange(0, n - 1, k);  // messages alone, then a split and its collectives
    const Group part = group->split(group->rank() % 2);
    const ls::Tensor members = ls::ones({count});
    part->all_reduce(members)->wait();
    CHECK(members.min().item<double>() == part->size());

    // Messages that start before a collective and end after it, and the other way round; also in both directions.
    Messages::Works sent = messages.start(1, 0, 1);
    messages.check_collectives();
    Messages::wait(sent);
    const ls::Tensor during = ls::ones({count});
    const auto reduced = group->all_reduce(during);
    messages.exchange(2, 1, 2);
    sent = messages.start(0, 2, 3);
    const Messages::Works back = messages.start(2, 0, 4);
    reduced->wait();
    messages.check_collectives();
    Messages::wait(sent);
    Messages::wait(back);
    CHECK(during.min().item<double>() == n);
    messages.check();
  }
}

// A recv whose tag differs from that of the matching send is an error on the receiver, even if the numbers agree.
inline void check_other_tag(const Group& group) {
  Messages messages(group, 3);
  messages.exchange(0, 1, 5);
  messages.check_collectives();
  if (group->rank() == 0) group->send(ls::ones({3}), 1, 6)->wait();
  if (group->rank() != 1) return;
  const std::string error = error_of<ls::CommError>([&] { group->recv(ls::ones({3}), 0, 7)->wait(); });
  CHECK_MESSAGE(contains(error, "with tag 6"), error);
  CHECK_MESSAGE(contains(error, "with tag 7"), error);
}
