// Random numbers: the generator's known answers, streams, state, and distributions.
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"
#include "tests/support/testing.h"

namespace {

namespace random = ls::random;
using Words = std::vector<std::uint32_t>;

Words words_at(const random::Position& position, std::int64_t count = 4) {
  Words out(static_cast<std::size_t>(count));
  ls::kernels({}).random_bits(out.data(), count, position);
  return out;
}

}  // namespace

TEST_CASE("the generator gives the known answers of Random123 for Philox4x32-10") {
  CHECK(words_at({0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words_at({~0ull, ~0ull, ~0ull}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  const random::Position pi = {.seed = 0x299f31d0a4093822, .stream = 0x0370734413198a2e, .offset = 0x85a308d3243f6a88};
  CHECK(words_at(pi) == Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("element i is word i % 4 of block i / 4, for any number of elements and threads") {
  const random::Position start = {7, 3, 11};
  const Words all = words_at(start, 200001);
  for (std::uint64_t block : {0ull, 1ull, 1234ull, 49999ull}) {
    const Words one = words_at({7, 3, 11 + block});
    CHECK(Words(all.begin() + static_cast<std::ptrdiff_t>(4 * block),
                all.begin() + static_cast<std::ptrdiff_t>(4 * block + 4)) == one);
  }
  CHECK(all.back() == words_at({7, 3, 11 + 50000})[0]);
  const int before = ls::num_threads();
  for (int threads : {1, 2, 3}) {
    ls::set_num_threads(threads);
    CHECK(words_at(start, 200001) == all);
  }
  ls::set_num_threads(before);
}

TEST_CASE("uniform f32 takes 24 bits of a word, f64 53 bits of two") {
  ls::manual_seed(42);
  const ls::Tensor a = ls::rand({6});
  const Words words = words_at({42, 0, 0}, 8);
  for (std::int64_t i = 0; i < 6; ++i)
    CHECK(a[i].item<float>() == static_cast<float>(words[static_cast<std::size_t>(i)] >> 8) * 0x1p-24f);
  ls::manual_seed(42);
  const ls::Tensor b = ls::rand({3}, {.dtype = ls::kFloat64});
  for (std::size_t i = 0; i < 3; ++i) {
    const std::uint64_t both = std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
    CHECK(b[static_cast<std::int64_t>(i)].item<double>() == static_cast<double>(both >> 11) * 0x1p-53);
  }
}

TEST_CASE("normal f32 is Box-Muller of two words' 24 bits in f64, rounded once") {
  constexpr std::size_t kCount = 1'000'002;
  ls::manual_seed(42);
  const std::vector<float> z = ls::randn({kCount}).to_vector<float>();
  const Words words = words_at({42, 0, 0}, kCount);
  int different = 0;
  for (std::size_t i = 0; i < kCount; i += 2) {
    const double u = (words[i] >> 8) * 0x1p-24, v = (words[i + 1] >> 8) * 0x1p-24;
    const double radius = std::sqrt(-2 * std::log(1 - u)), angle = 6.283185307179586476925 * v;
    different += z[i] != static_cast<float>(radius * std::cos(angle));
    different += z[i + 1] != static_cast<float>(radius * std::sin(angle));
  }
  CHECK(different == 0);
}

TEST_CASE("dropout keeps elements whose word is below keep 2^32; randint scales 64 bits to its range") {
  constexpr std::size_t kCount = 70'001;
  ls::manual_seed(42);
  const std::vector<float> mask = ls::dropout(ls::ones({kCount}), 0.3).to_vector<float>();
  const std::vector<std::int64_t> integers = ls::randint(-5, 95, {kCount}).to_vector<std::int64_t>();
  const Words words = words_at({42, 0, 0}, kCount), halves = words_at({42, 0, std::uint64_t{1} << 36}, 2 * kCount);
  int different = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    different += (mask[i] != 0) != (words[i] * 0x1p-32 < 1 - 0.3);
    const std::uint64_t word = std::uint64_t{halves[2 * i]} << 32 | halves[2 * i + 1];
    different += integers[i] != -5 + static_cast<std::int64_t>(((word >> 32) * 100 + ((word & ~0u) * 100 >> 32)) >> 32);
  }
  CHECK(different == 0);
}

TEST_CASE("the same seed gives the same numbers, and another seed others") {
  const auto draw = [](std::uint64_t seed) {
    ls::manual_seed(seed);
    return ls::cat(
        {ls::rand({5}), ls::randn({5}), ls::randint(0, 1000, {5}).to(ls::kFloat32), ls::randperm(5).to(ls::kFloat32)});
  };
  CHECK(same_bits(draw(1), draw(1)));
  CHECK(!same_bits(draw(1), draw(2)));
  CHECK(!same_bits(draw(1), draw(std::uint64_t{1} << 32 | 1)));
  ls::manual_seed(1);
  CHECK(!same_bits(ls::rand({8}), ls::rand({8})));
}

// Draws as a module of this path does, called by the module `called`.
ls::Tensor draw_in(const char* called, const char* module) {
  const auto find_site = [](const void* outermost, const void* innermost) -> std::uint64_t {
    return 1000 * std::strlen(static_cast<const char*>(outermost)) + std::strlen(static_cast<const char*>(innermost));
  };
  const random::SiteGuard outer(called, find_site), inner(module, find_site);
  return ls::rand({5});
}

TEST_CASE("call n of a site begins at block n 2^36, with site and micro-batch above it") {
  ls::manual_seed(42);
  ls::rand({100});
  CHECK(ls::rand({1}).item<float>() ==
        static_cast<float>(words_at({42, 0, std::uint64_t{1} << 36})[0] >> 8) * 0x1p-24f);
  const random::MicroBatchGuard guard(3);
  const ls::Tensor x = draw_in("ab", "c");  // site 2001
  CHECK(x[0].item<float>() ==
        static_cast<float>(words_at({42, (std::uint64_t{2001} << 12 | 3) << 12, 0})[0] >> 8) * 0x1p-24f);
  random::set_state(std::vector<std::uint64_t>{random::kStateFormat, 42, 0, 3, (std::uint64_t{5} << 28) + 7});
  CHECK(ls::rand({1}).item<float>() ==
        static_cast<float>(words_at({42, std::uint64_t{3} << 12 | 5, std::uint64_t{7} << 36})[0] >> 8) * 0x1p-24f);
}

TEST_CASE("a site's draws depend on no other site, nor on initial values") {
  const auto draw = [](bool disturbed) {
    ls::manual_seed(3);
    const ls::Tensor first = draw_in("", "module");
    if (disturbed) {
      ls::rand({7});
      random::draw_initial(7);
      draw_in("", "other module");
      draw_in("called", "module");
    }
    return ls::cat({first, draw_in("", "module")});
  };
  CHECK(same_bits(draw(false), draw(true)));
  CHECK(!same_bits(draw(false).narrow(0, 0, 5), draw(false).narrow(0, 5, 5)));
  CHECK(!same_bits(draw_in("a", "b"), draw_in("aa", "b")));
}

TEST_CASE("1000 random slices of initial values equal the elements of the whole tensor") {
  const random::Position position = {.seed = 5, .stream = 9, .offset = 3};
  const ls::Shape shape = {37, 41};
  std::mt19937 choose(1);
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const ls::TensorOptions options = {.dtype = dtype};
    const ls::Tensor uniform = ls::raw::uniform_at(position, 0, shape, -1, 2, options).flatten(),
                     normal = ls::raw::normal_at(position, 0, shape, options).flatten();
    for (int i = 0; i < 500; ++i) {
      const std::int64_t first = choose() % 1500, count = choose() % (1517 - first);
      CHECK(same_bits(ls::raw::uniform_at(position, first, {count}, -1, 2, options), uniform.narrow(0, first, count)));
      CHECK(same_bits(ls::raw::normal_at(position, first, {count}, options), normal.narrow(0, first, count)));
    }
  }
}

TEST_CASE("a micro-batch's random numbers depend on the micro-batch, not on its device, time or thread") {
  ls::manual_seed(9);
  std::vector<ls::Tensor> in_turn;
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
    const random::MicroBatchGuard guard(micro_batch);
    in_turn.push_back(ls::cat({ls::rand({3}), ls::dropout(ls::ones({3}), 0.5)}));
  }
  CHECK(!same_bits(in_turn[0], in_turn[1]));
  ls::manual_seed(9);
  std::vector<ls::Tensor> in_threads(4);
  std::vector<std::thread> threads;
  for (int micro_batch = 3; micro_batch >= 0; --micro_batch) {
    threads.emplace_back([&in_threads, micro_batch] {
      const random::MicroBatchGuard guard(micro_batch);
      const ls::Tensor first = ls::rand({3});
      in_threads[static_cast<std::size_t>(micro_batch)] = ls::cat({first, ls::dropout(ls::ones({3}), 0.5)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t micro_batch = 0; micro_batch < 4; ++micro_batch)
    CHECK(same_bits(in_turn[micro_batch], in_threads[micro_batch]));
}

TEST_CASE("a micro-batch guard restores the previous one, nested too, and refuses invalid numbers") {
  CHECK(random::current_micro_batch() == 0);
  {
    const random::MicroBatchGuard outer(5);
    const random::MicroBatchGuard inner(7);
    CHECK(random::current_micro_batch() == 7);
  }
  CHECK(random::current_micro_batch() == 0);
  CHECK(contains(error_of([] { random::MicroBatchGuard guard(random::kMaxMicroBatches); }),
                 "micro-batch 1024 is outside"));
  CHECK(!error_of([] { random::MicroBatchGuard guard(-1); }).empty());
  CHECK(random::current_micro_batch() == 0);
}

TEST_CASE("a restored state continues with the same numbers, in every stream and micro-batch") {
  ls::manual_seed(77);
  ls::rand({5});
  ls::randperm(3);
  {
    const random::MicroBatchGuard guard(2);
    ls::randn({6});
  }
  const std::vector<std::uint64_t> state = random::state();
  const auto draw = [] {
    const ls::Tensor user = ls::randn({5}), order = ls::randperm(6).to(ls::kFloat32);
    const random::MicroBatchGuard guard(2);
    return ls::cat({user, order, ls::rand({3})});
  };
  const ls::Tensor first = draw();
  CHECK(random::seed() == 77);
  ls::manual_seed(1);
  CHECK(random::seed() == 1);
  ls::rand({100});
  random::set_state(state);
  CHECK(random::state() == state);
  CHECK(same_bits(draw(), first));
}

TEST_CASE("a list that is not a state is refused and changes nothing") {
  ls::manual_seed(5);
  ls::rand({3});
  const auto before = random::state();
  const auto refuse = [&](const std::vector<std::uint64_t>& list) {
    CHECK(!error_of([&] { random::set_state(list); }).empty());
    CHECK(random::state() == before);
  };
  refuse({});
  refuse({1, 2});
  refuse({3, 1});
  refuse({2, 1, 0, 5000, 3});
  refuse({2, 1, ~0ull, 0, 3});
  CHECK(contains(error_of([] { random::set_state(std::vector<std::uint64_t>{1, 0, 0, 3}); }), "format 1"));
}

TEST_CASE("uniform, normal and dropout draws have the right moments and range") {
  ls::manual_seed(2024);
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const std::int64_t n = 400000;
    const double error = 5 / std::sqrt(static_cast<double>(n));  // five standard deviations of a mean of unit variance
    const ls::Tensor u = ls::rand({n}, {.dtype = dtype}), z = ls::randn({n}, {.dtype = dtype});
    CHECK(ls::min(u).item<double>() >= 0);
    CHECK(ls::max(u).item<double>() < 1);
    CHECK(std::abs(ls::mean(u).item<double>() - 0.5) < error);
    CHECK(std::abs(ls::var(u).item<double>() - 1.0 / 12) < error);
    CHECK(std::abs(ls::mean(z).item<double>()) < error);
    CHECK(std::abs(ls::var(z).item<double>() - 1) < 2 * error);
    CHECK(std::abs(ls::mean(z * z * z).item<double>()) < 4 * error);
    CHECK(std::abs(ls::mean(ls::pow(z, 4)).item<double>() - 3) < 10 * error);
    CHECK(std::abs(ls::mean(z.narrow(0, 1, n - 1) * z.narrow(0, 0, n - 1)).item<double>()) < error);
    const ls::Tensor mask = ls::dropout(ls::ones({n}, {.dtype = dtype}), 0.2);
    CHECK(std::abs(ls::mean(mask).item<double>() - 1) < error);
    CHECK(ls::max(mask).item<double>() == doctest::Approx(1.25));
    CHECK(ls::min(mask).item<double>() == 0);
    const ls::Tensor wide = ls::raw::uniform({n}, -3, 5, {.dtype = dtype});
    CHECK(ls::min(wide).item<double>() >= -3);
    CHECK(ls::max(wide).item<double>() <= 5);
    CHECK(std::abs(ls::mean(wide).item<double>() - 1) < 3 * error);
  }
}

TEST_CASE("dropout with p = 0 keeps every element, with p = 1 none, and draws nothing") {
  ls::manual_seed(8);
  const ls::Tensor x = ls::full({1000}, 3.0);
  CHECK(same_bits(ls::dropout(x, 0), x));
  CHECK(same_bits(ls::dropout(x, 0.5, /*training=*/false), x));
  CHECK(ls::max(ls::dropout(x, 1)).item<float>() == 0);
  CHECK(random::state() == std::vector<std::uint64_t>{2, 8});
  CHECK(contains(error_of([&] { ls::dropout(x, 1.5); }), "dropout: p is 1.5, expected 0 to 1"));
  CHECK(contains(error_of([] { ls::dropout(ls::arange(3)); }), "dropout: x is (3) i64"));
}

TEST_CASE("randint covers its range evenly, with both ends as documented, the largest range included") {
  ls::manual_seed(1);
  const ls::Tensor x = ls::randint(-3, 4, {70000});
  CHECK(x.dtype() == ls::kInt64);
  for (int value = -3; value < 4; ++value) CHECK(std::abs(ls::sum(x == value).item<double>() - 10000) < 500);
  CHECK(ls::sum(x >= 4).item<int>() == 0);
  CHECK(ls::randint(5, 6, {3}).to_vector<int>() == std::vector<int>{5, 5, 5});
  CHECK(ls::randint(0, 2, {4}, {.dtype = ls::kFloat32}).dtype() == ls::kFloat32);
  const std::int64_t low = std::numeric_limits<std::int64_t>::min(), high = std::numeric_limits<std::int64_t>::max();
  const ls::Tensor wide = ls::randint(low, high, {1000});
  CHECK(std::abs(ls::sum(wide < 0).item<double>() - 500) < 100);
  CHECK(ls::randint(0, 9, {0}).numel() == 0);
  CHECK(contains(error_of([] { ls::randint(3, 3, {1}); }), "no integer in [3, 3)"));
}

TEST_CASE("randperm is a permutation, and every order of three is equally likely") {
  ls::manual_seed(1);
  const std::vector<std::int64_t> order = ls::randperm(1000).to_vector<std::int64_t>();
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 1000);
  CHECK(*std::min_element(order.begin(), order.end()) == 0);
  CHECK(*std::max_element(order.begin(), order.end()) == 999);
  std::vector<int> seen(27);
  for (int i = 0; i < 6000; ++i) {
    const auto p = ls::randperm(3).to_vector<std::int64_t>();
    ++seen[static_cast<std::size_t>(9 * p[0] + 3 * p[1] + p[2])];
  }
  CHECK(std::count(seen.begin(), seen.end(), 0) == 21);
  for (int count : seen) CHECK((count == 0 || std::abs(count - 1000) < 160));
  CHECK(ls::randperm(0).numel() == 0);
  CHECK(ls::randperm(1).item<int>() == 0);
  CHECK(contains(error_of([] { ls::randperm(-1); }), "randperm"));
}

TEST_CASE("random tensors of integers, of f16 or on another virtual device have the requested options") {
  CHECK(contains(error_of([] { ls::rand({2}, {.dtype = ls::kInt64}); }), "rand: needs f32 or f64"));
  const auto draw = [](ls::DType dtype) {
    ls::manual_seed(4);
    return ls::cat({ls::rand({5}, {.dtype = dtype}), ls::randn({6}, {.dtype = dtype})});
  };
  for (const ls::DType half : {ls::kFloat16, ls::kBFloat16})
    CHECK(same_bits(draw(half), draw(ls::kFloat32).to(half)));  // rounded once
  ls::manual_seed(4);
  const ls::Tensor here = ls::randn({5});
  ls::manual_seed(4);
  const ls::Tensor there = ls::randn({5}, {.device = "cpu:1"});
  CHECK(there.device() == ls::Device("cpu:1"));
  CHECK(same_bits(here, there.to("cpu")));
}
