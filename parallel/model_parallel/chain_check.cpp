#include "lockstep/parallel/model_parallel/chain_check_internal.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

bool are_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) { return x.ref() == y.ref(); });
}

// The calls that a model's forward makes of the modules of its chain.
class ChainCalls {
 public:
  ChainCalls(const char* op, const std::vector<ChainModule>& chain, const std::vector<Tensor>& inputs)
      : op_(op), chain_(chain), passed_(inputs) {}

  Tensor call(std::size_t link, const std::vector<Tensor>& inputs) {
    has_failed_ = true;
    const std::string& path = chain_[link].path;
    LOCKSTEP_CHECK(
        link >= next_,
        "{}: the model's forward calls {} a second time, but a stage runs it once; give the chain one module "
        "for each call",
        op_, path);
    LOCKSTEP_CHECK(
        link == next_,
        "{}: the model's forward calls {} where the chain has {}; name the modules in .chain in the order of "
        "their calls",
        op_, path, chain_[next_].path);
    LOCKSTEP_CHECK(link > 0 || are_same(inputs, passed_),
                   "{}: the model's forward calls {} with other tensors than the model's inputs, which are what its "
                   "stage gets; put what prepares them into {}",
                   op_, path, path);
    LOCKSTEP_CHECK(are_same(inputs, passed_),
                   "{}: the model's forward calls {} with other tensors than the result of {}, which is all that its "
                   "stage gets; put what is computed between the two into one of them, or name its module in .chain",
                   op_, path, chain_[link - 1].path);
    has_failed_ = false;
    ++next_;
    passed_ = {raw::empty({0}, {})};
    return passed_[0];
  }

  // Calls forward(inputs), which makes these calls. Returns its result.
  Tensor follow(const std::vector<Tensor>& inputs, nn::ModuleRunner::Forward forward) {
    Tensor result;
    try {
      result = forward(inputs);
    } catch (const std::exception& error) {
      if (has_failed_) throw;
      const std::string last = next_ > 0 ? "the result of " + chain_[next_ - 1].path : "its inputs";
      throw InvalidArgument(fmt::format(
          "{}: the model's forward does something else with {} than to call the next module of the chain; put "
          "it into a module ({})",
          op_, last, error.what()));
    }
    LOCKSTEP_CHECK(next_ == chain_.size(), "{}: the model's forward does not call {}, which is in the chain", op_,
                   chain_[next_].path);
    LOCKSTEP_CHECK(
        are_same({result}, passed_),
        "{}: the model's forward returns something else than the result of {}, which is what the loss function "
        "gets; put what follows into {} or into the loss function",
        op_, chain_.back().path, chain_.back().path);
    return result;
  }

 private:
  const char* op_;
  const std::vector<ChainModule>& chain_;
  std::vector<Tensor> passed_;  // to the next module
  std::size_t next_ = 0;
  bool has_failed_ = false;  // in a call, with an error of its own
};

// A call of one of these modules.
class ChainCall final : public nn::ModuleRunner {
 public:
  ChainCall(ChainCalls& calls, std::size_t link) : calls_(calls), link_(link) {}
  Tensor run(const std::vector<Tensor>& inputs, Forward) const override { return calls_.call(link_, inputs); }

 private:
  ChainCalls& calls_;
  std::size_t link_;
};

// The call of the model itself.
class ModelCall final : public nn::ModuleRunner {
 public:
  explicit ModelCall(ChainCalls& calls) : calls_(calls) {}
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override {
    return calls_.follow(inputs, forward);
  }

 private:
  ChainCalls& calls_;
};

}  // namespace

void check_chain_forward(const char* op, nn::Module& module, const std::vector<ChainModule>& chain,
                         const std::vector<Tensor>& inputs) {
  ChainCalls calls(op, chain, inputs);
  std::vector<std::unique_ptr<nn::ReplacedCalls>> replaced;
  for (std::size_t k = 0; k < chain.size(); ++k)
    replaced.push_back(std::make_unique<nn::ReplacedCalls>(*chain[k].module, std::make_shared<ChainCall>(calls, k)));
  const nn::ReplacedCalls of_model(module, std::make_shared<ModelCall>(calls));
  inputs.size() == 1 ? module(inputs[0]) : module(inputs);
}

}  // namespace lockstep::parallel
