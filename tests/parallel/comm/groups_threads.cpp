// Process groups beyond the results of single collectives: order, many operations in flight, disagreement, leaving.
#include <barrier>

#include "tests/parallel/comm/collectives.h"
#include "tests/parallel/comm/listed_store.h"

using ls::parallel::ReduceOp;

TEST_CASE("operations may be waited for in any order or dropped, and may outnumber the slots") {
  with_group("local", 3, [](const Group& group) {
    std::vector<ls::Tensor> tensors;
    std::vector<std::shared_ptr<ls::parallel::Work>> works;
    for (int i = 0; i < 100; ++i) {
      tensors.push_back(given_tensor(group->rank() + i, {1 + i * 37}, ls::kFloat32));
      works.push_back(group->all_reduce(tensors.back()));
      if (i % 3 == 0) works.back() = nullptr;  // dropped without a wait
    }
    for (std::size_t i = works.size(); i-- > 0;) {
      if (works[i]) works[i]->wait();
    }
    group->barrier();
    for (int i = 0; i < 100; ++i) {
      ls::Tensor want = given_tensor(i, {1 + i * 37}, ls::kFloat32);
      for (int r = 1; r < 3; ++r) want = want + given_tensor(r + i, {1 + i * 37}, ls::kFloat32);
      if (i % 3 != 0) expect_same(tensors[static_cast<std::size_t>(i)], want, "tensor " + std::to_string(i));
    }
  });
}

TEST_CASE("two groups waited for in opposite orders do not wait for each other forever") {
  with_group("local", 2, [](const Group& first) {
    const Group second = first->split(0, first->rank());
    for (const std::int64_t count : {4, 5000, 300000}) {
      CAPTURE(count);
      const ls::Tensor a = ls::full({count}, 1), b = ls::full({count}, 2);
      const auto x = first->all_reduce(a), y = second->all_reduce(b);
      if (first->rank() == 0) {
        y->wait();
        x->wait();
      } else {
        x->wait();
        y->wait();
      }
      CHECK(a.max().item<float>() == 2);
      CHECK(b.min().item<float>() == 4);
    }
  });
}

TEST_CASE("local: 100,000 random collectives of random sizes, waited for at random, give the right numbers") {
  for (const int size : {2, 3})
    with_group("local", size,
               [](const Group& group) { check_random_collectives(group, random_collectives(100'000) / 2); });
}

TEST_CASE("communication memory and views of it are reduced in place, and outlive their handle while in flight") {
  with_group("local", 3, [](const Group& group) {
    for (const std::int64_t count : {1, 1000, 100000}) {
      ls::Tensor t = group->empty({count + 16}, ls::kFloat64);
      t.fill_(group->rank() + 1);
      group->all_reduce(t.narrow(0, 16, count))->wait();
      CHECK(t.narrow(0, 16, count).min().item<double>() == 6);
      CHECK(t.narrow(0, 0, 16).max().item<double>() == group->rank() + 1);
      t.fill_(group->rank());
      const auto work = group->broadcast(t, 2);
      t = ls::Tensor();
      work->wait();
    }
  });
}

TEST_CASE("a strided result that starts at the input's first element is not mistaken for the input") {
  with_group("local", 3, [](const Group& group) {
    const ls::Tensor wide = ls::full({3, 8}, -1.0), out = wide.narrow(1, 0, 4);
    out[group->rank()].copy_(ls::full({4}, 1.0 * group->rank()));
    group->all_gather(out, out[group->rank()])->wait();
    for (int r = 0; r < 3; ++r) CHECK(out[r].to_vector<int>() == std::vector<int>(4, r));
    CHECK(wide.narrow(1, 4, 4).max().item<float>() == -1);
  });
}

TEST_CASE("groups and messages started in different orders do not wait for each other forever") {
  with_group("local", 2, [](const Group& first) {
    const Group second = first->split(0);
    for (const std::int64_t count : {4, 5000, 100000}) {
      const ls::Tensor a = ls::full({count}, 1.0), b = ls::full({count}, 2.0), message = ls::zeros({count});
      const bool zero = first->rank() == 0;
      const auto x = (zero ? first : second)->all_reduce(zero ? a : b),
                 y = (zero ? second : first)->all_reduce(zero ? b : a);
      y->wait();
      x->wait();
      CHECK(a.max().item<float>() == 2);
      CHECK(b.min().item<float>() == 4);
      const ls::Tensor c = ls::full({count}, 1.0);
      if (zero) {
        const auto work = first->all_reduce(c);
        first->send(a, 1)->wait();
        work->wait();
      } else {
        first->recv(message, 0)->wait();
        first->all_reduce(c)->wait();
        CHECK(message.max().item<float>() == 2);
      }
      CHECK(c.max().item<float>() == 2);
    }
  });
}

TEST_CASE("a message that was sent and dropped arrives even if the sender destroys its group") {
  with_group("local", 2, [](const Group& group) {
    if (group->rank() == 0) {
      group->send(ls::full({100000}, 3.0), 1);
      return;
    }
    const ls::Tensor t = ls::zeros({100000});
    group->recv(t, 0)->wait();
    CHECK(t.min().item<float>() == 3);
  });
}

TEST_CASE("large messages cross: send and receive at the same time") {
  with_group("local", 2, [](const Group& group) {
    const ls::Tensor out = given_tensor(group->rank(), {200000}, ls::kFloat32), in = ls::empty({200000});
    const auto sent = group->send(out, 1 - group->rank(), 3), got = group->recv(in, 1 - group->rank(), 3);
    sent->wait();
    got->wait();
    expect_same(in, given_tensor(1 - group->rank(), {200000}, ls::kFloat32), "message");
  });
}

TEST_CASE("ranks that disagree get an error that names both sides") {
  const auto check = [](const std::function<void(const Group&)>& fn, const std::vector<std::string>& parts) {
    with_group("local", 2, [&](const Group& group) {
      const std::string error = error_of<ls::CommError>([&] { fn(group); });
      for (const std::string& part : parts) CHECK_MESSAGE(contains(error, part), error << " lacks " << part);
      const std::string again = error_of<ls::CommError>([&] { group->barrier(); });
      CHECK_MESSAGE(contains(again, "failed before"), again);
    });
  };
  check([](const Group& group) { group->all_reduce(ls::zeros({group->rank() + 2}))->wait(); },
        {"all_reduce", "2 f32", "3 f32", "rank 0", "rank 1"});
  check([](const Group& group) { group->all_reduce(ls::zeros({100000 * group->rank() + 2}))->wait(); },
        {"2 f32", "100002 f32"});
  check(
      [](const Group& group) {
        group->all_reduce(ls::zeros({2}, {.dtype = group->rank() ? ls::kFloat64 : ls::kFloat32}))->wait();
      },
      {"2 f32", "2 f64"});
  check(
      [](const Group& group) {
        (group->rank() ? group->broadcast(ls::zeros({2}), 0) : group->all_reduce(ls::zeros({2})))->wait();
      },
      {"all_reduce of 2", "broadcast of 2"});
  check(
      [](const Group& group) {
        group->all_reduce(group->rank() ? ls::zeros({2, 3}) : ls::zeros({3, 2}))->wait();
      },
      {"another shape"});
  check([](const Group& group) { group->broadcast(ls::zeros({2}), group->rank())->wait(); }, {"root 0", "root 1"});
  check(
      [](const Group& group) {
        group->all_reduce(ls::zeros({2}), group->rank() ? ReduceOp::kMax : ReduceOp::kSum)->wait();
      },
      {"(sum)", "(max)"});
  check(
      [](const Group& group) {
        if (group->rank() == 0)
          group->barrier();
        else
          group->empty({3});
      },
      {"barrier", "empty of 12 bytes"});
  check(
      [](const Group& group) {
        if (group->rank() == 0)
          group->send(ls::zeros({3}), 1, 7)->wait(), group->barrier();
        else
          group->recv(ls::zeros({4}), 0, 8)->wait();
      },
      {"rank"});
}

TEST_CASE("barrier and collectives time out and name the rank that has not arrived") {
  with_group("local", 3,
             [](const Group& group) {
               static std::barrier meeting(3);
               if (group->rank() != 1) {
                 const std::string error = error_of<ls::CommTimeout>([&] { group->barrier(); });
                 const bool named =
                     contains(error, "rank 1 has not arrived") || contains(error, "rank 1 did not arrive in time");
                 CHECK_MESSAGE(named, error);
               }
               meeting.arrive_and_wait();
             },
             {.timeout = std::chrono::seconds(3)});
}

TEST_CASE("in a chain of ranks that wait for each other, all name the last one, which waits for nobody") {
  with_group("local", 4,
             [](const Group& group) {
               static std::barrier meeting(4);
               const int rank = group->rank();
               const ls::Tensor t = ls::zeros({100'000});
               if (rank < 3) {
                 // Rank 0 waits for 1 to join the sum, which waits for 2 to send, which waits for 3.
                 const std::string error = error_of<ls::CommTimeout>(
                     [&] { (rank == 0 ? group->all_reduce(t) : group->recv(t, rank + 1))->wait(); });
                 const std::string blame = error.substr(error.find("): "));
                 CHECK_MESSAGE(contains(blame, "rank 3 "), error);
                 for (int other = 0; other < 3; ++other)
                   CHECK_MESSAGE(!contains(blame, "rank " + std::to_string(other)), error);
               }
               meeting.arrive_and_wait();
             },
             {.timeout = std::chrono::seconds(1)});
}

TEST_CASE("a rank that leaves is named at once") {
  with_group("local", 3, [](const Group& group) {
    if (group->rank() == 2) return;  // the last handle is destroyed, and the rank leaves the group
    const std::string error = error_of<ls::CommError>([&] { group->all_reduce(ls::zeros({100}))->wait(); });
    CHECK_MESSAGE(contains(error, "rank 2 has left the group"), error);
  });
}

TEST_CASE("split makes groups of the ranks with one color, ordered by key") {
  with_group("local", 5, [](const Group& group) {
    const int rank = group->rank();
    const Group part = group->split(rank == 4 ? -1 : rank % 2, -rank);
    if (rank == 4) {
      CHECK(part == nullptr);
      return;
    }
    CHECK(part->size() == 2);
    CHECK(part->rank() == (rank < 2 ? 1 : 0));
    const ls::Tensor t = ls::full({1}, rank);
    part->all_reduce(t)->wait();
    CHECK(t.item<int>() == 2 * (rank % 2) + 2);
  });
}

TEST_CASE("split groups, alive or destroyed, leave no keys in the store") {
  for (const char* backend : {"local", "sim"}) {
    const auto store = std::make_shared<ListedStore>(std::make_shared<ls::parallel::InProcessStore>());
    run_threads(4, [&](int rank) {
      check_no_keys_left({.backend = backend, .world_size = 4, .rank = rank, .store = store}, *store);
    });
  }
}

TEST_CASE("uneven all_to_all, averages, products and misuse") {
  with_group("local", 3, [](const Group& group) {
    const int rank = group->rank();
    // Rank r sends r + c rows to rank c.
    std::vector<std::int64_t> in_splits, out_splits;
    std::vector<double> values, want;
    for (int c = 0; c < 3; ++c) {
      in_splits.push_back(rank + c);
      out_splits.push_back(c + rank);
      for (int k = 0; k < rank + c; ++k) {
        values.push_back(10 * rank + c);
        want.push_back(10 * c + rank);
      }
    }
    const auto n = static_cast<std::int64_t>(values.size());
    const ls::Tensor in = ls::zeros({n}), out = ls::zeros({n});
    in.copy_(ls::from_memory<double>(values, {n}));
    group->all_to_all(out, in, {.out_splits = out_splits, .in_splits = in_splits})->wait();
    CHECK(out.to_vector<double>() == want);

    const ls::Tensor average = ls::full({5}, 1.0 * rank), product = ls::full({5}, rank + 2.0);
    group->all_reduce(average, ReduceOp::kAvg)->wait();
    group->all_reduce(product, ReduceOp::kProduct)->wait();
    CHECK(average.max().item<float>() == 1);
    CHECK(product.min().item<float>() == 24);

    CHECK(contains(error_of([&] { group->broadcast(ls::zeros({1}), 3); }), "root is 3"));
    CHECK(contains(error_of([&] { group->all_reduce(ls::zeros({1}, {.dtype = ls::kBool})); }), "bool"));
    CHECK(contains(error_of([&] { group->all_reduce(ls::zeros({1}, {.dtype = ls::kInt64}), ReduceOp::kAvg); }),
                   "average"));
    CHECK(contains(error_of([&] { group->all_gather(ls::zeros({4}), ls::zeros({2})); }), "all_gather: out is"));
    CHECK(contains(error_of([&] { group->all_reduce(ls::Tensor()); }), "undefined"));
    const ls::Tensor expanded = ls::zeros({1}).expand({2});
    CHECK(contains(error_of([&] { group->all_reduce(expanded); }), "all_reduce: (2) f32 cpu is expanded"));
    CHECK(contains(error_of([&] { group->all_gather(expanded.expand({3, 2}), ls::zeros({2})); }), "is expanded"));
    if (rank == 0) {
      CHECK(contains(error_of([&] {
                       group->gather({expanded, expanded, expanded}, ls::zeros({2}), 0);
                     }),
                     "gather: (2) f32 cpu is expanded"));
    }
    CHECK(contains(error_of([&] { group->send(ls::zeros({1}), rank); }), "itself"));
    group->barrier();
  });
}
