// Errors of the f32 operations that sum, for 10^3 to 10^7 terms, as the Markdown table of docs/numerics.md.
//
//   bench_summation_errors [largest number of terms]
//
// Each operation sums terms whose exact sum is known: n times 0.1, and n numbers from [0, 1) summed in f64. A figure is
// the larger of the two relative errors, in units of 2^-24, the largest relative error of one rounding to f32.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace ls = lockstep;
using ls::Tensor;

namespace {

// The terms x (n), positive, and their sum in f64.
struct Terms {
  Tensor x;
  std::int64_t n;
  double total;    // the sum of x
  double squares;  // the sum of its squares
};

// An operation's result of the terms, and the exact one.
struct Result {
  double value, exact;
};

struct Operation {
  std::string name;
  std::function<Result(const Terms&)> run;
};

constexpr Result kTooLarge{0, 0};  // not computed

double number(const Tensor& x) { return x.detach().item<double>(); }

// The last element of a tensor.
double last(const Tensor& x) { return number(x.flatten().narrow(0, x.numel() - 1, 1).sum()); }

Tensor wide(const Tensor& x) { return x.to(ls::kFloat64); }

// The gradient of the sum of f(leaf), weighted by `grad`.
Tensor gradient(const Tensor& start, const std::function<Tensor(const Tensor&)>& f, const Tensor& grad) {
  Tensor leaf = start.clone().requires_grad_();
  f(leaf).backward(grad);
  return leaf.grad();
}

Tensor row(const Terms& t) { return t.x.unsqueeze(0); }
Tensor column(const Terms& t) { return t.x.unsqueeze(1); }
Tensor columns(const Terms& t, std::int64_t count) { return column(t).expand({t.n, count}).contiguous(); }
Tensor rows(const Terms& t, std::int64_t count) { return row(t).expand({count, t.n}).contiguous(); }
Tensor no_index(const Terms& t) { return ls::zeros({t.n}, {.dtype = ls::kInt64}); }
// Scores of two classes whose loss for class 0 is x: log(1 + e^s) = x.
Tensor scores(const Terms& t) {
  return ls::stack({ls::zeros({t.n}), ls::log(ls::expm1(wide(t.x))).to(ls::kFloat32)}, 1);
}
double losses(const Terms& t) { return ls::log1p(ls::exp(wide(scores(t).select(1, 1)))).sum().item<double>(); }

std::vector<Operation> operations() {
  return {
      {"`sum`",
       [](const Terms& t) {
         return Result{number(t.x.sum()), t.total};
       }},
      {"`sum` of columns",
       [](const Terms& t) {
         return Result{last(columns(t, 3).sum({0})), t.total};
       }},
      {"`mean`",
       [](const Terms& t) {
         return Result{number(t.x.mean()), t.total / static_cast<double>(t.n)};
       }},
      {"`var`",
       [](const Terms& t) {
         return Result{number(ls::var(t.x + ls::arange(t.n).remainder(2))),
                       number(ls::var(wide(t.x + ls::arange(t.n).remainder(2))))};
       }},
      {"`norm`",
       [](const Terms& t) {
         return Result{number(ls::norm(t.x)), std::sqrt(t.squares)};
       }},
      {"`norm` of order 3",
       [](const Terms& t) {
         return Result{number(ls::norm(t.x, 3)), number(ls::norm(wide(t.x), 3))};
       }},
      {"`logsumexp`",
       [](const Terms& t) {
         return Result{std::exp(number(ls::logsumexp(t.x, {0})) - std::log(static_cast<double>(t.n))),
                       std::exp(number(ls::logsumexp(wide(t.x), {0})) - std::log(static_cast<double>(t.n)))};
       }},
      {"`cumsum`",
       [](const Terms& t) {
         return Result{last(ls::cumsum(t.x, 0)), t.total};
       }},
      {"`cumsum` of columns",
       [](const Terms& t) {
         return Result{last(ls::cumsum(columns(t, 3), 0)), t.total};
       }},
      {"gradient of `cumsum`",
       [](const Terms& t) {
         return Result{number(gradient(
                                  t.x, [](const Tensor& x) { return ls::cumsum(x, 0); }, t.x)
                                  .narrow(0, 0, 1)
                                  .sum()),
                       t.total};
       }},
      {"`dot`",
       [](const Terms& t) {
         return Result{number(ls::dot(t.x, t.x)), t.squares};
       }},
      {"`matmul` (1, n) (n, 1)",
       [](const Terms& t) {
         return Result{number(ls::matmul(row(t), column(t))), t.squares};
       }},
      {"`matmul` (1, n) (n, 3)",
       [](const Terms& t) {
         return Result{last(ls::matmul(row(t), columns(t, 3))), t.squares};
       }},
      {"`matmul` (3, n) (n)",
       [](const Terms& t) {
         return Result{last(ls::matmul(rows(t, 3), t.x)), t.squares};
       }},
      {"`matmul` (3, n) (n, 3)",
       [](const Terms& t) {
         return Result{last(ls::matmul(rows(t, 3), columns(t, 3))), t.squares};
       }},
      {"`matmul` (16, n) (n, 16)",
       [](const Terms& t) {
         return t.n > 1000000 ? kTooLarge : Result{last(ls::matmul(rows(t, 16), columns(t, 16))), t.squares};
       }},
      {"`bmm` (2, 1, n) (2, n, 1)",
       [](const Terms& t) {
         return Result{last(ls::matmul(rows(t, 2).unsqueeze(1), rows(t, 2).unsqueeze(2))), t.squares};
       }},
      {"`einsum` \"i,i->\"",
       [](const Terms& t) {
         return Result{number(ls::einsum("i,i->", {t.x, t.x})), t.squares};
       }},
      {"`linear`, n inputs",
       [](const Terms& t) {
         return Result{last(ls::linear(rows(t, 2), rows(t, 3), ls::zeros({3}))), t.squares};
       }},
      {"gradient of `linear`'s weight, n rows",
       [](const Terms& t) {
         return Result{last(gradient(
                           ls::ones({3, 3}), [&](const Tensor& w) { return ls::linear(columns(t, 3), w, Tensor()); },
                           columns(t, 3))),
                       t.squares};
       }},
      {"gradient of `linear`'s bias, n rows",
       [](const Terms& t) {
         return Result{last(gradient(
                           ls::zeros({3}),
                           [&](const Tensor& b) {
                             return ls::linear(ls::ones({t.n, 2}), ls::ones({3, 2}), b);
                           },
                           columns(t, 3))),
                       t.total};
       }},
      {"gradient of a broadcast operand",
       [](const Terms& t) {
         return Result{number(gradient(
                           ls::ones({}), [&](const Tensor& s) { return t.x * s; }, ls::ones({t.n}))),
                       t.total};
       }},
      {"`index_add` to one row",
       [](const Terms& t) {
         Tensor out = ls::zeros({1, 3});
         return Result{last(ls::index_add(out, 0, no_index(t), columns(t, 3))), t.total};
       }},
      {"`scatter_add` to one element",
       [](const Terms& t) {
         return Result{number(ls::scatter_add(ls::zeros({1}), 0, no_index(t), t.x)), t.total};
       }},
      {"gradient of `embedding`, one index",
       [](const Terms& t) {
         return Result{last(gradient(
                                ls::zeros({2, 3}), [&](const Tensor& w) { return ls::index_select(w, 0, no_index(t)); },
                                columns(t, 3))
                                .narrow(0, 0, 1)),
                       t.total};
       }},
      {"gradient of `gather`",
       [](const Terms& t) {
         return Result{number(gradient(
                           ls::zeros({1}), [&](const Tensor& x) { return ls::gather(x, 0, no_index(t)); }, t.x)),
                       t.total};
       }},
      {"`softmax`, n classes",
       [](const Terms& t) {
         return Result{last(ls::softmax(t.x, 0)), last(ls::softmax(wide(t.x), 0))};
       }},
      {"`softmax` of columns",
       [](const Terms& t) {
         return Result{last(ls::softmax(columns(t, 3), 0)), last(ls::softmax(wide(columns(t, 3)), 0))};
       }},
      {"`log_softmax` of columns",
       [](const Terms& t) {
         return Result{std::exp(last(ls::log_softmax(columns(t, 3), 0)) + std::log(static_cast<double>(t.n))),
                       std::exp(last(ls::log_softmax(wide(columns(t, 3)), 0)) + std::log(static_cast<double>(t.n)))};
       }},
      {"gradient of `log_softmax`",
       [](const Terms& t) {
         return Result{-last(gradient(
                           ls::zeros({t.n}), [](const Tensor& x) { return ls::log_softmax(x, 0); }, t.x)) +
                           last(t.x),
                       t.total / static_cast<double>(t.n)};
       }},
      {"gradient of `log_softmax` of columns",
       [](const Terms& t) {
         return Result{-last(gradient(
                           ls::zeros({t.n, 3}), [](const Tensor& x) { return ls::log_softmax(x, 0); }, columns(t, 3))) +
                           last(t.x),
                       t.total / static_cast<double>(t.n)};
       }},
      {"`cross_entropy`, n samples",
       [](const Terms& t) {
         return Result{number(ls::nn::cross_entropy(scores(t), no_index(t))), losses(t) / static_cast<double>(t.n)};
       }},
      {"`cross_entropy`, n classes",
       [](const Terms& t) {
         return Result{number(ls::nn::cross_entropy(row(t), ls::zeros({1}, {.dtype = ls::kInt64}))),
                       number(ls::nn::cross_entropy(wide(row(t)), ls::zeros({1}, {.dtype = ls::kInt64})))};
       }},
      {"`cross_entropy`, n classes, label smoothing",
       [](const Terms& t) {
         const ls::nn::CrossEntropyLossOptions o{.label_smoothing = 0.5};
         return Result{number(ls::nn::cross_entropy(row(t), ls::zeros({1}, {.dtype = ls::kInt64}), o)),
                       number(ls::nn::cross_entropy(wide(row(t)), ls::zeros({1}, {.dtype = ls::kInt64}), o))};
       }},
      {"`mse_loss`",
       [](const Terms& t) {
         return Result{number(ls::nn::mse_loss(t.x, ls::zeros({t.n}))), t.squares / static_cast<double>(t.n)};
       }},
      {"`l1_loss`",
       [](const Terms& t) {
         return Result{number(ls::nn::l1_loss(t.x, ls::zeros({t.n}))), t.total / static_cast<double>(t.n)};
       }},
      {"`layer_norm`",
       [](const Terms& t) {
         const Tensor x = t.x + ls::arange(t.n).remainder(2);
         return Result{last(ls::layer_norm(x, {t.n})), last(ls::layer_norm(wide(x), {t.n}))};
       }},
      {"gradient of `layer_norm`'s bias, n rows",
       [](const Terms& t) {
         return Result{last(gradient(
                           ls::zeros({3}),
                           [&](const Tensor& b) {
                             return ls::layer_norm(ls::ones({t.n, 3}), {3}, ls::ones({3}), b);
                           },
                           columns(t, 3))),
                       t.total};
       }},
      {"gradient of `conv2d`'s weight, n places",
       [](const Terms& t) {
         const Tensor x = t.x.reshape({1, 1, t.n / 100, 100});
         return Result{
             last(gradient(
                 ls::ones({2, 1, 1, 1}), [&](const Tensor& w) { return ls::conv2d(x, w); }, ls::cat({x, x}, 1))),
             t.squares};
       }},
      {"gradient of `conv2d`'s bias, n places",
       [](const Terms& t) {
         const Tensor x = t.x.reshape({1, 1, t.n / 100, 100});
         return Result{last(gradient(
                           ls::zeros({1}),
                           [&](const Tensor& b) {
                             return ls::conv2d(ls::ones({1, 1, t.n / 100, 100}), ls::ones({1, 1, 1, 1}), b);
                           },
                           x)),
                       t.total};
       }},
      {"`avg_pool2d`, one window",
       [](const Terms& t) {
         const Tensor x = t.x.reshape({1, 1, t.n / 100, 100});
         return Result{number(ls::avg_pool2d(x, {t.n / 100, 100})), t.total / static_cast<double>(t.n)};
       }},
      {"`scaled_dot_product_attention`, n keys",
       [](const Terms& t) {
         const Tensor v = columns(t, 4);
         return Result{last(ls::scaled_dot_product_attention(ls::zeros({1, 4}), ls::zeros({t.n, 4}), v)),
                       t.total / static_cast<double>(t.n)};
       }},
  };
}

Terms terms(std::int64_t n, bool equal) {
  Terms t{equal ? ls::full({n}, 0.1) : ls::rand({n}), n, 0, 0};
  t.total = wide(t.x).sum().item<double>();
  t.squares = (wide(t.x) * wide(t.x)).sum().item<double>();
  return t;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t most = argc > 1 ? std::atoll(argv[1]) : 10'000'000;
  ls::manual_seed(0);
  std::vector<std::vector<Terms>> sets;
  std::string header = "| operation, n = |", line = "|---|";
  int exponent = 3;
  for (std::int64_t n = 1000; n <= most; n *= 10) {
    sets.push_back({terms(n, true), terms(n, false)});
    header += " 10^" + std::to_string(exponent++) + " |";
    line += "---|";
  }
  std::printf("%s\n%s\n", header.c_str(), line.c_str());
  for (const Operation& operation : operations()) {
    std::printf("| %s |", operation.name.c_str());
    for (const std::vector<Terms>& set : sets) {
      double worst = 0;
      for (const Terms& t : set) {
        const Result r = operation.run(t);
        if (r.exact != 0) worst = std::max(worst, std::abs(r.value - r.exact) / std::abs(r.exact) * 0x1p24);
      }
      if (worst == 0)
        std::printf(" - |");
      else
        std::printf(worst < 100 ? " %.1f |" : " %.0f |", worst);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}
