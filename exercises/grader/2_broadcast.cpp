// Exercise 2: parameter hashes of all ranks, and the bytes that were sent for them.
#include "harness.h"

namespace grader {
namespace {

struct Variant {
  int hidden = 30;         // width of the hidden layer
  double first = 0;        // value before that of the first parameter
  std::int64_t index = 2;  // of the element in which the odd rank differs
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  return {.hidden = 8 + dice.roll(50), .first = 1.0 * dice.roll(50), .index = dice.roll(5)};
}

// Filled with known numbers: initialisation would draw from one stream of the process, which the ranks share here.
struct Model : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 20, variant().hidden);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", variant().hidden, 5);
  explicit Model(double offset) {
    const ls::NoGradGuard no_grad;
    double value = variant().first + offset;
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

// Calls find_odd_rank where rank `odd` differs in one element (-1: none), and adds the traffic to `links`.
void expect_odd(int size, int odd, Links& links) {
  run_ranks(size, [&](const Group& group) {
    Model model(0);
    if (group->rank() == odd) {
      const ls::NoGradGuard no_grad;
      model.fc2.parameters()[1].tensor()[variant().index].fill_(0.5);
    }
    const int found = exercises::find_odd_rank(*group, model);
    require(found == odd, size, " ranks, of which ", odd, " is the odd one (-1: none): rank ", group->rank(),
            " returned ", found);
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
  print_task(text("an MLP 20 -> ", variant().hidden, " -> 5, ", bytes_of(Model(0)), " bytes of parameters"));
  return {{"broadcast: parameters of rank 0", check_values},
          {"broadcast: bytes", check_bytes},
          {"odd rank: found by all", check_odd},
          {"odd rank: bytes", check_odd_bytes}};
}

}  // namespace grader
