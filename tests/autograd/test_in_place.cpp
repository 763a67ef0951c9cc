// Changes in place: refused where a gradient would be wrong, detected where a saved tensor has changed.
#include <functional>

#include "tests/support/testing.h"

namespace {
ls::Tensor leaf(std::initializer_list<double> values) { return ls::tensor(values, {.requires_grad = true}); }
}  // namespace

TEST_CASE("every in-place member refuses a tensor that requires grad, or a view of one, while grad mode is on") {
  const std::vector<std::pair<std::string, std::function<void(const ls::Tensor&)>>> members = {
      {"fill_", [](const ls::Tensor& x) { x.fill_(1); }},
      {"zero_", [](const ls::Tensor& x) { x.zero_(); }},
      {"copy_", [](const ls::Tensor& x) { x.copy_(ls::ones({1})); }},
      {"add_", [](const ls::Tensor& x) { x.add_(ls::ones({1})); }},
      {"add_", [](const ls::Tensor& x) { x.add_(1.0); }},
      {"sub_", [](const ls::Tensor& x) { x.sub_(ls::ones({1})); }},
      {"mul_", [](const ls::Tensor& x) { x.mul_(ls::ones({1})); }},
      {"mul_", [](const ls::Tensor& x) { x.mul_(2.0); }},
      {"div_", [](const ls::Tensor& x) { x.div_(ls::ones({1})); }},
      {"div_", [](const ls::Tensor& x) { x.div_(2.0); }}};
  const ls::Tensor x = leaf({1, 2});
  for (const auto& entry : members) {
    const auto& name = entry.first;
    const auto& change = entry.second;
    for (const ls::Tensor& target : {x, x.view({2, 1}), x * 2, x.narrow(0, 0, 1)}) {
      const std::string text = error_of([&, &change = change] { change(target); });
      CHECK_MESSAGE((text.starts_with(name + ":") && contains(text, "requires grad")), name << ": " << text);
    }
    const ls::NoGradGuard no_grad;
    const ls::Tensor y = x.clone();
    change(y);
    change(x);
    x.copy_(ls::tensor({1.0, 2.0}));
  }
  CHECK(x.to_vector<double>() == std::vector<double>{1, 2});
}

TEST_CASE(
    "an in-place member refuses an operand that requires grad while grad mode is on: its gradient would be lost") {
  using F = void (*)(const ls::Tensor& x, const ls::Tensor& operand);
  const std::vector<std::pair<std::string, F>> members = {
      {"copy_", [](const ls::Tensor& x, const ls::Tensor& operand) { x.copy_(operand); }},
      {"add_", [](const ls::Tensor& x, const ls::Tensor& operand) { x.add_(operand); }},
      {"add_", [](const ls::Tensor& x, const ls::Tensor& operand) { x.add_(operand, 0.5); }},
      {"sub_", [](const ls::Tensor& x, const ls::Tensor& operand) { x.sub_(operand); }},
      {"mul_", [](const ls::Tensor& x, const ls::Tensor& operand) { x.mul_(operand); }},
      {"div_", [](const ls::Tensor& x, const ls::Tensor& operand) { x.div_(operand); }}};
  const ls::Tensor w = leaf({2, 4});
  for (const auto& entry : members) {
    const auto& name = entry.first;
    const auto& change = entry.second;
    CAPTURE(name);
    const ls::Tensor out = ls::ones({2, 2});
    for (const ls::Tensor& operand : {w, w * 2, w.narrow(0, 0, 1), w.view({2})}) {
      const auto version = out.version();
      const std::string text = error_of([&] { change(out[0], operand); });
      CHECK(text.starts_with(name + ": "));
      for (const char* part : {"requires grad", "stack", "cat", "where", "detach()"}) CHECK(contains(text, part));
      CHECK(out.version() == version);
      CHECK(out.to_vector<double>() == std::vector<double>{1, 1, 1, 1});
    }
    change(out[0], w.detach());
    const ls::NoGradGuard no_grad;
    change(out[1], w);
    CHECK(same_bits(out[0], out[1]));
    CHECK(!out.requires_grad());
  }
}

TEST_CASE("integers take a copy of a tensor that requires grad: they have no gradients to lose") {
  const ls::Tensor w = leaf({2, 4}), classes = ls::zeros({2}, {.dtype = ls::kInt64});
  classes.copy_(w);
  CHECK(classes.to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 4});
}

TEST_CASE("a change of a tensor that an operation saved is detected in backward, and the error names the operation") {
  using F = ls::Tensor (*)(const ls::Tensor& w, const ls::Tensor& x);
  const std::vector<std::pair<std::string, F>> saving = {
      {"mul", [](const ls::Tensor& w, const ls::Tensor& x) { return w * x; }},
      {"div", [](const ls::Tensor& w, const ls::Tensor& x) { return w / x; }},
      {"matmul", [](const ls::Tensor& w, const ls::Tensor& x) { return ls::matmul(w, x); }},
      {"linear", [](const ls::Tensor& w, const ls::Tensor& x) { return ls::linear(x, w); }},
      {"pow", [](const ls::Tensor& w, const ls::Tensor& x) { return ls::pow(w, x); }},
      {"maximum", [](const ls::Tensor& w, const ls::Tensor& x) { return ls::maximum(w, x); }}};
  for (const auto& entry : saving) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    const ls::Tensor w = ls::full({2, 2}, 2.0, {.requires_grad = true}), x = ls::full({2, 2}, 3.0);
    const ls::Tensor y = ls::sum(function(w, x));
    x.add_(1.0);
    const std::string text = error_of([&] { y.backward(); });
    CHECK_MESSAGE((text.starts_with(name + " (backward):") && contains(text, "changed in place") &&
                   contains(text, "(2, 2) f32 cpu")),
                  name << ": " << text);
  }
}

TEST_CASE("a change of saved indices, masks and weights is detected, too") {
  using F = ls::Tensor (*)(const ls::Tensor& w, const ls::Tensor& index, const ls::Tensor& mask);
  const std::vector<std::pair<std::string, F>> saving = {
      {"where", [](const ls::Tensor& w, const ls::Tensor&, const ls::Tensor& mask) { return ls::where(mask, w, 0); }},
      {"where",
       [](const ls::Tensor& w, const ls::Tensor&, const ls::Tensor& mask) { return ls::masked_fill(w, mask, 0); }},
      {"index_select",
       [](const ls::Tensor& w, const ls::Tensor& index, const ls::Tensor&) { return ls::index_select(w, 0, index); }},
      {"gather",
       [](const ls::Tensor& w, const ls::Tensor& index, const ls::Tensor&) { return ls::gather(w, 0, index); }},
      {"scatter_add", [](const ls::Tensor& w, const ls::Tensor& index, const ls::Tensor&) {
         return ls::scatter_add(ls::zeros({2}), 0, index, w);
       }}};
  for (const auto& entry : saving) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    const ls::Tensor w = leaf({2, 3}), index = ls::tensor({0, 1}), mask = ls::tensor({0, 1}) > 0;
    const ls::Tensor y = ls::sum(function(w, index, mask));
    index.fill_(0), mask.fill_(false);
    const std::string text = error_of([&] { y.backward(); });
    CHECK_MESSAGE((text.starts_with(name + " (backward):") && contains(text, "changed in place")),
                  name << ": " << text);
  }
}

TEST_CASE("a change of the order that sort and topk returned is detected") {
  using F = std::pair<ls::Tensor, ls::Tensor> (*)(const ls::Tensor&);
  for (const F order :
       {F([](const ls::Tensor& x) { return ls::sort(x, 0); }), F([](const ls::Tensor& x) { return ls::topk(x, 1); })}) {
    const std::pair<ls::Tensor, ls::Tensor> ordered = order(leaf({2, 1}));
    ordered.second.fill_(0);
    CHECK(contains(error_of([&] { ls::sum(ordered.first).backward(); }), "changed in place"));
  }
}

TEST_CASE("a change of a saved leaf is detected: an optimizer step before backward") {
  const ls::Tensor w = leaf({2});
  const std::vector<std::pair<std::string, ls::Tensor>> results = {{"exp", ls::exp(w)},
                                                                   {"tanh", ls::tanh(w)},
                                                                   {"log", ls::log(w)},
                                                                   {"mul", w * w},
                                                                   {"var", ls::var(w, {}, {.correction = 0})},
                                                                   {"norm", ls::norm(w)},
                                                                   {"max", ls::max(w)},
                                                                   {"logsumexp", ls::logsumexp(w, 0)}};
  {
    const ls::NoGradGuard no_grad;
    w.mul_(1.5);
  }
  for (const auto& entry : results) {
    const auto& name = entry.first;
    const auto& y = entry.second;
    const std::string text = error_of([&, &y = y] { ls::sum(y).backward(); });
    CHECK_MESSAGE(text.starts_with(name + " (backward):"), name << ": " << text);
  }
}

TEST_CASE("a change of a result that its own operation saved is detected, and the error names the operation") {
  using F = ls::Tensor (*)(const ls::Tensor&);
  const std::vector<std::pair<std::string, F>> saving = {
      {"softmax", [](const ls::Tensor& x) { return ls::softmax(x, 0); }},
      {"log_softmax", [](const ls::Tensor& x) { return ls::log_softmax(x, 0); }},
      {"exp", [](const ls::Tensor& x) { return ls::exp(x); }},
      {"sigmoid", [](const ls::Tensor& x) { return ls::sigmoid(x); }},
      {"norm", [](const ls::Tensor& x) { return ls::norm(x, 2, {0}, true); }},
      {"amax", [](const ls::Tensor& x) { return ls::amax(x, {0}, true); }}};
  for (const auto& entry : saving) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    const ls::Tensor x = leaf({1, 2});
    const ls::Tensor y = function(x);
    y.detach().mul_(2.0);
    const std::string text = error_of([&] { ls::sum(y).backward(); });
    CHECK_MESSAGE((text.starts_with(name + " (backward):") && contains(text, "changed in place")),
                  name << ": " << text);
  }
}

TEST_CASE("a change through a view counts as a change of its base") {
  const ls::Tensor w = leaf({2, 2}), x = ls::tensor({3.0, 4.0});
  const ls::Tensor y = ls::sum(w * x);
  x[1].fill_(0);
  CHECK(contains(error_of([&] { y.backward(); }), "mul (backward)"));
}

TEST_CASE("a change of a tensor that no operation saved is no error") {
  const ls::Tensor w = leaf({2, 2}), x = ls::tensor({3.0, 4.0});
  const ls::Tensor y = ls::sum(w + x);
  x.zero_();
  y.backward();
  CHECK(w.grad().to_vector<double>() == std::vector<double>{1, 1});
  const ls::Tensor u = leaf({2, 2});
  const ls::Tensor constant = ls::tensor({3.0, 4.0});
  const ls::Tensor z = ls::sum(u * constant);  // saves constant, not u
  {
    const ls::NoGradGuard no_grad;
    u.zero_();
  }
  z.backward();
  CHECK(u.grad().to_vector<double>() == std::vector<double>{3, 4});
}

TEST_CASE("the version counts changes, and views share it") {
  const ls::Tensor x = ls::zeros({4});
  const auto before = x.version();
  x.add_(1);
  x.narrow(0, 0, 2).fill_(3);
  CHECK(x.version() == before + 2);
  CHECK(x.view({2, 2}).version() == x.version());
  CHECK(x.clone().version() == 0);
}

TEST_CASE("a refused change has no effect, not even on the version") {
  const ls::Tensor x = leaf({1, 2});
  const auto version = x.version();
  CHECK(!error_of([&] { x.add_(1); }).empty());
  CHECK(x.version() == version);
  const ls::Tensor plain = ls::zeros({2});
  const auto plain_version = plain.version();
  CHECK(!error_of([&] { plain.add_(ls::ones({3})); }).empty());
  CHECK(plain.version() == plain_version);
  CHECK(plain.to_vector<double>() == std::vector<double>{0, 0});
}
