// The engine that gloo and mpi share, over a transport that counts: the bytes that each operation sends, the bits of
// its result, and the errors of both sides after a disagreement or when a rank does not arrive. Ranks are threads.
#include <atomic>
#include <thread>

#include "tests/parallel/comm/message_groups.h"

namespace {

// The elements that a rank owns: whole lines of 64 bytes, distributed as evenly as possible.
std::int64_t owned(int rank, int size, std::int64_t count, std::int64_t item) {
  const std::int64_t line = 64 / item, lines = (count + line - 1) / line;
  const auto before = [&](int r) { return std::min(count, lines * r / size * line); };
  return before(rank + 1) - before(rank);
}

}  // namespace

TEST_CASE("messages: a large sum sends 2 (n-1) / n of its bytes per rank, exactly where n divides its lines") {
  for (int size = 2; size <= 7; ++size) {
    for (const std::int64_t count : {size * 16 * 1000, 100'003, 700'001}) {
      for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
        CAPTURE(size);
        CAPTURE(count);
        const auto item = static_cast<std::int64_t>(ls::item_size(dtype)), bytes = count * item;
        const auto post = with_message_group(size, count % 2 == 0, [&](par::Backend& group) {
          const ls::Tensor t = own_numbers(group.rank(), count, dtype);
          start(group, par::Kind::kAllReduce, t, t)->wait();
        });
        std::int64_t all = 0;
        for (int r = 0; r < size; ++r) {
          const SentBytes& sent = post->sent[static_cast<std::size_t>(r)];
          const std::int64_t own = owned(r, size, count, item) * item;
          CHECK(data_bytes(sent) == bytes - own + (size - 1) * own);  // parts to their owners, sums to the others
          if (bytes % (64 * size) == 0) CHECK(data_bytes(sent) * size == 2 * (size - 1) * bytes);
          CHECK(on_heads(sent) == 64 * sent_in_exchange(r, size));
          all += data_bytes(sent);
        }
        CHECK(all == 2 * (size - 1) * bytes);  // also where n does not divide the lines
      }
    }
  }
}

TEST_CASE("messages: other operations send the minimum number of bytes") {
  const int size = 3;
  const std::int64_t count = 100'000, bytes = count * 4;
  const auto sent_by = [&](par::Kind kind, std::int64_t in_parts, std::int64_t out_parts) {
    const auto post = with_message_group(size, true, [&](par::Backend& group) {
      start(group, kind, ls::zeros({in_parts * count}), ls::zeros({out_parts * count}), 1)->wait();
    });
    return std::vector<std::int64_t>{data_bytes(post->sent[0]), data_bytes(post->sent[1]), data_bytes(post->sent[2])};
  };
  using Sent = std::vector<std::int64_t>;
  CHECK(sent_by(par::Kind::kReduce, 1, 1) == Sent{bytes, 0, bytes});
  CHECK(sent_by(par::Kind::kBroadcast, 1, 1) == Sent{0, 2 * bytes, 0});
  CHECK(sent_by(par::Kind::kReduceScatter, size, 1) == Sent{2 * bytes, 2 * bytes, 2 * bytes});
  CHECK(sent_by(par::Kind::kAllGather, 1, size) == Sent{2 * bytes, 2 * bytes, 2 * bytes});
}

TEST_CASE("messages: sums have the bits of local, for any number of ranks and sizes around a piece") {
  for (const int size : {2, 3, 5, 7, 8, 13}) {
    for (const std::int64_t count : {5, 4097, 100'003, 1'300'001}) {
      if (size > 5 && count > 10'000) continue;
      CAPTURE(size);
      CAPTURE(count);
      const ls::DType dtype = count == 5 && size % 2 == 0 ? ls::kBFloat16 : ls::kFloat32;
      std::vector<ls::Tensor> want(static_cast<std::size_t>(size)), have = want;
      with_group("local", size, [&](const Group& group) {
        const ls::Tensor t = own_numbers(group->rank(), count, dtype);
        group->all_reduce(t)->wait();
        want[static_cast<std::size_t>(group->rank())] = t;
      });
      for (const bool waits : {false, true}) {
        with_message_group(size, waits, [&](par::Backend& group) {
          const ls::Tensor t = own_numbers(group.rank(), count, dtype);
          std::vector<std::shared_ptr<par::Work>> works;
          for (int i = 0; i < 3; ++i) {  // the first two occupy the engine
            const ls::Tensor other = ls::ones({count});
            works.push_back(start(group, par::Kind::kAllReduce, i == 2 ? t : other, i == 2 ? t : other));
          }
          for (const auto& work : works) work->wait();
          have[static_cast<std::size_t>(group.rank())] = t;
        });
        for (std::size_t r = 0; r < want.size(); ++r) expect_same(have[r], want[r], "all_reduce");
      }
    }
  }
}

TEST_CASE("messages: a disagreement and a rank that does not arrive are errors on all sides") {
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    with_message_group(3, waits, [](par::Backend& group) {
      const ls::Tensor t = ls::zeros({group.rank() == 2 ? 100'000 : 50'000});
      const std::string error = error_of<ls::CommError>([&] { start(group, par::Kind::kAllReduce, t, t)->wait(); });
      CHECK_MESSAGE(contains(error, "disagree"), error);
      CHECK(contains(error_of<ls::CommError>([&] { start(group, par::Kind::kAllReduce, t, t); }), "failed before"));
    });
    std::atomic<int> gave_up{0};
    const auto is_late = [&](par::Backend& group) {
      const ls::Tensor t = ls::zeros({100'000});
      if (group.rank() == 1) {  // rank 1 arrives after the others have given up, and its error says so
        while (gave_up < 2) std::this_thread::yield();
        CHECK(contains(error_of<ls::CommError>([&] { start(group, par::Kind::kAllReduce, t, t)->wait(); }), "rank 1"));
        return;
      }
      const std::string error = error_of<ls::CommError>([&] { start(group, par::Kind::kAllReduce, t, t)->wait(); });
      CHECK_MESSAGE(contains(error, "rank 1"), error);
      ++gave_up;
      while (gave_up < 2) std::this_thread::yield();
    };
    with_message_group(3, waits, is_late, std::chrono::seconds(2));
  }
}

TEST_CASE("messages: a rank that leaves after its header arrived, while another sends to it, is named at once") {
  for (const bool waits : {false, true}) {
    std::atomic<bool> is_gone{false};
    const auto post = std::make_shared<Post>(3);
    run_threads(3, [&](int rank) {
      const ls::Tensor t = ls::zeros({100});
      const auto join = [&] {
        return std::make_unique<par::MessageGroup>(par::InitOptions{.timeout = std::chrono::minutes(1)},
                                                   par::Rendezvous{.rank = rank, .size = 3},
                                                   std::make_unique<PostTransport>(post, rank, waits));
      };
      if (rank == 2) {
        try {
          const auto group = join();
          start(*group, par::Kind::kAllReduce, t, t);
          throw std::runtime_error("its own error");
        } catch (const std::runtime_error&) {
          is_gone = true;
        }
        return;
      }
      const auto group = join();
      while (!is_gone) std::this_thread::yield();
      const std::string error = error_of<ls::CommError>([&] {
        start(*group, par::Kind::kAllReduce, t, t)->wait();
        REQUIRE(rank == 1);  // has the sum: rank 0 alone sends to rank 2
        start(*group, par::Kind::kAllReduce, t, t)->wait();
      });
      CHECK_MESSAGE(contains(error, "rank 2 has left the group"), error);
    });
  }
}

namespace {

std::shared_ptr<par::Work> message(par::Backend& group, par::Kind kind, int peer, std::int64_t count) {
  const ls::Tensor t = ls::zeros({count});
  par::Call call{.kind = kind, .count = count, .dtype = t.dtype(), .root = peer, .rank = group.rank()};
  (kind == par::Kind::kSend ? call.in : call.out) = t;
  return group.start(call);
}

}  // namespace

TEST_CASE("messages: a rank that leaves after its step has failed has failed, even if its news does not arrive") {
  for (const bool waits : {false, true}) {
    for (const bool throws : {false, true}) {
      for (const bool is_message : {false, true}) {
        CAPTURE(waits);
        CAPTURE(throws);
        CAPTURE(is_message);
        const auto post = std::make_shared<Post>(3);
        post->lost = par::Channel::kFailedSteps;
        const auto run_rank = [&](int rank) {
          par::MessageGroup group({.timeout = std::chrono::minutes(1)}, {.rank = rank, .size = 3},
                                  std::make_unique<PostTransport>(post, rank, waits));
          if (rank == 2) {
            group.step_failed(0, "no more input");
            if (throws) throw std::runtime_error("no more input");
            return;
          }
          const std::string error = error_of<ls::CommError>([&] {
            const ls::Tensor t = ls::zeros({100});
            (is_message ? message(group, par::Kind::kRecv, 2, 100) : start(group, par::Kind::kAllReduce, t, t))->wait();
          });
          CHECK_MESSAGE(contains(error, "rank 2 has failed: no more input"), error);
        };
        run_threads(3, [&](int rank) {
          try {
            run_rank(rank);
          } catch (const std::runtime_error& error) {
            CHECK(error.what() == std::string("no more input"));
          }
        });
      }
    }
  }
}

TEST_CASE("messages: in a chain of ranks that wait for each other, all name the last one, which waits for nobody") {
  for (const bool waits : {false, true}) {
    for (const std::int64_t count : {10, 100'000}) {
      CAPTURE(waits);
      CAPTURE(count);
      std::atomic<int> gave_up{0};
      const auto check = [&](par::Backend& group) {
        const int rank = group.rank();
        if (rank < 3) {
          const std::string error = error_of<ls::CommTimeout>([&] {
            const ls::Tensor t = ls::zeros({count});
            // Rank 0 waits for 1 to join the sum, which waits for 2 to send, which waits for 3.
            (rank == 0 ? start(group, par::Kind::kAllReduce, t, t) : message(group, par::Kind::kRecv, rank + 1, count))
                ->wait();
          });
          CHECK_MESSAGE(contains(error, "rank 3 "), error);
          const std::string blame = error.substr(error.find("): "));
          for (int other = 0; other < 3; ++other)
            CHECK_MESSAGE(!contains(blame, "rank " + std::to_string(other)), error);
          ++gave_up;
        }
        while (gave_up < 3) std::this_thread::yield();
      };
      with_message_group(4, waits, check, std::chrono::seconds(1));
    }
  }
}

TEST_CASE("messages: a rank that waits in one group is not blamed in another group made from the same one") {
  for (const bool waits : {false, true}) {
    for (const std::int64_t count : {10, 100'000}) {
      CAPTURE(waits);
      CAPTURE(count);
      const auto all_post = std::make_shared<Post>(4), copy_post = std::make_shared<Post>(4),
                 pair_post = std::make_shared<Post>(2);
      std::atomic<int> gave_up{0};
      run_threads(4, [&](int rank) {
        const auto join = [&](par::Rendezvous place, const std::shared_ptr<Post>& post) {
          auto transport = std::make_unique<PostTransport>(post, place.rank, waits);
          return std::make_unique<par::MessageGroup>(par::InitOptions{.timeout = std::chrono::seconds(1)},
                                                     std::move(place), std::move(transport));
        };
        const auto all = join({.rank = rank, .size = 4}, all_post);
        const auto copy =
            join({.rank = rank, .size = 4, .members = {0, 1, 2, 3}, .liveness = all->liveness()}, copy_post);
        if (rank < 3) {
          const ls::Tensor t = ls::zeros({count});
          std::unique_ptr<par::Backend> pair;
          if (rank < 2)
            pair = join({.rank = rank, .size = 2, .members = {0, 1}, .liveness = all->liveness()}, pair_post);
          const std::string error = error_of<ls::CommTimeout>([&] {
            // Rank 0 waits for rank 1 in a group without rank 3, rank 1 for a message from rank 3, rank 2 for all.
            (rank == 0   ? start(*pair, par::Kind::kAllReduce, t, t)
             : rank == 1 ? message(*copy, par::Kind::kRecv, 3, count)
                         : start(*all, par::Kind::kAllReduce, t, t))
                ->wait();
          });
          const std::string blame = error.substr(error.find("): "));
          CHECK_MESSAGE(contains(blame, rank == 0 ? "global rank 3 does not answer" : "rank 3 "), error);
          for (int other = 0; other < 3; ++other)
            CHECK_MESSAGE(!contains(blame, "rank " + std::to_string(other)), error);
          ++gave_up;
        }
        while (gave_up < 3) std::this_thread::yield();
      });
    }
  }
}

TEST_CASE(
    "messages: in a cycle of ranks that wait for each other, each names its next one, or repeats another rank's "
    "error") {
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    with_message_group(
        3, waits,
        [&](par::Backend& group) {
          const int rank = group.rank(), next = (rank + 1) % 3;
          const std::string error =
              error_of<ls::CommTimeout>([&] { message(group, par::Kind::kRecv, next, 10)->wait(); });
          const bool is_named = contains(error, "rank " + std::to_string(next) + " did not answer");
          CHECK_MESSAGE((is_named || contains(error, "another rank reports")), error);
        },
        std::chrono::seconds(1));
  }
}
