#include "lockstep/nn/utilities.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/gradient_norm_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::nn {
namespace {

void add(Hash& hash, const Tensor& tensor) {
  std::int64_t head[kMaxDims + 2] = {static_cast<std::int64_t>(tensor.dtype()), tensor.dim()};
  for (int dim = 0; dim < tensor.dim(); ++dim) head[dim + 2] = tensor.size(dim);
  hash.update(std::as_bytes(std::span(head)));
  hash.update(bytes_of(raw::contiguous(raw::to(tensor, Device()))));
}

// The gradients of the parameters. Undefined where there is none, and for a parameter that was listed before.
std::vector<Tensor> gradients_of(const std::vector<Parameter>& parameters) {
  refuse_parts("clip_grad_norm_", parameters, "call run.clip_grad_norm_(max_norm), which counts all slices");
  std::unordered_set<const TensorSlot*> seen(parameters.size());
  std::vector<Tensor> grads;
  grads.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.sharding() == Sharding::kNone,
                   "clip_grad_norm_: a parameter is distributed over the ranks, and this would be the norm of one "
                   "rank's part; call run.clip_grad_norm_(max_norm) of the ShardedDataParallel");
    const bool counts = parameter.master().defined() && seen.insert(parameter.id()).second;
    grads.push_back(counts ? parameter.master().grad() : Tensor());
  }
  return grads;
}

void require_whole(const char* op, const std::vector<Parameter>& parameters) {
  refuse_parts(op, parameters, "gather it first, with run.gathered");
  for (const Parameter& parameter : parameters)
    LOCKSTEP_CHECK(parameter.sharding() == Sharding::kNone,
                   "{}: a parameter is distributed over the ranks; gather it first, with run.gathered", op);
}

double euclidean_norm(const std::vector<Tensor>& grads) {
  TreeSum sum;
  std::int64_t position = 0;
  for (const Tensor& grad : grads)
    sum.add({.first = position++, .level = 0, .sum = grad.defined() ? sum_of_squares(grad).total() : 0});
  return std::sqrt(sum.total());
}

// The norm of order p.
double norm_of(const std::vector<Tensor>& grads, double p) {
  double sum = 0, largest = 0;
  for (const Tensor& grad : grads) {
    if (!grad.defined()) continue;
    const double value = lockstep::norm(in_f32(grad), p).item<double>();
    sum += std::pow(value, p);
    largest = std::isnan(value) || value > largest ? value : largest;  // NaN stays: no number is larger
  }
  return std::isinf(p) ? largest : std::pow(sum, 1 / p);
}

}  // namespace

double clip_grad_norm_(const std::vector<Parameter>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  LOCKSTEP_CHECK(max_norm >= 0, "clip_grad_norm_: max_norm is {}, expected 0 or more", max_norm);
  LOCKSTEP_CHECK(norm_type > 0, "clip_grad_norm_: norm_type is {}, expected a number above 0, or infinity", norm_type);
  const NoGradGuard no_grad;
  const std::vector<Tensor> grads = gradients_of(parameters);
  const double total = norm_type == 2 ? euclidean_norm(grads) : norm_of(grads, norm_type);
  LOCKSTEP_CHECK(!error_if_nonfinite || std::isfinite(total),
                 "clip_grad_norm_: the norm of order {} is {}, and error_if_nonfinite is true: some gradient is not "
                 "finite; look for too large a learning rate, or for a division by 0 in the loss",
                 norm_type, total);
  const double factor = max_norm / (total + 1e-6);
  if (factor >= 1) return total;  // a NaN factor is applied, and makes every gradient NaN
  for (const Tensor& grad : grads) {
    if (grad.defined()) grad.mul_(factor);
  }
  return total;
}

void clip_grad_value_(const std::vector<Parameter>& parameters, double clip_value) {
  LOCKSTEP_CHECK(clip_value >= 0, "clip_grad_value_: clip_value is {}, expected 0 or more", clip_value);
  const NoGradGuard no_grad;
  for (const Parameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.sharding() != Sharding::kSharded,
                   "clip_grad_value_: a parameter is distributed over the ranks; pass run.parameters() of the "
                   "ShardedDataParallel");
    const Tensor grad = parameter.master().grad();
    if (grad.defined()) grad.copy_(clamp(grad, -clip_value, clip_value));
  }
}

namespace {

// Throws InvalidArgument unless both lists have the same names, and their entries the same `of`.
template <class List, class Of>
void check_same_structure(const char* kind, const List& original, const List& copy, Of of) {
  for (std::size_t i = 0; i < std::max(original.size(), copy.size()); ++i) {
    const auto text = [&](const List& list) {
      return i < list.size() ? fmt::format("{} {}", lockstep::in_quotes(list[i].first), of(list[i].second)) : "none";
    };
    LOCKSTEP_CHECK(text(original) == text(copy),
                   "clone: {} {} of the module is {}, that of the copy {}\nThe function has to construct a module of "
                   "the same structure, with the same replacements",
                   kind, i, text(original), text(copy));
  }
}

}  // namespace

void clone_into(const Module& module, FunctionRef<Module&()> make) {
  auto& original = const_cast<Module&>(module);  // safe: only read
  const auto parameters = original.named_parameters();
  require_whole("clone", original.parameters());
  for (const auto& entry : parameters)
    LOCKSTEP_CHECK(!is_deferred(entry.second.master()), "clone: {} is deferred; call materialize first", entry.first);
  const std::vector<std::uint64_t> generator = random::state();
  const Finally restore([&] { random::set_state(generator); });
  DeferredInit deferred;
  Module& copy = make();
  deferred.end();
  const auto shape = [](const auto& handle) { return handle.master().shape().to_string(); };
  const auto of_original = original.named_modules(), of_copy = copy.named_modules();
  check_same_structure("module", of_original, of_copy, [](const Module* each) { return each->type_name(); });
  check_same_structure("parameter", parameters, copy.named_parameters(), shape);
  check_same_structure("buffer", original.named_buffers(), copy.named_buffers(), shape);
  // train() also sets the modules below, which come later in the list.
  for (std::size_t i = 0; i < of_copy.size(); ++i) of_copy[i].second->train(of_original[i].second->is_training());
  const std::vector<Parameter> to = copy.parameters();
  for (std::size_t i = 0; i < to.size(); ++i) {
    const Tensor& from = parameters[i].second.master();
    replace_without_grad(to[i].master(), raw::clone(from));
    to[i].master().requires_grad_(from.requires_grad());
  }
  const std::vector<Buffer> buffers = original.buffers(), copied = copy.buffers();
  for (std::size_t i = 0; i < copied.size(); ++i) copied[i].set_master(raw::clone(buffers[i].master()));
}

Tensor parameters_to_vector(const std::vector<Parameter>& parameters) {
  require_whole("parameters_to_vector", parameters);
  std::vector<Tensor> parts;
  for (const Parameter& parameter : parameters) parts.push_back(parameter->reshape({-1}));
  return cat(parts);
}

void vector_to_parameters(const Tensor& vector, const std::vector<Parameter>& parameters) {
  require_whole("vector_to_parameters", parameters);
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters) total += parameter->numel();
  LOCKSTEP_CHECK(vector.shape() == Shape{total}, "vector_to_parameters: the vector is {}, expected shape ({})",
                 describe(vector), total);
  const NoGradGuard no_grad;
  std::int64_t first = 0;
  for (const Parameter& parameter : parameters) {
    parameter->copy_(vector.narrow(0, first, parameter->numel()).view(parameter->shape()));
    first += parameter->numel();
  }
}

Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first, double padding_value) {
  LOCKSTEP_CHECK(!sequences.empty(), "pad_sequence: there are no sequences");
  std::int64_t longest = 0;
  for (const Tensor& sequence : sequences) {
    LOCKSTEP_CHECK(sequence.dim() >= 1, "pad_sequence: a sequence is {}, expected (length, ...)", describe(sequence));
    longest = std::max(longest, sequence.size(0));
  }
  std::vector<Tensor> padded;
  for (const Tensor& sequence : sequences) {
    Shape rest = sequence.shape();
    rest[0] = longest - sequence.size(0);
    padded.push_back(rest[0] == 0 ? sequence : cat({sequence, raw::full(rest, padding_value, sequence.options())}));
  }
  return stack(padded, batch_first ? 0 : 1);
}

std::uint64_t parameter_hash(const Module& module) {
  refuse_parts("parameter_hash", module.parameters(), "call it inside run.gathered");
  Hash hash;
  for (const Parameter& parameter : module.parameters()) add(hash, parameter.master());
  for (const Buffer& buffer : module.buffers()) add(hash, buffer.master());
  return hash.digest();
}

std::uint64_t parameter_hash(const StateDict& dict) {
  const std::map<std::string, Tensor> sorted(dict.begin(), dict.end());
  Hash hash;
  for (const auto& entry : sorted) add(hash, entry.second);
  return hash.digest();
}

}  // namespace lockstep::nn
