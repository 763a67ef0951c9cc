// Exercise 2: hashes of all ranks, and what it cost to send them.
#include "harness.h"

namespace grader {
namespace {

// Filled with known numbers: initialisation would draw from one stream of the process, which the ranks share here.
struct Model : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 20, 30);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 30, 5);
  explicit Model(double offset) {
    const ls::NoGradGuard no_grad;
    double value = offset;
    for (const ls::nn::Parameter& parameter : parameters()) parameter->fill_(value += 1);
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

std::int64_t bytes_of(const ls::nn::Module& model) {
  std::int64_t bytes = 0;
  for (const ls::nn::Parameter& parameter : model.parameters()) bytes += parameter->numel() * 4;
  return bytes;
}

std::string check_values() {
  for (const int size : {2, 3, 5}) {
    const std::uint64_t want = ls::nn::parameter_hash(Model(0));
    run_ranks(size, [&](const Group& group) {
      Model model(100.0 * group->rank());
      exercises::broadcast_parameters(*group, model);
      require(ls::nn::parameter_hash(model) == want, size, " ranks: rank ", group->rank(),
              " has other parameters than rank 0 had");
      for (const ls::nn::Parameter& parameter : model.parameters())
        require(parameter->requires_grad() && parameter->is_leaf(), "a parameter is no longer trained");
    });
  }
  return "equal hashes on 2, 3 and 5 ranks";
}

std::string check_bytes() {
  constexpr int kRanks = 4;
  Links links;
  run_ranks(kRanks, [&](const Group& group) {
    Model model(100.0 * group->rank());
    exercises::broadcast_parameters(*group, model);
    add_links(links, group);
  });
  const std::int64_t bytes = bytes_of(Model(0));
  std::int64_t all = 0;
  for (const auto& [ends, sent] : links) all += sent.bytes;
  require(all == (kRanks - 1) * bytes, all, " bytes were sent in all, expected ", (kRanks - 1) * bytes,
          ": each rank but the first gets the parameters once");
  return text(all, " bytes in all to ", kRanks - 1, " ranks");
}

// Calls find_odd_rank with rank `odd` differing in one element (-1: none), and adds up what was sent.
void expect_odd(int size, int odd, Links& links) {
  run_ranks(size, [&](const Group& group) {
    Model model(0);
    if (group->rank() == odd) {
      const ls::NoGradGuard no_grad;
      model.fc2.parameters()[1].tensor().slice(0, 2, 3, 1).fill_(0.5);
    }
    const int found = exercises::find_odd_rank(*group, model);
    require(found == odd, size, " ranks, of which ", odd, " is the odd one (-1: none): rank ", group->rank(), " says ",
            found);
    add_links(links, group);
  });
}

std::string check_odd() {
  Links ignored;
  for (const int size : {3, 4, 5}) {
    for (int odd = -1; odd < size; ++odd) expect_odd(size, odd, ignored);
  }
  return "every rank of 3, 4 and 5, and none";
}

std::string check_odd_bytes() {
  constexpr int kRanks = 4;
  Links links;
  expect_odd(kRanks, 2, links);
  for (const auto& [ends, sent] : links)
    require(sent.bytes <= 16, "rank ", ends.first, " sent rank ", ends.second, " ", sent.bytes,
            " bytes, expected 16 at most: send hashes, not models");
  require(!links.empty(), "nothing was sent");
  return text(sent_by(links, 1).bytes, " bytes sent by a rank");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  return {{"broadcast: parameters of rank 0", check_values},
          {"broadcast: bytes", check_bytes},
          {"odd rank: found by all", check_odd},
          {"odd rank: bytes", check_odd_bytes}};
}

}  // namespace grader
