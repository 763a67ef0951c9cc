// The exchange with which each collective of gloo and mpi begins: its rounds and messages, the results of small operations,
// and that all ranks name the same culprit. Ranks are threads.
#include <atomic>
#include <map>
#include <thread>

#include "tests/parallel/comm/message_groups.h"

TEST_CASE("messages: the rounds of an exchange reach all ranks, in at most ceil(log2 n) messages per rank") {
  for (int size = 2; size <= 130; ++size) {
    CAPTURE(size);
    std::vector<std::vector<par::Round>> rounds;
    for (int r = 0; r < size; ++r) rounds.push_back(par::exchange_rounds(r, size));
    std::map<std::pair<int, int>, par::HeldParts> sent;  // by sender and receiver: at most one message for each
    for (int r = 0; r < size; ++r) {
      int messages = 0;
      for (const par::Round& round : rounds[static_cast<std::size_t>(r)]) {
        if (round.to < 0) continue;
        CHECK(sent.insert({{r, round.to}, round.held}).second);
        ++messages;
      }
      CHECK(messages == sent_in_exchange(r, size));
      CHECK(messages <= std::bit_width(static_cast<unsigned>(size - 1)));
    }
    for (int r = 0; r < size; ++r) {
      for (const par::Round& round : rounds[static_cast<std::size_t>(r)]) {
        if (round.from >= 0) {
          const auto message = sent.extract({round.from, r});
          REQUIRE(!message.empty());
          bool is_right = true;
          for (int part = 0; part < size; ++part) {
            const bool is_held = round.held.contains(part) || round.received.contains(part);
            is_right = is_right && round.received.contains(part) == message.mapped().contains(part) &&
                       round.held_after.contains(part) == is_held;
          }
          CHECK(is_right);
        }
      }
      const par::HeldParts& all = rounds[static_cast<std::size_t>(r)].back().held_after;
      CHECK(all.low.begin == 0);
      CHECK(all.low.end + std::max(0, all.high.end - all.high.begin) == size);
    }
    CHECK(sent.empty());
  }
}

TEST_CASE("messages: a sum of up to 32 KiB is the exchange alone, with the sums so far in each message") {
  for (const int size : {2, 3, 6, 8, 64}) {
    for (const std::int64_t count : {1, 17, 4096}) {
      const auto post = with_message_group(size, true, [&](par::Backend& group) {
        const ls::Tensor t = own_numbers(group.rank(), count, ls::kFloat32);
        start(group, par::Kind::kAllReduce, t, t)->wait();
      });
      std::int64_t most = 0;
      for (int r = 0; r < size; ++r) {
        const auto at = static_cast<std::size_t>(r);
        std::int64_t sums = 0;
        for (const par::Round& round : par::exchange_rounds(r, size)) {
          if (round.to >= 0) sums += (round.held.low.empty() ? 0 : 1) + (round.held.high.empty() ? 0 : 1);
        }
        CHECK(data_bytes(post->sent[at]) == 0);
        CHECK(on_heads(post->messages[at]) == sent_in_exchange(r, size));
        CHECK(on_heads(post->sent[at]) == 64 * sent_in_exchange(r, size) + sums * count * 4);
        most = std::max(most, on_heads(post->messages[at]));
      }
      if (size == 64) CHECK(most == 6);
    }
  }
}

TEST_CASE("messages: small operations give what their definitions say, for any number of ranks") {
  constexpr std::int64_t kCount = 5;
  for (int size = 2; size <= 11; ++size) {
    for (const ls::DType dtype : {ls::kFloat32, ls::kBFloat16}) {
      for (const int root : {0, size - 1}) {
        const auto part_of = [&](int from, int part) {
          return own_numbers(from, size * kCount, dtype).narrow(0, part * kCount, kCount);
        };
        const auto sum_of = [&](int part) {
          std::vector<ls::Tensor> parts;
          std::vector<const void*> inputs;
          for (int r = 0; r < size; ++r) inputs.push_back(parts.emplace_back(part_of(r, part).contiguous()).raw_data());
          ls::Tensor sum = ls::zeros({kCount}, {.dtype = dtype});
          void* const out = sum.raw_data();
          ls::raw::combine({.inputs = inputs, .outputs = {&out, 1}, .dtype = dtype}, 0, kCount);
          return sum;
        };
        const auto all_of = [&](const std::function<ls::Tensor(int)>& part) {
          std::vector<ls::Tensor> parts;
          for (int r = 0; r < size; ++r) parts.push_back(part(r));
          return ls::cat(parts);
        };
        CAPTURE(size);
        CAPTURE(root);
        with_message_group(size, root == 0, [&](par::Backend& group) {
          const int rank = group.rank();
          const ls::Tensor in = own_numbers(rank, size * kCount, dtype), own = in.narrow(0, 0, kCount);
          const auto check = [&](par::Kind kind, const ls::Tensor& from, std::int64_t parts, const ls::Tensor& want) {
            const ls::Tensor out = ls::zeros({parts * kCount}, {.dtype = dtype});
            group
                .start(
                    {.kind = kind, .in = from, .out = out, .count = kCount, .dtype = dtype, .root = root, .rank = rank})
                ->wait();
            expect_same(out, want, par::name(kind));
          };
          const bool is_root = rank == root;
          const ls::Tensor nothing = ls::zeros({kCount}, {.dtype = dtype});
          const auto first_of = [&](int r) { return part_of(r, 0); };
          check(par::Kind::kBroadcast, own, 1, part_of(root, 0));
          check(par::Kind::kAllReduce, own, 1, sum_of(0));
          check(par::Kind::kReduce, own, 1, is_root ? sum_of(0) : nothing);
          check(par::Kind::kAllGather, own, size, all_of(first_of));
          check(par::Kind::kGather, own, size,
                is_root ? all_of(first_of) : ls::zeros({size * kCount}, {.dtype = dtype}));
          check(par::Kind::kScatter, in, 1, part_of(root, rank));
          check(par::Kind::kReduceScatter, in, 1, sum_of(rank));
          check(par::Kind::kAllToAll, in, size, all_of([&](int r) { return part_of(r, rank); }));
        });
      }
    }
  }
}

constexpr int kLowerHalf = -1;  // half of the ranks: those of 4 and 8 find out in the last round

TEST_CASE(
    "messages: whichever rank calls another operation, all ranks are told two that disagree, and what they called") {
  for (const int size : {2, 3, 4, 7, 8, 13}) {
    for (const int other : {0, size / 2, size - 1, kLowerHalf}) {
      for (const bool waits : {false, true}) {
        for (const std::int64_t count : {10, 50'000}) {
          CAPTURE(size);
          CAPTURE(other);
          CAPTURE(waits);
          with_message_group(size, waits, [&](par::Backend& group) {
            const bool is_other = other == kLowerHalf ? group.rank() < size / 2 : group.rank() == other;
            const ls::Tensor t = ls::zeros({count + (is_other ? 1 : 0)});
            const std::string error = error_of<ls::CommError>([&] {
              for (int i = 0; i < 2; ++i) start(group, par::Kind::kAllReduce, t, t)->wait();
            });
            CHECK_MESSAGE(contains(error, "ranks disagree: rank "), error);
            if (other != kLowerHalf) CHECK_MESSAGE(contains(error, "rank " + std::to_string(other) + " called"), error);
            CHECK_MESSAGE(contains(error, "called all_reduce of " + std::to_string(count) + " f32"), error);
            CHECK_MESSAGE(contains(error, "called all_reduce of " + std::to_string(count + 1) + " f32"), error);
          });
        }
      }
    }
  }
}

TEST_CASE("messages: whichever rank leaves or does not come, all others name it, also those that it sends nothing to") {
  for (const int size : {4, 7, 8}) {
    for (const int absent : {0, size / 2, size - 1}) {
      for (const bool waits : {false, true}) {
        for (const bool leaves : {false, true}) {
          if (!leaves && (size != 7 || absent == 3)) continue;  // takes as long as the time-out
          CAPTURE(size);
          CAPTURE(absent);
          CAPTURE(waits);
          CAPTURE(leaves);
          std::atomic<int> gave_up{0};
          const auto post = std::make_shared<Post>(size);
          run_threads(size, [&](int rank) {
            try {
              par::MessageGroup group({.timeout = leaves ? std::chrono::seconds(60) : std::chrono::seconds(1)},
                                      {.rank = rank, .size = size}, std::make_unique<PostTransport>(post, rank, waits));
              if (rank == absent && leaves) throw std::runtime_error("its own error");
              if (rank != absent) {
                const ls::Tensor t = ls::zeros({100});
                const std::string error =
                    error_of<ls::CommError>([&] { start(group, par::Kind::kAllReduce, t, t)->wait(); });
                CHECK_MESSAGE(contains(error, "rank " + std::to_string(absent) + " "), error);
                const std::string blame = error.substr(error.find("): "));
                for (int other = 0; other < size; ++other) {
                  if (other != absent) CHECK_MESSAGE(!contains(blame, "rank " + std::to_string(other)), error);
                }
                ++gave_up;
              }
              while (gave_up < size - 1) std::this_thread::yield();
            } catch (const std::runtime_error& error) {
              CHECK(error.what() == std::string("its own error"));
            }
          });
        }
      }
    }
  }
}

TEST_CASE("messages: several ranks that do not come are named together, also by ranks that they send nothing to") {
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    std::atomic<int> gave_up{0};
    with_message_group(
        8, waits,
        [&](par::Backend& group) {
          if (group.rank() != 5 && group.rank() != 6) {
            const ls::Tensor t = ls::zeros({100});
            const std::string error =
                error_of<ls::CommTimeout>([&] { start(group, par::Kind::kAllReduce, t, t)->wait(); });
            const bool is_told = contains(error, "rank 5 did not arrive in time, as another rank reports");
            CHECK_MESSAGE((is_told || contains(error, "rank 5 has not arrived, rank 6 has not arrived")), error);
            ++gave_up;
          }
          while (gave_up < 6) std::this_thread::yield();
        },
        std::chrono::seconds(1));
  }
}
