// all_gather, reduce_scatter and all_to_all directly in communication memory, and the name of a collective.
#include "tests/parallel/comm/parts.h"

#include <barrier>

namespace {

using ls::parallel::CallOptions;

// Runs fn on two ranks, and checks that the error of one of them has all `parts`; the other one's may only name it.
void check_disagreement(const std::string& backend, const std::function<void(const Group&)>& fn,
                        const std::vector<std::string>& parts) {
  std::string errors[2];
  with_threads(backend, 2, [&](const Group& group) {
    std::string& error = errors[group->rank()];
    error = error_of<ls::CommError>([&] { fn(group); });
    CHECK_MESSAGE(contains(error, "disagree"), error);
    CHECK_MESSAGE(!contains(error, "earlier"), error);
  });
  const auto has_all = [&](const std::string& error) {
    return std::ranges::all_of(parts, [&](const std::string& part) { return contains(error, part); });
  };
  CHECK_MESSAGE((has_all(errors[0]) || has_all(errors[1])), errors[0] << "\n" << errors[1]);
}

}  // namespace

TEST_CASE("local: collectives of parts in place, apart, scaled, in communication memory and outside") {
  for (const int n : {1, 2, 3, 4, 8}) {
    with_group("local", n, [](const Group& group) {
      check_parts(group, 1, ls::kFloat32);
      for (const ls::DType dtype : kAllDTypes) check_parts(group, 37, dtype);
      if (group->size() == 3) check_parts(group, 70'001, ls::kBFloat16);  // several tasks
      check_rounding(group);
      check_traffic_of_parts(group);
    });
  }
}

TEST_CASE("sim: collectives of parts in place, apart and scaled") {
  with_threads("sim", 3, [](const Group& group) {
    check_parts(group, 37, ls::kFloat32);
    check_rounding(group);
    check_traffic_of_parts(group);
  });
}

TEST_CASE("all_to_all of a tensor to itself in communication memory is staged") {
  with_group("local", 3, [](const Group& group) {
    const ls::Tensor t = group->empty({3, 1000});
    for (int r = 0; r < 3; ++r) t[r].fill_(10 * group->rank() + r);
    group->all_to_all(t, t)->wait();
    for (int r = 0; r < 3; ++r) expect_same(t[r], ls::full({1000}, 10.0 * r + group->rank()), "all_to_all");
  });
}

TEST_CASE("one waiting rank finishes collectives of parts in communication memory for all") {
  with_group("local", 4, [](const Group& group) {
    static std::barrier meeting(4);
    const int rank = group->rank();
    const std::int64_t count = 100'000;
    const ls::Tensor whole = group->empty({4, count}), sums = group->empty({4, count}), to = group->empty({4, count}),
                     from = group->empty({4, count});
    whole[rank].fill_(rank);
    sums.fill_(rank);
    from.fill_(rank);
    const std::shared_ptr<ls::parallel::Work> works[] = {group->all_gather(whole, whole[rank]),
                                                         group->reduce_scatter_scaled(sums[rank], sums, 0.5),
                                                         group->all_to_all(to, from)};
    meeting.arrive_and_wait();
    if (rank == 2) {
      for (const auto& work : works) work->wait();
    }
    meeting.arrive_and_wait();
    for (const auto& work : works) CHECK(work->is_known_complete());
    for (int r = 0; r < 4; ++r) {
      expect_same(whole[r], ls::full({count}, 1.0 * r), "all_gather");
      expect_same(to[r], ls::full({count}, 1.0 * r), "all_to_all");
      expect_same(sums[r], ls::full({count}, r == rank ? 3.0 : rank), "reduce_scatter");
    }
    for (const auto& work : works) work->wait();
  });
}

TEST_CASE("ranks that gather units of other names get an error that names both") {
  for (const char* backend : {"local", "sim"}) {
    const auto gather = [&](const std::function<CallOptions(int)>& options, const std::vector<std::string>& parts) {
      check_disagreement(
          backend,
          [&](const Group& group) {
            const ls::Tensor all = group->empty({2, 5}), own = group->empty({5});
            group->all_gather(all, own, {.name = "earlier unit", .id = 1})->wait();
            group->all_gather(all, own)->wait();
            for (int i = 0; i < 40; ++i) group->reduce_scatter_scaled(own, all, 1, {.name = "earlier unit"})->wait();
            group->all_gather(all, own, options(group->rank()))->wait();
          },
          parts);
    };
    gather([](int rank) { return CallOptions{.name = rank ? "unit blocks.1" : "unit blocks.0"}; },
           {"for \"unit blocks.0\"", "for \"unit blocks.1\"", "all_gather of 5 f32"});
    gather([](int rank) { return CallOptions{.name = "unit 3", .id = rank ? 7u : 8u}; },
           {"for \"unit 3\"", "scale, name"});
    gather([](int rank) { return rank ? CallOptions{} : CallOptions{.name = "a name of more than 24 bytes"}; },
           {"for \"me of more than 24 bytes\""});
  }
}

TEST_CASE("ranks that pass other places of communication memory get an error that names both") {
  const auto check = [](const std::function<void(const Group&, const ls::Tensor&, const ls::Tensor&)>& fn,
                        const std::vector<std::string>& parts) {
    check_disagreement(
        "local",
        [&](const Group& group) {
          const ls::Tensor first = group->empty({3, 1024}), second = group->empty({3, 1024});
          fn(group, first, second);
        },
        parts);
  };
  const auto rows = [](const ls::Tensor& t, std::int64_t from) { return t.narrow(0, from, 2); };
  check([&](const Group& g, const ls::Tensor& a,
            const ls::Tensor& b) { g->all_gather(rows(a, g->rank()), b[1])->wait(); },
        {"rank 0 called all_gather of 1024 f32 at 2+4096 and 1+0, rank 1 at 2+4096 and 1+4096\nPass the same memory on "
         "all ranks"});
  check([&](const Group& g, const ls::Tensor& a,
            const ls::Tensor& b) { g->reduce_scatter(b[2], rows(g->rank() ? a : b, 0))->wait(); },
        {"at 1+0 and 2+8192", "at 2+0 and 2+8192"});
  check([&](const Group& g, const ls::Tensor& a,
            const ls::Tensor& b) { g->all_gather(rows(a, 1), g->rank() ? a[2] : b[0])->wait(); },
        {"at 2+0 and 1+4096", "at 1+4096 and 1+4096"});
  check(
      [&](const Group& g, const ls::Tensor& a, const ls::Tensor& b) {
        g->all_to_all(rows(a, 0), g->rank() ? rows(b, 0) : ls::zeros({2, 1024}))->wait();
      },
      {"all_to_all of 1024 f32 in communication memory", "all_to_all of 1024 f32"});
  check([&](const Group& g, const ls::Tensor& a, const ls::Tensor&) { g->all_reduce(rows(a, g->rank()))->wait(); },
        {"at 1+0 and 1+0", "at 1+4096 and 1+4096"});
}

TEST_CASE("a collective that writes the same values leaves the version of the storage alone") {
  for (const int n : {1, 2}) {
    with_group("local", n, [&](const Group& group) {
      const ls::Tensor all = group->empty({n, 4}), own = group->empty({4}),
                       strided = ls::zeros({n, 8}).slice(1, 0, 8, 2);
      for (const ls::Tensor& out : {all, strided}) {
        const auto before = out.version();
        group->all_gather(out, own, {.same_values = true})->wait();
        CHECK(out.version() == before);
        group->all_gather(out, own, {.name = "unit"})->wait();
        CHECK(out.version() > before);
      }
      // A parameter that autograd has saved: gathered again, backward accepts it.
      const ls::Tensor x = ls::ones({n, 4}, {.requires_grad = true}), part = all[group->rank()];
      all.fill_(3);
      const ls::Tensor loss = ls::sum(x * all);
      group->all_gather(all, part, {.same_values = true})->wait();
      loss.backward();
      CHECK(x.grad().min().item<double>() == 3);
      const ls::Tensor other = ls::sum(x * all);
      group->all_gather(all, part)->wait();
      CHECK(contains(error_of<ls::Error>([&] { other.backward(); }), "changed"));
    });
  }
}
