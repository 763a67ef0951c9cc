// In-place pointwise members and comparisons as members: equal to the functions, with the rules of add_.
#include <functional>

#include "tests/support/testing.h"

namespace {

using Change = std::function<const ls::Tensor&(const ls::Tensor&)>;
using Function = std::function<ls::Tensor(const ls::Tensor&)>;

struct Member {
  const char* name;
  Change change;
  Function function;
};

const std::vector<Member>& members() {
#define MEMBER(name)                                                                                              \
  {                                                                                                               \
#name "_", [](const ls::Tensor& x)                                                                            \
                    -> const ls::Tensor& { return x.name##_(); }, [](const ls::Tensor& x) { return ls::name(x); } \
  }
  static const std::vector<Member> all = {
      MEMBER(abs),
      MEMBER(ceil),
      MEMBER(cos),
      MEMBER(exp),
      MEMBER(floor),
      MEMBER(log),
      MEMBER(neg),
      MEMBER(reciprocal),
      MEMBER(relu),
      MEMBER(round),
      MEMBER(rsqrt),
      MEMBER(sin),
      MEMBER(sigmoid),
      MEMBER(sign),
      MEMBER(sqrt),
      MEMBER(square),
      MEMBER(tanh),
      MEMBER(trunc),
      {"clamp_", [](const ls::Tensor& x) -> const ls::Tensor& { return x.clamp_(0.4, 0.9); },
       [](const ls::Tensor& x) { return ls::clamp(x, 0.4, 0.9); }},
      {"pow_", [](const ls::Tensor& x) -> const ls::Tensor& { return x.pow_(1.5); },
       [](const ls::Tensor& x) { return ls::pow(x, 1.5); }},
      {"pow_", [](const ls::Tensor& x) -> const ls::Tensor& { return x.pow_(x); },
       [](const ls::Tensor& x) { return ls::pow(x, x); }},
      {"masked_fill_", [](const ls::Tensor& x) -> const ls::Tensor& { return x.masked_fill_(x > 1, 7); },
       [](const ls::Tensor& x) { return ls::masked_fill(x, x > 1, 7); }},
  };
#undef MEMBER
  return all;
}

}  // namespace

TEST_CASE("a member in place gives the bits of the function, for every dtype and stride, and returns the tensor") {
  for (const Member& member : members()) {
    for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64, ls::kFloat16, ls::kBFloat16}) {
      INFO(member.name, " ", ls::name(dtype));
      const ls::Tensor x = numbers_between(0.2, 1.8, {3, 4}, {.dtype = dtype}), before = x.clone();
      const std::uint32_t version = x.version();
      CHECK(&member.change(x) == &x);
      CHECK(same_bits(x, member.function(before)));
      CHECK(x.version() > version);
      const ls::Tensor whole = before.clone(), column = whole.transpose(0, 1)[1];
      member.change(column);
      CHECK(same_bits(column, member.function(before.transpose(0, 1)[1])));
      CHECK(same_bits(whole.narrow(1, 2, 2), before.narrow(1, 2, 2)));
    }
  }
}

TEST_CASE("a tensor that requires grad is changed in place under NoGradGuard only") {
  for (const Member& member : members()) {
    INFO(member.name);
    const ls::Tensor x = ls::full({3}, 0.5, {.requires_grad = true});
    CHECK(contains(error_of([&] { member.change(x); }), std::string(member.name) + ": (3) f32 cpu requires grad"));
    const ls::NoGradGuard no_grad;
    CHECK_NOTHROW(member.change(x));
  }
  const ls::Tensor exponent = ls::ones({3}, {.requires_grad = true});
  CHECK(contains(error_of([&] { ls::ones({3}).pow_(exponent); }), "pow_: the operand (3) f32 cpu requires grad"));
}

TEST_CASE("backward notices that a saved tensor was changed in place") {
  const ls::Tensor x = ls::ones({3}, {.requires_grad = true}), factor = ls::full({3}, 2.0);
  const ls::Tensor y = ls::sum(x * factor);
  factor.exp_();
  CHECK(!error_of([&] { y.backward(); }).empty());
}

TEST_CASE("a result of a higher category or another shape does not fit, and changes nothing") {
  const ls::Tensor x = ls::tensor({1, 2, 3});
  CHECK(contains(error_of([&] { x.exp_(); }), "exp_: a result of f32 does not fit into (3) i64 cpu; use the function"));
  CHECK(contains(error_of([&] { x.clamp_(0.5, 2); }), "clamp_: a result of f32"));
  CHECK(contains(error_of([&] { ls::ones({3}).pow_(ls::ones({2, 3})); }), "pow_: the result is (2, 3) f32 cpu, which"));
  CHECK(contains(error_of([&] { ls::ones({1}).expand({3}).exp_(); }), "exp_"));
  CHECK(ls::equal(x, ls::tensor({1, 2, 3})));
  CHECK(ls::equal(x.neg_(), ls::tensor({-1, -2, -3})));
  CHECK(ls::equal(x.clamp_(-2, {}), ls::tensor({-1, -2, -2})));
  CHECK(ls::equal(x.relu_(), ls::tensor({0, 0, 0})));
}

TEST_CASE("comparisons as members equal the operators, with tensors and numbers") {
  const ls::Tensor a = ls::tensor({{1.0, 2.0, kNan}, {3.0, 2.0, 1.0}}), b = ls::tensor({2.0, 2.0, 1.0});
  CHECK(same_bits(a.eq(b), a == b));
  CHECK(same_bits(a.ne(b), a != b));
  CHECK(same_bits(a.lt(b), a < b));
  CHECK(same_bits(a.le(b), a <= b));
  CHECK(same_bits(a.gt(b), a > b));
  CHECK(same_bits(a.ge(b), a >= b));
  CHECK(same_bits(a.eq(2), a == 2));
  CHECK(same_bits(a.ne(2), a != 2));
  CHECK(same_bits(a.lt(2), a < 2));
  CHECK(same_bits(a.le(2), a <= 2));
  CHECK(same_bits(a.gt(2), a > 2));
  CHECK(same_bits(a.ge(2), a >= 2));
}
