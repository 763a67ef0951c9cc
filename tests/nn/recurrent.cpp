// Recurrent layers with lengths, and recurrent cells: PyTorch's values, derivatives, independence of sequences, errors.
#include <memory>
#include <string>
#include <vector>

#include "support.h"

namespace {

using Lengths = std::vector<std::int64_t>;

const std::vector<std::string>& kinds() {
  static const std::vector<std::string> names = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
  return names;
}

nn::RNNNonlinearity nonlinearity(const std::string& kind) {
  return kind == "rnn_relu" ? nn::RNNNonlinearity::kReLU : nn::RNNNonlinearity::kTanh;
}

std::unique_ptr<nn::Recurrent> make_layer(const std::string& kind, std::int64_t in, std::int64_t hidden,
                                          const nn::RecurrentOptions& options) {
  if (kind == "lstm") return std::make_unique<nn::LSTM>(in, hidden, options);
  if (kind == "gru") return std::make_unique<nn::GRU>(in, hidden, options);
  return std::make_unique<nn::RNN>(in, hidden,
                                   nn::RNNOptions{.num_layers = options.num_layers,
                                                  .bias = options.bias,
                                                  .batch_first = options.batch_first,
                                                  .dropout = options.dropout,
                                                  .bidirectional = options.bidirectional,
                                                  .nonlinearity = nonlinearity(kind)});
}

std::unique_ptr<nn::RecurrentCell> make_cell(const std::string& kind, std::int64_t in, std::int64_t hidden, bool bias) {
  if (kind == "lstm") return std::make_unique<nn::LSTMCell>(in, hidden, nn::LSTMCellOptions{.bias = bias});
  if (kind == "gru") return std::make_unique<nn::GRUCell>(in, hidden, nn::GRUCellOptions{.bias = bias});
  return std::make_unique<nn::RNNCell>(in, hidden,
                                       nn::RNNCellOptions{.bias = bias, .nonlinearity = nonlinearity(kind)});
}

// The results of a golden case, or of a call, by name.
using Results = std::vector<std::pair<std::string, ls::Tensor>>;

// Compares the results of `run` and the gradients of x, start and parameters with a golden case.
template <class Run>
void check_case(nn::Module& module, const std::string& name, bool has_c, const Run& run) {
  static const ls::StateDict dict = golden("recurrent");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    load_case(module, dict, prefix, tag);
    module.zero_grad();
    const Tolerance allowed = tag == "f32" ? Tolerance{2e-5, 2e-5} : Tolerance{1e-12, 1e-12};
    const auto leaf = [&](const std::string& key) { return dict.at(prefix + key).clone().requires_grad_(); };
    const ls::Tensor x = leaf("x"), h = leaf("start_h"), c = has_c ? leaf("start_c") : ls::Tensor();
    ls::Tensor total;
    for (const auto& [key, result] : run(x, nn::RecurrentState{.h = h, .c = c}, dict.at("lengths"))) {
      check_close(result, dict.at(prefix + key), key, allowed);
      const ls::Tensor part = ls::sum(result * dict.at(prefix + "grad_" + key));
      total = total.defined() ? total + part : part;
    }
    total.backward();
    check_close(x.grad(), dict.at(prefix + "grad_x"), "grad_x", allowed);
    check_close(h.grad(), dict.at(prefix + "grad_start_h"), "grad_start_h", allowed);
    if (has_c) check_close(c.grad(), dict.at(prefix + "grad_start_c"), "grad_start_c", allowed);
    for (const auto& [key, p] : module.named_parameters())
      check_close(p->grad(), dict.at(prefix + "grad_" + key), key, allowed);
  }
}

// The results of a call and its gradients, for a comparison of bits. The loss weighs all results.
std::vector<ls::Tensor> results_of(nn::Recurrent& layer, const ls::Tensor& x, const ls::Tensor& lengths) {
  layer.zero_grad();
  const ls::Tensor leaf = x.detach().clone().requires_grad_();
  const nn::RecurrentOutput out = layer.forward_state(leaf, {}, {.lengths = lengths});
  ls::Tensor loss = ls::sum(out.y * out.y) + ls::sum(out.state.h * 3.0);
  if (out.state.c.defined()) loss = loss + ls::sum(out.state.c);
  loss.backward();
  std::vector<ls::Tensor> results = {out.y, out.state.h, leaf.grad()};
  if (out.state.c.defined()) results.push_back(out.state.c);
  for (const nn::Parameter& parameter : layer.parameters()) results.push_back(parameter->grad().clone());
  return results;
}

// A copy of x (time, batch, in) in which the elements after each end are `value`.
ls::Tensor padded_with(const ls::Tensor& x, const Lengths& lengths, double value) {
  const ls::Tensor out = x.clone();
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t rest = x.size(0) - lengths[b];
    if (rest > 0) out.select(1, static_cast<std::int64_t>(b)).narrow(0, lengths[b], rest).fill_(value);
  }
  return out;
}

// Calls body(kind, options) for every kind, one and two layers and directions.
template <class Body>
void for_all_layers(const Body& body) {
  for (const std::string& kind : kinds()) {
    for (const std::int64_t layers : {1, 2}) {
      for (const bool both : {false, true}) {
        INFO(kind << ", layers " << layers << ", bidirectional " << both);
        body(kind, nn::RecurrentOptions{.num_layers = layers, .batch_first = false, .bidirectional = both});
      }
    }
  }
}

}  // namespace

TEST_CASE("recurrent layers with lengths give the values, states and gradients of PyTorch's packed sequences") {
  for (const std::string& kind : kinds()) {
    for (const std::string which : {"plain", "both", "layers"}) {
      const auto layer = make_layer(kind, 3, 2,
                                    {.num_layers = which == "layers" ? 2 : 1,
                                     .bias = which != "layers",
                                     .batch_first = which == "both",
                                     .bidirectional = which != "plain"});
      const bool has_c = kind == "lstm";
      check_case(*layer, kind + "_" + which, has_c,
                 [&](const ls::Tensor& x, const nn::RecurrentState& start, const ls::Tensor& lengths) {
                   const nn::RecurrentOutput out = layer->forward_state(x, start, {.lengths = lengths});
                   Results results = {{"y", out.y}, {"h", out.state.h}};
                   if (has_c) results.emplace_back("c", out.state.c);
                   return results;
                 });
    }
  }
}

TEST_CASE("recurrent cells give PyTorch's values, states and gradients") {
  for (const std::string& kind : kinds()) {
    for (const bool bias : {false, true}) {
      const auto cell = make_cell(kind, 3, 2, bias);
      std::string names;
      for (const auto& [key, parameter] : cell->named_parameters()) names += key + " ";
      CHECK(names == (bias ? "weight_ih weight_hh bias_ih bias_hh " : "weight_ih weight_hh "));
      const bool has_c = kind == "lstm";
      check_case(*cell, kind + (bias ? "_cell" : "_cell_no_bias"), has_c,
                 [&](const ls::Tensor& x, const nn::RecurrentState& start, const ls::Tensor&) {
                   const nn::RecurrentState next = cell->forward_state(x, start);
                   Results results = {{"h", next.h}};
                   if (has_c) results.emplace_back("c", next.c);
                   return results;
                 });
      cell->to(ls::kFloat32);
      const ls::Tensor x = numbers({4, 3});
      CHECK(same_bits((*cell)(x), cell->forward_state(x, {.h = ls::zeros({4, 2}), .c = ls::zeros({4, 2})}).h));
      check_close((*cell)(x.select(0, 1)), cell->forward_state(x).h.select(0, 1).detach(), "without batch");
      CHECK(contains(error_of([&] { (*cell)(ls::ones({4, 2})); }), "x is (4, 2) f32 cpu, expected (batch, 3) or (3)"));
      CHECK(contains(error_of([&] {
                       cell->forward_state(x, {.h = ls::zeros({3, 2})});
                     }),
                     "the state h is (3, 2) f32 cpu, expected shape (4, 2)"));
    }
  }
  CHECK(contains(error_of([] { nn::GRUCell(0, 3); }), "recurrent cell: in 0, hidden 3; expected at least 1"));
}

TEST_CASE("a layer is its cell, step by step") {
  ls::manual_seed(11);
  for (const std::string& kind : kinds()) {
    INFO(kind);
    const auto layer = make_layer(kind, 3, 5, {.batch_first = false});
    const auto cell = make_cell(kind, 3, 5, true);
    for (const auto& [key, parameter] : cell->named_parameters())
      parameter.master().detach().copy_(layer->state_dict().at(key + "_l0"));
    const ls::Tensor x = numbers({4, 2, 3});
    nn::RecurrentState state;
    for (std::int64_t t = 0; t < 4; ++t) {
      state = cell->forward_state(x[t], state);
      check_close(layer->forward(x)[t], state.h.detach(), "h");
    }
  }
}

TEST_CASE("a sequence's result depends neither on its neighbours nor on what follows its end") {
  ls::manual_seed(12);
  const Lengths lengths = {4, 7, 1, 6}, others = {7, 7, 5, 2};  // sequence 1 is the same in both
  for_all_layers([&](const std::string& kind, const nn::RecurrentOptions& options) {
    const auto layer = make_layer(kind, 3, 5, options);
    const ls::Tensor x = numbers({7, 4, 3}), neighbours = x.clone();
    for (const std::int64_t b : {0, 2, 3}) neighbours.select(1, b).copy_(numbers({7, 3}, {}, 9));
    const std::vector<ls::Tensor> first = results_of(*layer, x, ls::tensor(lengths));
    // Everything after an end, also NaN: the same bits everywhere.
    const std::vector<ls::Tensor> with_nan = results_of(*layer, padded_with(x, lengths, kNan), ls::tensor(lengths));
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], with_nan[i]));
    // Other neighbours in the same places: y, h and the gradient of x of the sequence, in bits.
    const std::vector<ls::Tensor> second = results_of(*layer, neighbours, ls::tensor(others));
    for (const std::size_t i : {0, 1, 2}) CHECK(same_bits(first[i].select(1, 1), second[i].select(1, 1)));
    CHECK(!same_bits(first[0].select(1, 0), second[0].select(1, 0)));
    // Each sequence alone, without padding: products of other shapes, so within a tolerance.
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const auto index = static_cast<std::int64_t>(b);
      const std::vector<ls::Tensor> alone = results_of(*layer, x.narrow(1, index, 1).narrow(0, 0, lengths[b]), {});
      const Tolerance allowed{1e-5, 1e-6};
      check_close(first[0].narrow(1, index, 1).narrow(0, 0, lengths[b]), alone[0].detach(), "y", allowed);
      check_close(first[1].narrow(1, index, 1), alone[1].detach(), "h", allowed);
      check_close(first[2].narrow(1, index, 1).narrow(0, 0, lengths[b]), alone[2], "gradient of x", allowed);
      const std::int64_t rest = 7 - lengths[b];
      if (rest == 0) continue;
      const ls::Tensor after = ls::zeros({rest, first[0].size(2)});
      CHECK(ls::equal(first[0].select(1, index).narrow(0, lengths[b], rest), after));
      CHECK(ls::equal(first[2].select(1, index).narrow(0, lengths[b], rest), ls::zeros({rest, 3})));
    }
  });
}

TEST_CASE("lengths of all steps change no bit, and batch_first only the order of dimensions") {
  ls::manual_seed(13);
  const ls::Tensor x = numbers({5, 3, 4}), all = ls::full({3}, 5, {.dtype = ls::kInt64});
  for_all_layers([&](const std::string& kind, const nn::RecurrentOptions& options) {
    const auto layer = make_layer(kind, 4, 6, options);
    const std::vector<ls::Tensor> plain = results_of(*layer, x, {}), limited = results_of(*layer, x, all);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], limited[i]));
    nn::RecurrentOptions turned = options;
    turned.batch_first = true;
    const auto other = make_layer(kind, 4, 6, turned);
    other->load_state_dict(layer->state_dict());
    const ls::Tensor lengths = ls::tensor(Lengths{2, 5, 3});
    const nn::RecurrentOutput a = layer->forward_state(x, {}, {.lengths = lengths}),
                              b = other->forward_state(x.transpose(0, 1), {}, {.lengths = lengths});
    CHECK(same_bits(a.y, b.y.transpose(0, 1)));
    CHECK(same_bits(a.state.h, b.state.h));
    {
      const ls::NoGradGuard no_grad;  // nothing is kept for backward
      const nn::RecurrentOutput unrecorded = layer->forward_state(x, {}, {.lengths = lengths});
      CHECK(same_bits(a.y, unrecorded.y));
      CHECK(same_bits(a.state.h, unrecorded.state.h));
      if (a.state.c.defined()) CHECK(same_bits(a.state.c, unrecorded.state.c));
    }
    // One sequence without a batch dimension.
    const ls::Tensor one = x.select(1, 0), two = ls::tensor(Lengths{2});
    const nn::RecurrentOutput single = layer->forward_state(one, {}, {.lengths = two}),
                              batch = layer->forward_state(one.unsqueeze(1), {}, {.lengths = two});
    CHECK(same_bits(single.y, batch.y.squeeze(1)));
    CHECK(same_bits(single.state.h, batch.state.h.squeeze(1)));
  });
}

TEST_CASE("recurrent layers and cells have the right first and second derivatives") {
  ls::manual_seed(14);
  const ls::TensorOptions f64 = {.dtype = ls::kFloat64, .requires_grad = true};
  for (const std::string& kind : kinds()) {
    for (const bool limited : {false, true}) {
      INFO(kind << ", lengths " << limited);
      const auto layer = make_layer(kind, 2, 2, {.batch_first = false, .bidirectional = true});
      const auto cell = make_cell(kind, 2, 2, true);
      const ls::Tensor lengths = limited ? ls::tensor(Lengths{1, 3}) : ls::Tensor();
      const auto f = [&](const std::vector<ls::Tensor>& in) {
        const ls::Tensor h = in[1] + ls::stack({in[0][0], in[0][1]});  // an input that depends on another one
        const nn::RecurrentOutput out = layer->forward_state(in[0], {.h = h, .c = in[2]}, {.lengths = lengths});
        return ls::sum(ls::tanh(out.y)) + ls::sum(out.state.h * out.state.h) +
               (out.state.c.defined() ? ls::sum(ls::sin(out.state.c)) : ls::sum(in[2]));
      };
      const auto g = [&](const std::vector<ls::Tensor>& in) {
        const nn::RecurrentState next = cell->forward_state(in[0][0], {.h = in[1], .c = in[2]});
        return ls::sum(ls::tanh(next.h)) + (next.c.defined() ? ls::sum(ls::sin(next.c)) : ls::sum(in[2]));
      };
      const auto check = [](nn::Module& module, const auto& function, const std::vector<ls::Tensor>& first) {
        module.to(ls::kFloat64);
        std::vector<ls::Tensor> inputs = first;
        for (const nn::Parameter& parameter : module.parameters()) inputs.push_back(parameter.master());
        CHECK(ls::autograd::gradcheck(function, inputs, {.second_order = true}));
      };
      const ls::Tensor x = numbers({3, 2, 2}, f64);
      check(*layer, f, {x, numbers({2, 2, 2}, f64, 2), numbers({2, 2, 2}, f64, 3)});
      if (!limited) check(*cell, g, {x, numbers({2, 2}, f64, 2), numbers({2, 2}, f64, 3)});
    }
  }
}

TEST_CASE("the bits of a recurrent layer do not depend on the number of threads") {
  const int before = ls::num_threads();
  ls::manual_seed(17);
  const ls::Tensor x = numbers({3, 40, 8}), lengths = ls::full({40}, 2, {.dtype = ls::kInt64});
  for (const std::string& kind : kinds()) {
    const auto layer = make_layer(kind, 8, 128, {.batch_first = false});
    ls::set_num_threads(1);
    const std::vector<ls::Tensor> one = results_of(*layer, x, lengths);
    ls::set_num_threads(4);
    const std::vector<ls::Tensor> four = results_of(*layer, x, lengths);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], four[i]));
  }
  ls::set_num_threads(before);
}

TEST_CASE("a result of a recurrent layer that is changed in place before backward is an error") {
  for (const std::string kind : {"lstm", "gru"}) {
    const ls::Tensor y = make_layer(kind, 3, 4, {.batch_first = false})->forward(numbers({2, 2, 3}));
    CHECK(error_of([&] { ls::sum(y).backward({.retain_graph = true}); }).empty());
    y.detach().add_(1);
    CHECK(contains(error_of([&] { ls::sum(y).backward(); }), "in place"));
  }
}

TEST_CASE("dropout between layers applies to sequences with lengths") {
  ls::manual_seed(15);
  const ls::Tensor x = numbers({4, 2, 3}), lengths = ls::tensor(Lengths{3, 4});
  for (const std::string& kind : kinds()) {
    const auto layer = make_layer(kind, 3, 4, {.num_layers = 2, .batch_first = false, .dropout = 1});
    const auto y = [&](const ls::Tensor& t) { return layer->forward_state(t, {}, {.lengths = lengths}).y; };
    CHECK(ls::equal(y(x), y(x * 2)));  // all inputs of the last layer are dropped
    layer->eval();
    CHECK(!ls::equal(y(x), y(x * 2)));
  }
}

TEST_CASE("a recurrent layer with lengths runs in f16 and bf16, and under autocast") {
  ls::manual_seed(16);
  const ls::Tensor x = numbers({4, 2, 3}), lengths = ls::tensor(Lengths{3, 4});
  for (const std::string& kind : kinds()) {
    INFO(kind);
    const auto layer = make_layer(kind, 3, 4, {.batch_first = false, .bidirectional = true});
    const ls::Tensor exact = layer->forward_state(x, {}, {.lengths = lengths}).y.detach();
    {
      const ls::AutocastGuard autocast(ls::kBFloat16);
      const ls::Tensor y = layer->forward_state(x, {}, {.lengths = lengths}).y;
      check_close(y.to(ls::kFloat32), exact, "autocast", {0.05, 0.02});
      ls::sum(y).backward();
      CHECK(layer->parameters()[0]->grad().dtype() == ls::kFloat32);
    }
    layer->to(ls::kBFloat16);
    const ls::Tensor y = layer->forward_state(x.to(ls::kBFloat16), {}, {.lengths = lengths}).y;
    CHECK(y.dtype() == ls::kBFloat16);
    check_close(y.to(ls::kFloat32), exact, "bf16", {0.05, 0.02});
  }
}

TEST_CASE("recurrent layers refuse lengths that do not fit, and need batch_first") {
  const nn::GRU gru(3, 4, {.batch_first = true});
  const ls::Tensor x = ls::ones({2, 5, 3});
  const auto message = [&](const ls::Tensor& lengths) {
    return error_of([&] { gru.forward_state(x, {}, {.lengths = lengths}); });
  };
  const std::string expected = ", expected (2) i64 on the device of x, which is (2, 5, 3) f32 cpu";
  CHECK(contains(message(ls::ones({2})), "GRU: lengths is (2) f32 cpu" + expected));
  CHECK(contains(message(ls::tensor(Lengths{1, 2, 3})), "GRU: lengths is (3) i64 cpu" + expected));
  CHECK(contains(message(ls::ones({2, 1}, {.dtype = ls::kInt64})), "GRU: lengths is (2, 1) i64 cpu" + expected));
  CHECK(
      contains(message(ls::tensor(Lengths{1, 2}).to(ls::Device("cpu:1"))), "GRU: lengths is (2) i64 cpu:1" + expected));
  CHECK(contains(message(ls::tensor(Lengths{1, 0})), "GRU: lengths[1] is 0, expected 1 to 5, the steps of x"));
  CHECK(contains(message(ls::tensor(Lengths{-1, 2})), "GRU: lengths[0] is -1, expected 1 to 5"));
  CHECK(contains(message(ls::tensor(Lengths{5, 6})), "GRU: lengths[1] is 6, expected 1 to 5"));
  CHECK(message(ls::tensor(Lengths{5, 1})).empty());
  for (const std::string& kind : kinds()) {
    CHECK(error_of([&] { make_layer(kind, 3, 4, {}); }) ==
          "recurrent layer: .batch_first is not given; pass .batch_first = true if x is (batch, time, 3), or "
          ".batch_first = false, PyTorch's default, if x is (time, batch, 3)");
  }
}

TEST_CASE("lengths that the caller changes after forward do not change the gradients") {
  ls::manual_seed(1);
  ls::nn::LSTM lstm(3, 2, {.batch_first = true});
  const ls::Tensor lengths = ls::tensor({4, 2});
  const auto gradient = [&](bool change) {
    const ls::Tensor x = ls::ones({2, 4, 3}, {.requires_grad = true});
    const ls::Tensor y = lstm.forward_state(x, {}, {.lengths = lengths}).y;
    if (change) lengths.fill_(1);  // reused for the next batch
    ls::sum(y).backward();
    return x.grad();
  };
  const ls::Tensor want = gradient(false);
  CHECK(same_bits(gradient(true), want));
}
